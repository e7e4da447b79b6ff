"""One run of the demo: follows the decisions, breaks what is to be broken, runs the gates, tells what was seen.

Invariant: one session, used by one thread at a time: by the caller, or by a thread of its own while the dashboard has
the screen, which is not waited for when that is left. A lost engine ends the run, not the report. Called by the demo
command only.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent.collect import MAX_LOOKUPS, collect
from agent.errors import KvctlError
from agent.gates.runner import run as run_gates
from agent.model.finding import Finding, GateResult
from agent.model.snapshot import Level, Snapshot
from agent.session import Session, open_target
from inspector.report import Report
from inspector.tui.link import EngineLink
from inspector.views.demo import Injection, Looked, Run
from inspector.views.demo import demo as view

from .dashboard import show
from .demo_engine import DemoEngine

if TYPE_CHECKING:
    from agent.model.decision import Decision

_POLL_S = 0.05
_LOOK_S = 0.1
"""Pause between two runs of the gates while a fault is looked for: some heal as pages are used again."""
_FIND_S = 30.0
"""How long a fault is looked for."""
_FILL_S = 10.0
"""Time for the cache to fill before something is broken under the dashboard."""
_INTERVAL_S = 1.0
_TIMEOUT_S = 30.0
_LEAVE_S = 0.8
"""How long a look that is under way is waited for when the dashboard is left."""
_AGAIN_S = 15.0
"""Pause between two looks under the dashboard: the report does without one of its own where that takes too long."""
_KEPT = 50_000
"""Decisions that the report is made of: those of the last hours, where a dashboard stays open for long."""


def _opened(pid: int) -> Session:
    """Open the demo's engine; a demo that is killed leaves no socket."""
    session = open_target(pid)
    session.serves = False
    return session


class DemoRun:
    """Watches one engine.

    Args:
        engine: Running.
        fault: What is to be broken half way, and the codes that should name it.
    """

    def __init__(self, engine: DemoEngine, fault: tuple[str, Sequence[str]] | None) -> None:
        """Connect to the engine and follow its page table."""
        self._engine, self._fault = engine, fault
        self._session = _opened(engine.pid)
        self._session.follow(Level.REFERENCES)
        self._started = time.monotonic()
        self._left = threading.Event()
        self._decisions: deque[Decision] = deque(maxlen=_KEPT)
        self._injection: Injection | None = None
        self._gates: Sequence[GateResult] = ()
        self._snapshot: Snapshot | None = None
        self._busy = False
        """The thread behind the dashboard still uses the session."""
        self.lost: KvctlError | None = None
        """What ended the run before its time: the engine died, or answered no more."""

    def headless(self, seconds: float) -> None:
        """Follow for so long; a fault comes half way, and ends the run when it was looked for."""
        self._until_lost(partial(self._watch, seconds if self._fault is None else seconds / 2))

    def _watch(self, seconds: float) -> None:
        self._follow(seconds)
        if self._fault is not None:
            self._break(*self._fault)
        # What was broken may heal: the run ends with what the gates saw of it when it was found.
        if not self._gates:
            self._gates = self._look()

    def _until_lost(self, run: Callable[[], None]) -> None:
        try:
            run()
        except KvctlError as error:
            self.lost = error

    def dashboard(self) -> None:
        """Show the dashboard until it is left; a fault comes when the cache has filled."""
        link = EngineLink(partial(_opened, self._engine.pid), _TIMEOUT_S)
        behind = threading.Thread(target=self._until_lost, args=(self._behind,), name="demo", daemon=True)
        behind.start()
        try:
            show(link, interval_s=_INTERVAL_S, timeout_s=_TIMEOUT_S)
        finally:
            self._left.set()
        behind.join(_LEAVE_S)
        self._busy = behind.is_alive()

    def _behind(self) -> None:
        if self._fault is not None:
            self._follow(_FILL_S)
            if not self._left.is_set():
                self._break(*self._fault)
        while not self._left.is_set():
            self._follow(time.monotonic() - self._started + _AGAIN_S)
            # A fault may heal: what the gates saw of it when it was found stays.
            if self._injection is None:
                self._gates = self._look()

    def _follow(self, seconds: float | None) -> None:
        end = None if seconds is None else self._started + seconds
        while not self._left.is_set() and (end is None or time.monotonic() < end):
            self._decisions.extend(self._session.poll())
            self._left.wait(_POLL_S)

    def _look(self) -> Sequence[GateResult]:
        self._decisions.extend(self._session.poll())
        self._snapshot = collect(self._session, self._session.snapshot(free_list=True, lookups=MAX_LOOKUPS))
        return run_gates(self._snapshot)

    def _break(self, fault: str, expected: Sequence[str]) -> None:
        before = {finding.sentence for finding in _with(expected, self._look())}
        stood = self._counters(expected)
        self._engine.inject(fault)
        began, found, over = time.monotonic(), list[Finding](), False
        counted = dict[str, int]()
        self._injection = Injection(fault=fault, expected=expected, found=(), after_s=None, state=Looked.INTERRUPTED)
        while not found and not counted and not over:
            over = self._left.is_set() or time.monotonic() - began > _FIND_S  # one last look when it is
            self._gates = self._look()
            found = [finding for finding in _with(expected, self._gates) if finding.sentence not in before]
            rises = {name: value - stood.get(name, 0) for name, value in self._counters(expected).items()}
            counted = {name: rise for name, rise in rises.items() if rise > 0}
            if not found and not counted:
                self._left.wait(_LOOK_S)
        after_s = time.monotonic() - began if found or counted else None
        self._injection = replace(self._injection, found=found, counted=counted, after_s=after_s, state=Looked.DONE)

    def _counters(self, expected: Sequence[str]) -> dict[str, int]:
        """Return what the tiers count under these names, as of the last look."""
        tiers = () if self._snapshot is None else self._snapshot.tiers or ()
        return {name: int(value) for tier in tiers for name, value in tier.details.items() if name in expected}

    def report(self) -> tuple[Report, bool]:
        """Return the report, and whether everything that was broken was found; ends the session where it is free."""
        injection = self._injection
        if injection is None and self._fault is not None:
            fault, expected = self._fault
            injection = Injection(fault=fault, expected=expected, found=(), after_s=None, state=Looked.NOT_YET)
        run = Run(
            seconds=time.monotonic() - self._started,
            geometry=self._session.geometry,
            decisions=self._decisions.copy(),
            gates=self._gates,
            injection=injection,
            tiers=() if self._snapshot is None else self._snapshot.tiers or (),
            lost=None if self.lost is None else self.lost.what,
        )
        if not self._busy:
            self._session.close()
        return view(run), injection is None or injection.after_s is not None


def _with(codes: Sequence[str], gates: Sequence[GateResult]) -> list[Finding]:
    """Return the findings with one of these codes."""
    return [finding for result in gates for finding in result.findings if finding.code in codes]
