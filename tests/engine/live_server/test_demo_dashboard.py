"""``kvctl demo`` in tmux: the dashboard on the reference engine, and what is left when it is closed.

It stands here because it needs tmux, which the tests outside this folder do without.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import engine_env
from tests.support.demos import engines_in
from tests.support.engine_env import short_folder
from tests.support.terminal import Terminal, terminal
from tests.support.waiting import wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets and temporary files of this test."""
    with short_folder() as own:
        yield own


def _demo(folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = engine_env.clean_environment() | {
        "KVCTL_RUNTIME_DIR": str(folder),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    words = " ".join((sys.executable, "-m", "kvctl", "demo", *arguments))
    return ["sh", "-c", f"{words}; echo ended with $?; cat"], environment


def _report(window: Terminal) -> str:
    """Leave the dashboard; return what stands on the screen then."""
    window.press("q")
    return window.shows("ended with", "next  kvctl explain")


def test_the_dashboard_opens_and_leaves_nothing(folder: Path) -> None:
    """It shows the engine's two hits at 80x24; leaving it prints the report and leaves no process, socket or file."""
    command, environment = _demo(folder)
    with terminal(command, columns=80, rows=24, environment=environment, folder=engine_env.ROOT) as window:
        window.shows("[1 Overview]", "logical hit", "usable hit", "live, every 1 s")
        assert len(engines_in(folder)) == 1
        window.resize(80, 60)
        text = _report(window)
        assert "ended with 0" in text
        assert all(word in text for word in ("logical", "usable", "Four gates"))
        assert not engines_in(folder)
        wait_for(lambda: not list(folder.iterdir()), "an empty folder")


def test_a_fault_is_found_behind_the_dashboard(folder: Path) -> None:
    """A fault that was injected while the dashboard was open is in the report, with the gate that saw it."""
    command, environment = _demo(folder, "--inject", "foreign-disk-file")
    with terminal(command, columns=80, rows=70, environment=environment, folder=engine_env.ROOT) as window:
        window.shows("[1 Overview]", "usable hit")
        judge = [sys.executable, "-m", "kvctl", "validate", "--pid", str(engines_in(folder)[0]), "-o", "json"]

        def seen() -> bool:
            done = subprocess.run(
                judge, env=environment, cwd=engine_env.ROOT, capture_output=True, text=True, check=False
            )
            found = json.loads(done.stdout)["findings"] if done.stdout else []
            return any(finding["code"] == "KV206" for finding in found)

        wait_for(seen, "the fault to be seen by another command")
        text = _report(window)
        assert "foreign-disk-file was found by gate contract" in text
        assert "KV206" in text
        assert "ended with 0" in text


def test_who_leaves_before_the_fault_is_told_so(folder: Path) -> None:
    """Nothing was injected and nothing was found: that is no success."""
    command, environment = _demo(folder, "--inject", "foreign-disk-file")
    with terminal(command, columns=80, rows=70, environment=environment, folder=engine_env.ROOT) as window:
        window.shows("[1 Overview]", "usable hit")
        text = _report(window)
        assert "the run ended before it was injected" in text
        assert "ended with 1" in text
