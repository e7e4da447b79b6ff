"""The wheel: what it holds, and what a bare one can do in an engine's environment."""

import zipfile
from pathlib import Path

from tests.hygiene.conftest import run

PACKAGES = {"kvctl", "inspector", "exporters", "agent"}


def names(wheel: Path) -> list[str]:
    """Return the names of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_top_level(wheel: Path) -> None:
    """It holds our four packages and its metadata, nothing else: no tests, no benchmarks."""
    tops = {name.split("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_typed(wheel: Path) -> None:
    """Every package tells type checkers that it is typed."""
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names(wheel))


def test_no_leftovers(wheel: Path) -> None:
    """No caches, no recorded data, no files of editors."""
    assert not [name for name in names(wheel) if name.endswith((".pyc", ".kvsnap", "~")) or "__pycache__" in name]


def test_entry_points(wheel: Path) -> None:
    """It brings the command and the engine plugin, both under ``kvctl.``."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        lines = archive.read(name).decode().split("\n")
    assert "kvctl = kvctl.main:run" in lines
    assert "kvctl = kvctl.plugin:register_vllm" in lines
    assert all("=" not in line or line.split("=")[1].strip().startswith("kvctl.") for line in lines)


def test_bare_wheel_is_enough_inside(bare_python: Path) -> None:
    """With none of its dependencies the plugin and everything that runs in the engine can be imported."""
    code = (
        "import importlib, pkgutil, kvctl.plugin\n"
        "package = kvctl.plugin.load_agent()\n"
        "for part in ('model', 'probe', 'engines'):\n"
        "    module = importlib.import_module(f'{package.__name__}.{part}')\n"
        "    for found in pkgutil.walk_packages(module.__path__, module.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "print('ok')\n"
    )
    assert run([str(bare_python), "-I", "-c", code]).strip() == "ok"


def test_bare_wheel_says_what_is_missing(bare_python: Path) -> None:
    """The command of a bare wheel explains itself in one sentence instead of a traceback."""
    import subprocess

    done = subprocess.run([str(bare_python), "-I", "-m", "kvctl", "ps"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "pip install" in done.stderr
