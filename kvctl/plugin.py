"""The engine-side entry point: loads the agent into an engine process under its private name.

Invariant: does nothing unless ``KVCTL_AGENT=1``, never raises into the engine, and runs no agent file that differs from
the wheel it came in. Called by vLLM's plugin loader in each of its processes; standard library only.
"""

import base64
import hashlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

PRIVATE_NAME = "_kvctl_agent"
"""``agent`` is a common name: a serving script may have an ``agent.py`` of its own beside it."""

LOAD_ERRORS = (ImportError, OSError, SyntaxError, AttributeError, TypeError, ValueError, RuntimeError, LookupError)
"""What loading our own files can raise; the guard inside takes over afterwards."""


class TamperedError(ImportError):
    """A file of the agent differs from the one in its wheel."""


def register_vllm() -> None:
    """Put the agent into this vLLM process, if the operator asked for it."""
    if os.environ.get("KVCTL_AGENT") != "1":
        return
    log = _logger()
    try:
        notes = check_files()
        agent = load_agent()
        entry = importlib.import_module(f"{agent.__name__}.engines.vllm.entry")
        entry.register(log=log, notes=notes)
    except LOAD_ERRORS as error:
        log(f"agent not loaded, the engine runs without it: {type(error).__name__}: {error}")


def _logger() -> Callable[[str], None]:
    """Return what writes one line; an error in it may quote a client, so that nothing unprintable is written."""
    write = _writer()
    return lambda line: write("".join(sign if sign.isprintable() else " " for sign in line))


def _writer() -> Callable[[str], None]:
    path = os.environ.get("KVCTL_LOG")
    logger = logging.getLogger("kvctl")
    if path and not logger.handlers:
        try:
            handler = logging.FileHandler(path, delay=True, encoding="utf-8")
        except OSError:
            return logger.warning
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d kvctl: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        return logger.info
    return logger.warning if not path else logger.info


def agent_folder() -> Path:
    """Return the folder of the agent package, beside this one: never the one that ``import agent`` would find."""
    return Path(__file__).resolve().parent.parent / "agent"


def load_agent() -> ModuleType:
    """Load the agent package by path under its private name."""
    loaded = sys.modules.get(PRIVATE_NAME)
    if loaded is not None:
        return loaded
    folder = agent_folder()
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no agent at {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PRIVATE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[PRIVATE_NAME]
        raise
    return module


def check_files() -> Mapping[str, str]:
    """Compare the agent's files with the digests of the wheel they came in.

    Returns:
        What to say about it beside the engine's description.

    Raises:
        TamperedError: A file differs, or one is there that the wheel does not have.
    """
    try:
        installed = distribution("kvctl")
    except PackageNotFoundError:
        return {"agent_files": "not checked: not installed from a wheel"}
    digests = _digests(installed)
    folder = agent_folder()
    if not digests:
        return {"agent_files": "not checked: an editable installation has no digests"}
    found = {path.relative_to(folder.parent).as_posix(): path for path in folder.rglob("*.py")}
    for name in sorted(found.keys() | digests.keys()):
        if name not in digests:
            raise TamperedError(f"{name} is not part of the installed wheel")
        if name not in found or _digest(found[name], digests[name][0]) != digests[name][1]:
            raise TamperedError(f"{name} differs from the installed wheel")
    return {"agent_files": f"{len(digests)} files equal those of the wheel"}


def _digests(installed: Distribution) -> dict[str, tuple[str, str]]:
    """Return algorithm and digest of each Python file of the agent in the wheel's RECORD."""
    files: Iterable[object] = installed.files or ()
    return {
        str(file).replace(os.sep, "/"): (file.hash.mode, file.hash.value)  # type: ignore[attr-defined]
        for file in files
        if str(file).startswith("agent") and str(file).endswith(".py") and getattr(file, "hash", None) is not None
    }


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
