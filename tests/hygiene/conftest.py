"""Fixtures of the hygiene tests: the built wheel, and a fresh environment with nothing but that wheel.

Invariant: built from the checkout once a run, with the build backend that ``pyproject.toml`` names.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(command: list[str], **options: object) -> str:
    """Run a command and return what it printed; fail with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)])
    (built,) = folder.glob("kvctl-*.whl")
    return built


@pytest.fixture(scope="session")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a fresh environment that holds the bare wheel and nothing it depends on."""
    folder = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    scripts = [sys.executable, "-m", "pip", "--quiet", "--python", str(python)]
    run([*scripts, "install", "--no-deps", str(wheel)], env=os.environ | {"PYTHONPATH": ""})
    assert (Path(site) / "agent" / "__init__.py").is_file()
    return python
