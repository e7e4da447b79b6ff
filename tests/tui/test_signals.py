"""What becomes of the terminal when the dashboard is ended from outside, or ends by an error of its own."""

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_env import ROOT, clean_environment
from tests.support.pseudo import Pseudo, pseudo

FILE = ROOT / "tests" / "data" / "gemma3.kvsnap"
TOP = [sys.executable, "-m", "kvctl", "top", "--snapshot", str(FILE)]


@pytest.fixture
def window() -> Iterator[Pseudo]:
    """The dashboard of a saved snapshot, on a terminal of its own."""
    with pseudo(TOP, environment=clean_environment(), folder=ROOT) as opened:
        opened.shows("Overview", "saved snapshot")
        yield opened


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1"])
def test_a_signal_leaves_the_terminal_in_order(window: Pseudo, name: str) -> None:
    """Whatever signal ends the dashboard, the terminal is as before and the exit code is that of the signal."""
    number = signal.Signals[name]
    window.send(number)
    assert window.ended() == 128 + number
    window.comes_back()
    assert b"Traceback" not in window.written


def test_a_stopped_dashboard_gives_the_terminal_back(window: Pseudo) -> None:
    """SIGTSTP gives the terminal to the shell, SIGCONT takes it again, and after that it is left as ever."""
    window.send(signal.SIGTSTP)
    _, status = os.waitpid(window.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    window.comes_back()
    window.written.clear()
    window.send(signal.SIGCONT)
    window.shows("saved snapshot")
    window.send(signal.SIGTERM)
    assert window.ended() == 128 + signal.SIGTERM
    window.comes_back()


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP,)], ids=["", "ignored"])
def test_a_closed_terminal_ends_the_dashboard(ignored: tuple[int, ...]) -> None:
    """When its window is closed the dashboard ends, also where SIGHUP is ignored."""
    with pseudo(TOP, environment=clean_environment(), folder=ROOT, ignored=ignored) as window:
        window.shows("Overview", "saved snapshot")
        window.hang_up()
        assert window.ended() == 128 + signal.SIGHUP


def test_an_app_that_hangs_is_ended(tmp_path: Path) -> None:
    """A signal ends the dashboard also while it hangs, as on a terminal that takes nothing; the screen is back."""
    hanging = tmp_path / "hanging.py"
    hanging.write_text(
        textwrap.dedent(f"""
            import sys, threading
            from inspector.tui import app
            from kvctl.main import run

            def hang(_):
                print("it hangs", file=sys.__stderr__, flush=True)
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()

            app.Dashboard.action_help = hang
            sys.argv[1:] = ["top", "--snapshot", {str(FILE)!r}]
            run()
        """),
        encoding="utf-8",
    )
    environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
    with pseudo([sys.executable, str(hanging)], environment=environment, folder=ROOT) as window:
        window.shows("Overview", "saved snapshot")
        os.write(window.ours, b"?")
        window.shows("it hangs")
        window.send(signal.SIGTERM)
        assert window.ended() == 128 + signal.SIGTERM
        window.comes_back()


@pytest.mark.parametrize("where", ["app", "thread"])
def test_an_error_inside_is_one_sentence(tmp_path: Path, where: str) -> None:
    """A bug in the dashboard, or in a thread of it, puts the terminal in order and is said in one sentence, exit 4."""
    broken = tmp_path / "broken.py"
    broken.write_text(
        textwrap.dedent(f"""
            import sys
            from inspector.tui import app, feed
            from kvctl.main import run

            def fail(*_):
                raise RuntimeError("a made-up bug")

            if "{where}" == "app":
                app.Dashboard.action_help = fail
            else:
                feed.Feed._tick = fail
            sys.argv[1:] = ["top", "--snapshot", {str(FILE)!r}]
            run()
        """),
        encoding="utf-8",
    )
    environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
    with pseudo([sys.executable, str(broken)], environment=environment, folder=ROOT) as window:
        if where == "app":
            window.shows("Overview", "saved snapshot")
            os.write(window.ours, b"?")
        assert window.ended() == 4
        window.comes_back()
        last = bytes(window.written).rpartition(b"\x1b[?1049l")[2]
        assert b"kvctl: internal error: RuntimeError: a made-up bug" in last
        assert b"Traceback" not in window.written
