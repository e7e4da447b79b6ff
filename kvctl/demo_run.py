"""One run of the demo: follows the decisions, breaks what is to be broken, runs the gates, tells what was seen.

Invariant: one session, used by one thread at a time: by the caller, or by a thread of its own while the dashboard has
the screen. Called by the demo command only.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from agent.collect import MAX_LOOKUPS, collect
from agent.gates.runner import run as run_gates
from agent.model.finding import Finding, GateResult
from agent.model.snapshot import Level, Snapshot
from agent.session import open_target
from inspector.report import Report
from inspector.tui.link import EngineLink
from inspector.views.demo import Injection, Run
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
_KEPT = 50_000
"""Decisions that the report is made of: those of the last hours, where a dashboard stays open for long."""


class DemoRun:
    """Watches one engine.

    Args:
        engine: Running.
        fault: What is to be broken half way, and the codes that should name it.
    """

    def __init__(self, engine: DemoEngine, fault: tuple[str, Sequence[str]] | None) -> None:
        """Connect to the engine and follow its page table."""
        self._engine, self._fault = engine, fault
        self._session = open_target(engine.pid)
        self._session.follow(Level.REFERENCES)
        self._started = time.monotonic()
        self._left = threading.Event()
        self._decisions: deque[Decision] = deque(maxlen=_KEPT)
        self._injection: Injection | None = None
        self._gates: Sequence[GateResult] = ()
        self._snapshot: Snapshot | None = None

    def headless(self, seconds: float) -> None:
        """Follow for so long; a fault comes half way, and ends the run when it was looked for."""
        if self._fault is None:
            self._follow(seconds)
        else:
            self._follow(seconds / 2)
            self._break(*self._fault)
        self._finish()

    def dashboard(self) -> None:
        """Show the dashboard until it is left; a fault comes when the cache has filled."""
        link = EngineLink(partial(open_target, self._engine.pid), _TIMEOUT_S)
        with ThreadPoolExecutor(1, thread_name_prefix="demo") as pool:
            behind = pool.submit(self._behind)
            try:
                show(link, interval_s=_INTERVAL_S, timeout_s=_TIMEOUT_S)
            finally:
                self._left.set()
            behind.result()  # what ended it, if something did
        if self._fault is not None and self._injection is None:
            fault, expected = self._fault
            self._injection = Injection(fault=fault, expected=expected, found=(), after_s=None, injected=False)
        self._finish()

    def _behind(self) -> None:
        if self._fault is not None:
            self._follow(_FILL_S)
            if not self._left.is_set():
                self._break(*self._fault)
        self._follow(None)

    def _follow(self, seconds: float | None) -> None:
        end = None if seconds is None else self._started + seconds
        while not self._left.is_set() and (end is None or time.monotonic() < end):
            self._decisions.extend(self._session.poll())
            self._left.wait(_POLL_S)

    def _finish(self) -> None:
        # What was broken may heal: the run ends with what the gates saw of it when it was found.
        if not self._gates:
            self._gates = self._look()

    def _look(self) -> Sequence[GateResult]:
        self._decisions.extend(self._session.poll())
        self._snapshot = collect(self._session, self._session.snapshot(free_list=True, lookups=MAX_LOOKUPS))
        return run_gates(self._snapshot)

    def _break(self, fault: str, expected: Sequence[str]) -> None:
        before = {finding.sentence for finding in _with(expected, self._look())}
        self._engine.inject(fault)
        began, found, over = time.monotonic(), list[Finding](), False
        while not found and not over:
            over = self._left.is_set() or time.monotonic() - began > _FIND_S  # one last look when it is
            self._gates = self._look()
            found = [finding for finding in _with(expected, self._gates) if finding.sentence not in before]
            if not found:
                self._left.wait(_LOOK_S)
        after_s = time.monotonic() - began if found else None
        self._injection = Injection(fault=fault, expected=expected, found=found, after_s=after_s)

    def report(self) -> tuple[Report, bool]:
        """Return the report, and whether everything that was broken was found; ends the session."""
        run = Run(
            seconds=time.monotonic() - self._started,
            geometry=self._session.geometry,
            decisions=list(self._decisions),
            gates=self._gates,
            injection=self._injection,
            tiers=() if self._snapshot is None else self._snapshot.tiers or (),
        )
        self._session.close()
        return view(run), self._injection is None or self._injection.after_s is not None


def _with(codes: Sequence[str], gates: Sequence[GateResult]) -> list[Finding]:
    """Return the findings with one of these codes."""
    return [finding for result in gates for finding in result.findings if finding.code in codes]
