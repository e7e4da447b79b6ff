"""Leaving the dashboard: by a signal, while something still runs, and after the engine was lost."""

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent.errors import TargetError
from agent.model.decision import Decision
from agent.model.snapshot import Snapshot
from inspector.report import Prose
from kvctl import demo_run
from kvctl.demo_run import DemoRun
from tests.support.cli import FakeSession
from tests.support.dashboard import Driver, ScriptedLink, drive
from tests.support.snapshots import gemma
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from kvctl.demo_engine import DemoEngine


@dataclass
class Engine:
    """What a run of the demo needs of its engine."""

    pid: int = 1
    told: list[str] = field(default_factory=list)

    def inject(self, fault: str) -> None:
        """Note a fault."""
        self.told.append(fault)


@dataclass
class SlowSession(FakeSession):
    """An engine that does not answer a look before it is let go."""

    looked: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def snapshot(self, **_: Any) -> Snapshot:
        """Wait, then fail: the engine is gone by then."""
        self.looked.set()
        self.go.wait(60)
        raise TargetError("the engine is gone")


@dataclass
class LostSession(FakeSession):
    """An engine that dies after some decisions."""

    def poll(self) -> tuple[Decision, ...]:
        """Return what there is, then fail."""
        if not self.fresh:
            raise TargetError("the engine's agent has ended the feed")
        return super().poll()


def demo(monkeypatch: pytest.MonkeyPatch, session: FakeSession, fault: str | None = None) -> DemoRun:
    """Return a run on a scripted session."""
    monkeypatch.setattr(demo_run, "open_target", lambda *_: session)
    engine = cast("DemoEngine", Engine())
    return DemoRun(engine, None if fault is None else (fault, ("KV301",)))


def test_sigterm_leaves_the_screen_in_order() -> None:
    """SIGTERM ends the dashboard as q does, with the exit code of a terminated command."""
    ended: list[int | None] = []

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        os.kill(os.getpid(), signal.SIGTERM)
        await driver.until(lambda _: driver.app.return_code is not None, "the end of the dashboard")
        ended.append(driver.app.return_code)

    drive(ScriptedLink(gemma()), (80, 24), script)
    assert ended == [128 + signal.SIGTERM]


@pytest.mark.parametrize("fault", [None, "drop-window-page"])
def test_a_look_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, fault: str | None) -> None:
    """The dashboard can be left while a look does not end; the report says that the gates have not looked."""
    session = SlowSession(gemma(), fresh=[tuple(gemma().decisions or ())])
    run = demo(monkeypatch, session, fault)
    monkeypatch.setattr(demo_run, "_FILL_S", 0.0)
    monkeypatch.setattr(demo_run, "_AGAIN_S", 0.0)
    monkeypatch.setattr(demo_run, "show", lambda *_, **__: wait_for(session.looked.is_set, "a look"))
    run.dashboard()
    assert not session.go.is_set()
    report, found = run.report()
    session.go.set()
    assert found == (fault is None)
    assert report.data["decisions"] == len(gemma().decisions or ())
    assert report.data["gates"] == []
    wait_for(lambda: run.lost is not None, "the end of the thread")


def test_a_lost_engine_leaves_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the engine dies the report tells what was seen until then, and what ended it."""
    run = demo(monkeypatch, LostSession(gemma(), fresh=[tuple(gemma().decisions or ())]))
    run.headless(3600)
    report, _ = run.report()
    assert isinstance(run.lost, TargetError)
    assert report.data["decisions"] == len(gemma().decisions or ())
    assert report.data["ended_early"] == run.lost.what
    lines = [str(line) for block in report.blocks if isinstance(block, Prose) for line in block.lines]
    assert any("ended early" in line for line in lines)
