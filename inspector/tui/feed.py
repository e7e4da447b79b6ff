"""The reading thread: owns the session, follows the engine, and posts pictures.

Invariant: nothing here touches a widget, and the app never waits for it. Its share of a core is bounded: after a
reading that took c seconds of processor time it rests for at least REST times c. An engine that dies is looked for
again, less and less often. Started and stopped by the app.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from textual.message import Message

from agent.errors import KvctlError
from agent.model.decision import Decision
from agent.model.snapshot import Snapshot

from ..hints import aim_report
from .history import History
from .link import Link
from .messages import Arriving, Drawn, Lost
from .picture import NEEDS_REFERENCES, NEEDS_TABLE, Pane, Picture, report_of

REST = 4.0
"""Seconds of rest for each second of processor time: a fifth of a core at most, whatever the size of the pool."""

POLL_S = 0.5
"""Pause between two looks into the ring."""

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
DECISIONS_KEPT = 1000
SERIES_CELLS = 100
"""Slices of the history; a narrower screen shows the latest ones."""


class Feed:
    """Reads and posts until it is stopped.

    Args:
        link: What to read.
        post: Takes messages from any thread.
        interval_s: Seconds between two pictures.
        target: Options that choose what is shown, for commands that a text names.
    """

    def __init__(self, link: Link, post: Callable[[Message], object], interval_s: float, target: str = "") -> None:
        self._link = link
        self._post = post
        self._interval_s = interval_s
        self._target = target
        self._pane = Pane.OVERVIEW
        self._drawn: Pane | None = None
        self._paused = False
        self._ending = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvctl-top-feed", daemon=True)
        self._next_read = 0.0
        self._engine: tuple[int, int] | None = None
        self._decisions: dict[int, Decision] = {}
        self._history = History()
        self._forgotten = 0
        """Number of the latest decision that is no longer kept."""
        self._last: Snapshot | None = None
        self._unexplained: str | None = None

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self, deadline_s: float = 0.5) -> None:
        """End; a reading that is under way is not waited for longer than ``deadline_s``."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(deadline_s)

    def want(self, pane: Pane) -> None:
        """Read for this screen from now on."""
        self._pane = pane
        self._wake.set()

    def pause(self, *, on: bool) -> None:
        """Post nothing for a while; decisions are still followed, so that none is lost."""
        self._paused = on
        self._next_read = 0.0
        self._wake.set()

    def every(self, interval_s: float) -> None:
        """Change the pause between two pictures."""
        self._interval_s = interval_s
        self._next_read = 0.0
        self._wake.set()

    def _run(self) -> None:
        connected, tries = False, 0
        while not self._ending:
            self._wake.clear()
            try:
                if not connected:
                    self._connect()
                    connected = True
                self._tick()
                tries = 0
                pause_s = POLL_S if self._link.live else None
            except KvctlError as error:
                connected = False
                pause_s = BACKOFF_S[min(tries, len(BACKOFF_S) - 1)] if self._link.live else None
                tries += 1
                self._link.close()
                self._post(Lost(error, pause_s))
            self._wake.wait(pause_s)
        self._link.close()

    def _connect(self) -> None:
        self._link.connect()
        self._next_read, self._drawn = 0.0, None
        # The first picture needs no page table: a million pages take seconds to arrive.
        # Until the feed is joined it is not live: decisions of that time come without their keys.
        self._read(Pane.OVERVIEW, table=False, arriving=0.0)
        self._unexplained = self._link.follow(self._arriving)
        self._drawn = None

    def _arriving(self, ratio: float) -> None:
        self._post(Arriving(ratio))

    def _tick(self) -> None:
        begin = time.thread_time()
        fresh = self._link.poll()
        self._take(fresh)
        pane = self._pane
        if self._paused and self._drawn is pane:
            return
        due = self._link.live and time.monotonic() >= self._next_read
        if due or pane is not self._drawn:
            self._read(pane, table=pane in NEEDS_TABLE)
            self._next_read = time.monotonic() + max(self._interval_s, REST * (time.thread_time() - begin))
        elif fresh and pane is Pane.DECISIONS and self._last is not None:
            self._show(pane, self._last)

    def _read(self, pane: Pane, *, table: bool, arriving: float | None = None) -> None:
        snapshot = self._link.read(table=table, references=table and pane in NEEDS_REFERENCES)
        engine = (snapshot.engine.pid, snapshot.engine.start_ticks)
        if engine != self._engine:
            self._engine, self._decisions, self._forgotten, self._history = engine, {}, 0, History()
        self._take(snapshot.decisions or ())
        self._show(pane, snapshot, arriving)

    def _show(self, pane: Pane, snapshot: Snapshot, arriving: float | None = None) -> None:
        """Post a picture of a reading with the decisions that have come since."""
        if snapshot.decisions is not None:
            latest = tuple(self._decisions[number] for number in sorted(self._decisions))
            snapshot = replace(snapshot, decisions=latest)
        now_s = int(time.time()) if self._link.live else None
        self._last, self._drawn = snapshot, pane
        report = report_of(pane, snapshot)
        picture = Picture(
            pane=pane,
            snapshot=snapshot,
            report=None if report is None else aim_report(report, self._target),
            series=self._history.series(SERIES_CELLS, now_s=now_s),
            live=self._link.live,
            unexplained=self._unexplained,
        )
        self._post(Drawn(picture, arriving if self._link.live else None))

    def _take(self, decisions: Iterable[Decision]) -> None:
        """Remember decisions; one that is explained replaces the same one unexplained, and is counted once.

        One that was explained here has its keys, which those of other readers have not.
        """
        counted = []
        for item in decisions:
            known = self._decisions.get(item.id)
            new = known is None and item.id > self._forgotten
            explained = known is not None and known.logical is None and item.logical is not None
            if new or explained:
                counted.append(item)
            here = known is not None and known.shared and item.logical is not None and not item.shared
            if new or explained or here:
                self._decisions[item.id] = item
        self._history.add(counted)
        for number in sorted(self._decisions)[:-DECISIONS_KEPT]:
            del self._decisions[number]
            self._forgotten = number
