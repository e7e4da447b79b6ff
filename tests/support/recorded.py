"""An engine that plays recorded decisions: the probe's own recorder, counters and ledger, with no engine behind them.

Invariant: what a session answers went through JSON as on the socket. Used by the tests of the exporters.
"""

import json
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.discovery import Endpoint, EndpointState
from agent.errors import TargetError, UnsupportedError
from agent.model.decision import Decision, Phase
from agent.model.groups import Geometry
from agent.model.snapshot import EngineInfo, Level, Snapshot
from agent.probe.counters import Counters
from agent.probe.decisions import Recorder
from agent.probe.ledger import Ledger
from agent.probe.options import Options
from tests.support import snapshots


class RecordedEngine:
    """One engine process.

    Args:
        pid: Its process id; with ``start_ticks`` its identity.
        name: Served model name.
        feed: Whether its page table can be followed.
    """

    def __init__(self, pid: int = 4_711, *, start_ticks: int = 123_456, name: str = "gemma", feed: bool = True) -> None:
        self.base = snapshots.gemma()
        self.info: EngineInfo = replace(self.base.engine, pid=pid, start_ticks=start_ticks, name=name)
        self.feed = feed
        self.breaker_open = False
        """The probe took its hooks out: the feed ends, the socket still answers."""
        self.alive = True
        self.counters = Counters()
        self.ledger = Ledger()
        self.recorder = Recorder(Options(), self.counters)
        self.log: list[Decision] = []
        """Every decision, explained."""
        self.sessions: list[RecordedSession] = []
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> Endpoint:
        """How discovery sees it."""
        state = EndpointState.LIVE if self.alive else EndpointState.DEAD
        path = Path(f"/run/kvctl/engine-{self.info.pid}-{self.info.start_ticks}.sock")
        return Endpoint(
            path=path, pid=self.info.pid, start_ticks=self.info.start_ticks, part=0, uid=0, state=state, reason=None
        )

    def decide(self, decisions: Iterable[Decision] | None = None) -> list[Decision]:
        """Admit look-ups like these (those of the recorded snapshot by default); return them as they were numbered."""
        made = []
        for decision in self.base.decisions or () if decisions is None else decisions:
            with self.lock:
                stash = f"{decision.request}#{len(self.log)}"
                self.recorder.looked_up(stash, decision.duration_ns or 0)
                self.recorder.brought(stash, decision.external)
                self.recorder.admitted(
                    stash,
                    tokens=decision.lookup_tokens,
                    usable=decision.engine_usable,
                    resumed=decision.phase is Phase.RESUMED,
                    skipped=decision.skipped,
                    hashes=(),
                    trace=dict(decision.trace),
                )
                numbered = replace(decision, id=self.recorder.last)
                self.log.append(numbered)
                made.append(numbered)
                for session in self.sessions:
                    if session.following:
                        session.ring.append(numbered)
        return made

    def open(self, endpoint: Endpoint | None = None) -> "RecordedSession":
        """Open a session."""
        self.check()
        session = RecordedSession(self)
        self.sessions.append(session)
        return session

    def check(self) -> None:
        """Raise like a client whose engine ended."""
        if not self.alive:
            raise TargetError(f"engine {self.info.pid} ended", why="its process is gone")

    def read_counters(self) -> dict[str, float]:
        """All counters, as the probe would answer."""
        return self.counters.read(
            {"probe_breaker_open": float(self.breaker_open), "probe_overhead_seconds": 0.125, **self.ledger.read()}
        )


class RecordedSession:
    """The part of a session that exporters use."""

    def __init__(self, engine: RecordedEngine) -> None:
        self._engine = engine
        self.following = False
        self.ring: deque[Decision] = deque()
        self.snapshots = 0
        self.closed = False
        self.lose_answers = 0
        """How many posts to the ledger get lost on the way back."""

    @property
    def info(self) -> EngineInfo:
        """Which engine."""
        return self._engine.info

    @property
    def geometry(self) -> Geometry:
        """Its groups."""
        return self._engine.base.geometry

    def call(self, op: str, /, *, deadline_s: float = 10.0, **args: Any) -> dict[str, Any]:
        """Answer the two questions that exporters ask."""
        del deadline_s
        self._engine.check()
        args = json.loads(json.dumps(args))
        with self._engine.lock:
            if op == "account":
                answer = self._engine.ledger.account(args, last=self._engine.recorder.last)
            else:
                answer = {"counters": self._engine.read_counters()}
        if op == "account" and "upto" in args and self.lose_answers:
            self.lose_answers -= 1
            raise TargetError("the connection was lost")
        plain: dict[str, Any] = json.loads(json.dumps(answer))
        return plain

    def follow(self, level: Level = Level.CONTENT, *, deadline_s: float = 60.0) -> None:
        """Join."""
        if self._engine.breaker_open:
            raise TargetError("the probe of this engine is off", why="16 of the last 128 steps cost more than 4 ms")
        if not self._engine.feed:
            raise UnsupportedError("the feed is off", why="this engine has an unknown method")
        with self._engine.lock:
            self.following = True

    def poll(self) -> tuple[Decision, ...]:
        """Take what came."""
        self._engine.check()
        if self._engine.breaker_open:
            raise TargetError("the engine's agent has ended the feed")
        with self._engine.lock:
            found = tuple(self.ring)
            self.ring.clear()
        return found

    def decisions(self, *, since: int = 0, limit: int = 1000) -> tuple[Decision, ...]:
        """Read the probe's own ring."""
        self._engine.check()
        return tuple(record.to_decision() for record in self._engine.recorder.since(since, limit))

    def snapshot(self, *, tables: bool = True, free_list: bool = False, deadline_s: float = 10.0) -> Snapshot:
        """Return the recorded table."""
        self._engine.check()
        self.snapshots += 1
        base = self._engine.base
        return replace(base, engine=self._engine.info, capture=replace(base.capture, pause_ns=300_000))

    def close(self) -> None:
        """Leave."""
        self.closed, self.following = True, False
