"""Drive the dashboard without a terminal: its screen as text, waits for what it shall show, a source that is scripted.

Invariant: the source hands out real snapshots; only where they come from is made up.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, cast

from textual.pilot import Pilot

from agent.errors import KvctlError
from agent.model.decision import Decision
from agent.model.snapshot import Snapshot
from agent.session import Session
from inspector.tui.app import Dashboard
from inspector.tui.link import Link, Progress
from kvctl.output import Format, Output

GOLDEN = Path(__file__).resolve().parents[1] / "tui" / "golden"
DEADLINE_S = 30.0


@dataclass
class ScriptedLink:
    """A source that says what a test wants."""

    snapshot: Snapshot
    live: bool = True
    fresh: list[tuple[Decision, ...]] = field(default_factory=list)
    """Batches that polling returns, one each."""
    broken: KvctlError | None = None
    """Raised by everything while it is set."""
    unfollowed: str | None = None
    session: Any = None
    """What jobs get to talk to."""
    tables: list[bool] = field(default_factory=list)
    references: list[bool] = field(default_factory=list)
    """For each reading whether the page table was asked for."""
    gate: Event = field(default_factory=Event)
    """Readings wait while this is clear."""
    joining: Event = field(default_factory=Event)
    """Joining the feed waits while this is clear."""
    connected: int = 0

    def __post_init__(self) -> None:
        """Let readings and joining through."""
        self.gate.set()
        self.joining.set()

    def connect(self) -> None:
        """Count."""
        self._check()
        self.connected += 1

    def follow(self, progress: Progress) -> str | None:
        """Say whether there is a feed."""
        self.joining.wait(DEADLINE_S)
        if self.live:
            progress(1.0)
        return self.unfollowed

    def poll(self) -> tuple[Decision, ...]:
        """Return the next batch."""
        self._check()
        return self.fresh.pop(0) if self.fresh else ()

    def read(self, *, table: bool, references: bool = False) -> Snapshot:
        """Return the snapshot."""
        self.references.append(references)
        self.gate.wait(DEADLINE_S)
        self._check()
        self.tables.append(table)
        return self.snapshot if table or not self.live else replace(self.snapshot, pages=None)

    def aside(self) -> Session:
        """Return what the test put there."""
        self._check()
        return cast("Session", self.session)

    def close(self) -> None:
        """Nothing is open."""

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken


class Driver:
    """One dashboard under test."""

    def __init__(self, app: Dashboard, pilot: Pilot[None]) -> None:
        """Drive ``app``."""
        self.app = app
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        """Press keys and let the app answer."""
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def until(self, predicate: Callable[[str], bool], what: str) -> str:
        """Return the screen as soon as it is as wanted."""
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            await self._pilot.pause(0.01)
            text = self.text
            if predicate(text):
                return text
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"gave up waiting for {what}; the screen:\n{text}")

    async def shows(self, *words: str) -> str:
        """Return the screen as soon as it shows all words."""
        return await self.until(lambda text: all(word in text for word in words), f"{words} on the screen")

    @property
    def text(self) -> str:
        """The screen as text, blank ends of lines cut."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def drive(link: Link, size: tuple[int, int], script: Callable[[Driver], Awaitable[None]]) -> None:
    """Run the dashboard on ``link`` in a terminal of ``size`` and do what the script says."""

    async def run() -> None:
        app = Dashboard(link, to_json=Output(format=Format.JSON).text, interval_s=0.5, timeout_s=5.0)
        with app.leaving:
            async with app.run_test(size=size) as pilot:
                await script(Driver(app, pilot))

    asyncio.run(run())


def check_screen(name: str, text: str, folder: Path = GOLDEN) -> None:
    """Compare a screen with its golden file; ``KVCTL_UPDATE_GOLDEN=1`` writes it, for a person to look at."""
    path = folder / f"{name}.txt"
    if os.environ.get("KVCTL_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs"


@contextmanager
def held(link: ScriptedLink) -> Iterator[None]:
    """Hold every reading back."""
    link.gate.clear()
    try:
        yield
    finally:
        link.gate.set()
