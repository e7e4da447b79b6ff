"""The environment in which tests start engines: offline, small, quiet, and apart from every other engine on the host.

Invariant: never changes ``os.environ`` of the test process except in ``prepare_in_process``. Used by everything under
``tests/engine``.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

QUIET: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; tests set the number of pages themselves
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def clean_environment() -> dict[str, str]:
    """Return a copy of the environment without anything that steers kvctl or vLLM."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("KVCTL_", "VLLM_"))}


def engine_environment(runtime: Path, *, agent: bool = True, **extra: str) -> dict[str, str]:
    """Return the environment of an engine process.

    Args:
        runtime: Folder for the agent's sockets; keep it short, a socket's path has at most 107 bytes.
        agent: Start the agent in it.
        extra: Further variables; they win.
    """
    own = {"KVCTL_RUNTIME_DIR": str(runtime)} | ({"KVCTL_AGENT": "1"} if agent else {})
    return {**clean_environment(), **QUIET, **own, **extra}


def prepare_in_process() -> None:
    """Let this process run an engine without child processes; call it before vLLM is imported."""
    os.environ.update(QUIET)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


@contextmanager
def short_folder(prefix: str = "kv-") -> Iterator[Path]:
    """Yield a private folder with a short path, removed afterwards: pytest's own are too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_plugin(site: Path, name: str, source: Path, function: str) -> None:
    """Install one file as a vLLM plugin of its own into a folder that will stand on ``PYTHONPATH``.

    Args:
        site: The folder.
        name: Module name of the copy, and name of the entry point.
        source: The file to copy; it must not import anything from the tests.
        function: The function that vLLM shall call in each of its processes.
    """
    shutil.copy(source, site / f"{name}.py")
    info = site / f"{name}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:{function}\n", encoding="utf-8")


def vllm_command() -> list[str]:
    """Return the command that starts vLLM's own command line with this interpreter."""
    return [str(Path(sys.executable).with_name("vllm"))]


def kvctl_command() -> list[str]:
    """Return the command that starts kvctl with this interpreter, whatever other ``kvctl`` is on the path."""
    return [sys.executable, "-m", "kvctl"]
