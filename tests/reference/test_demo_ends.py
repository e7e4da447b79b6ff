"""``kvctl demo`` that is killed: whatever moment it comes at, no process and no file of it stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.demos import engines_in
from tests.support.engine_env import ROOT, clean_environment, short_folder
from tests.support.reference import NIGHTLY
from tests.support.waiting import wait_for


@dataclass
class Demo:
    """A demo that runs, with folders of its own."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def runtime(self) -> Path:
        """Folder of the sockets."""
        return self.folder / "run"

    @property
    def temporary(self) -> Path:
        """Folder of temporary files."""
        return self.folder / "tmp"

    def engines(self) -> list[int]:
        """Return the processes that serve for it."""
        return engines_in(self.temporary)

    def loads(self) -> bool:
        """Whether its engine loads torch."""
        try:
            return any("libtorch" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8") for pid in self.engines())
        except OSError:
            return False

    def says(self, words: str) -> bool:
        """Whether it has said this."""
        return words in self.said()

    def said(self) -> str:
        """Return everything that it has said."""
        return (self.folder / "said").read_text(encoding="utf-8")

    def left(self) -> list[str]:
        """Return the files that it has made and not removed."""
        return [str(path) for top in (self.runtime, self.temporary) for path in top.rglob("*")]

    def leaves_nothing(self) -> None:
        """Wait for the end of all processes; then no file may be there."""
        wait_for(lambda: not self.engines(), "the end of the engine")
        assert not self.left()


MOMENTS: dict[str, Callable[[Demo], object]] = {
    "begun": lambda demo: demo.says("starting the reference engine"),
    "engine": Demo.engines,
    # Not any file: finding the place for temporary files makes one for a moment, before there is an engine.
    "folder": lambda demo: list(demo.temporary.glob("kvctl-demo-*")),
    "loading": Demo.loads,
    "socket": lambda demo: list(demo.runtime.iterdir()),
    "running": lambda demo: demo.says("the engine runs"),
}
"""What can be seen from outside of a demo that starts, in order."""


@contextmanager
def started() -> Iterator[Demo]:
    """Start a demo; end what is left of it afterwards."""
    with short_folder() as folder:
        for name in ("run", "tmp"):
            (folder / name).mkdir(mode=0o700)
        environment = clean_environment() | {
            "KVCTL_RUNTIME_DIR": str(folder / "run"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        # A shell starts its background jobs with some signals ignored, and children inherit that.
        command = ["env", "--default-signal", sys.executable, "-m", "kvctl"]
        command += ["demo", "--headless", "--duration", "120s"]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, cwd=ROOT)
        demo = Demo(process, folder)
        try:
            yield demo
        finally:
            process.kill()
            process.wait()
            for pid in demo.engines():
                os.kill(pid, signal.SIGKILL)


def codes(number: int) -> set[int]:
    """Return what the shell may see: before the command has its own answer, the system's is as good."""
    return {128 + number, -number}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_stays_of_a_demo_that_is_killed(moment: str, name: str) -> None:
    """At each moment of its start the end is complete, also where only the engine is left to clean up."""
    number = signal.Signals[name]
    with started() as demo:
        wait_for(lambda: MOMENTS[moment](demo), moment)
        demo.process.send_signal(number)
        assert demo.process.wait(60) in codes(number), demo.said()
        demo.leaves_nothing()
        assert "Traceback" not in demo.said()


def test_an_engine_whose_parent_is_gone_at_once_leaves_nothing(tmp_path: Path) -> None:
    """The end may come while the engine makes its folder: either it is removed, or it is not made any more."""
    command = [sys.executable, "-P", "-m", "agent.reference.serve", "--scratch", str(tmp_path / "scratch")]
    environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
    for _ in range(20):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT, timeout=60, check=False)
        assert done.returncode == 0
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGQUIT"])
def test_every_signal_ends_it_in_order(name: str) -> None:
    """A closed terminal, ^C and SIGQUIT clean up as well, and the exit code is that of the signal."""
    number = signal.Signals[name]
    with started() as demo:
        wait_for(lambda: MOMENTS["running"](demo), "a running engine")
        demo.process.send_signal(number)
        assert demo.process.wait(60) == 128 + number
        demo.leaves_nothing()


@pytest.mark.parametrize("moment", ["folder", "loading", "socket", "running"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_an_engine_that_is_killed_is_cleaned_up_after(moment: str, name: str) -> None:
    """Where the engine alone is killed the demo says so, and removes what it has left."""
    with started() as demo:
        wait_for(lambda: MOMENTS[moment](demo), moment)
        engines = demo.engines()
        assert engines, "nobody was there to be killed"
        for pid in engines:
            os.kill(pid, signal.Signals[name])
        assert demo.process.wait(60) in {3, 4}
        demo.leaves_nothing()
        assert "Traceback" not in demo.said()
        assert "internal error" not in demo.said()


def test_both_at_once_leave_nothing() -> None:
    """A service manager ends every process of a group at once."""
    with started() as demo:
        wait_for(lambda: MOMENTS["running"](demo), "a running engine")
        for pid in (*demo.engines(), demo.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert demo.process.wait(60) == 128 + signal.SIGTERM
        demo.leaves_nothing()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"] if NIGHTLY else ["SIGTERM"])
@pytest.mark.parametrize("tenth", range(40) if NIGHTLY else (3, 9, 14))
def test_nothing_stays_at_any_moment(tenth: int, name: str) -> None:
    """Moments of the first four seconds, forty with each signal in the long profile."""
    number = signal.Signals[name]
    with started() as demo:
        begin = time.monotonic()
        wait_for(lambda: time.monotonic() - begin >= tenth / 10, "the moment")
        demo.process.send_signal(number)
        assert demo.process.wait(60) in codes(number), demo.said()
        demo.leaves_nothing()
