"""The plugin: off unless asked for, and only with the files of its own wheel."""

import base64
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine_env import ROOT

REPORT = (
    "import json, sys, kvctl.plugin as p\n"
    "try:\n    print(json.dumps(dict(p.check_files())))\n"
    "except p.TamperedError as error:\n    print('tampered:', error)\n"
    "p.register_vllm(); print('loaded' if p.PRIVATE_NAME in sys.modules else 'not loaded')\n"
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A site-packages folder with the package as a wheel installs it, RECORD included."""
    site = tmp_path / "site"
    for name in ("agent", "kvctl"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    lines = [
        f"{path.relative_to(site)},sha256={base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b'=').decode()},1"
        for path in sorted(site.rglob("*.py"))
    ]
    info = site / "kvctl-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvctl\nVersion: 9\n", encoding="utf-8")
    (info / "RECORD").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site


def report(site: Path, agent: str = "1") -> list[str]:
    """Load the plugin from a folder in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", REPORT],
        env={"PYTHONPATH": str(site), "KVCTL_AGENT": agent, "PATH": "/usr/bin:/bin"},
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines() + done.stderr.splitlines()


def test_files_of_the_wheel_are_loaded(installed: Path) -> None:
    """Unchanged files are compared with the wheel's digests and loaded; what was compared is said."""
    lines = report(installed)
    assert "files equal those of the wheel" in lines[0]
    assert lines[1] == "loaded"


def test_nothing_happens_unless_asked_for(installed: Path) -> None:
    """Without KVCTL_AGENT=1 nothing is loaded."""
    assert report(installed, agent="0")[1] == "not loaded"


def change(site: Path) -> str:
    """Change a file."""
    path = site / "agent" / "probe" / "guard.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    return "agent/probe/guard.py differs"


def add(site: Path) -> str:
    """Add a file."""
    (site / "agent" / "extra.py").write_text("", encoding="utf-8")
    return "agent/extra.py is not part"


def remove(site: Path) -> str:
    """Remove a file."""
    (site / "agent" / "wire.py").unlink()
    return "agent/wire.py differs"


@pytest.mark.parametrize("tamper", [change, add, remove])
def test_other_files_are_not_loaded(installed: Path, tamper: Callable[[Path], str]) -> None:
    """A file that was changed, added or removed keeps the agent off, and the line names it; nothing is raised."""
    sentence = tamper(installed)
    lines = report(installed)
    assert sentence in lines[0]
    assert lines[1] == "not loaded"
    assert any("the engine runs without it" in line for line in lines[2:])
