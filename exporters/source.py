"""One engine, read for as long as it lives: follows its decisions, keeps its books, reads its table now and then.

Invariant: the engine is never waited for by whoever asks for a reading, and a reading never mixes two engines; a lost
connection is taken up again, later and later. One thread for each engine, which alone uses the session.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agent.errors import DeadlineError, InconclusiveError, KvctlError, UnsupportedError
from agent.model.decision import Decision
from agent.model.groups import Geometry
from agent.model.snapshot import EngineInfo, Level, Snapshot

from .accounting import Accountant
from .catalogue import CATALOGUE, Reading, Sample
from .labels import clean_label
from .readings import GateTotals, Pauses, of_counters, of_snapshot

POLL_S: Final = 0.25
LOOK_S: Final = 1.0
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0
FOLLOW_AGAIN_S: Final = 60.0
CALL_S: Final = 10.0


class Live(Protocol):
    """The part of :class:`agent.session.Session` that an exporter needs."""

    @property
    def info(self) -> EngineInfo:
        """Which engine it is."""
        ...

    @property
    def geometry(self) -> Geometry:
        """Its groups."""
        ...

    def call(self, op: str, /, *, deadline_s: float = ..., **args: Any) -> dict[str, Any]:
        """Run an operation."""
        ...

    def follow(self, level: Level = ..., *, deadline_s: float = ...) -> None:
        """Join the feed."""
        ...

    def poll(self) -> tuple[Decision, ...]:
        """Return new decisions, explained."""
        ...

    def decisions(self, *, since: int = 0, limit: int = 1000) -> tuple[Decision, ...]:
        """Return recorded decisions, explained as far as any reader did that."""
        ...

    def snapshot(self, *, tables: bool = True, free_list: bool = False, deadline_s: float = ...) -> Snapshot:
        """Read the page table."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What an engine is called in metrics and spans."""

    engine: str
    """Label, unique in this exporter."""
    model: str
    start_ns: int
    info: EngineInfo
    geometry: Geometry

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Further attributes of its resource in OpenTelemetry."""
        return (
            ("kvctl.engine.kind", clean_label(self.info.engine)),
            ("kvctl.engine.version", clean_label(self.info.version)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often things are read. Seconds; None: never."""

    pages_s: float | None = 15.0
    gates_s: float | None = 60.0
    poll_s: float = POLL_S
    look_s: float = LOOK_S
    first_retry_s: float = FIRST_RETRY_S


Sink = Callable[[Identity, tuple[Decision, ...]], None]
"""Takes decisions on; must not block."""


Analysis = Callable[[Snapshot], list[Sample]]
"""Makes samples of a page table."""


class Judgement:
    """What the gates and further analysis say of the latest table that they were shown.

    A million pages take a second or two, in which decisions must go on being read: each run has a thread of its own. A
    run that fails takes its own samples away, and nothing else.

    Args:
        analyse: Makes further samples.
    """

    def __init__(self, analyse: Analysis | None) -> None:
        self._gates = GateTotals()
        self._analyse = analyse
        self._samples: list[Sample] = []
        self._thread: threading.Thread | None = None

    def judge(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        """Begin to run the gates and to analyse, unless the run before has not ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, args=(snapshot, previous), name="kvctl-gates", daemon=True)
        self._thread.start()

    def samples(self) -> list[Sample]:
        """Return the samples of the latest run; none before the first, and none after one that failed."""
        return self._samples

    def _run(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        from agent.gates.runner import run  # noqa: PLC0415 - an exporter without gates does without them

        found: list[Sample] = []
        try:
            self._gates.add(run(snapshot, previous=previous))
            more = self._analyse(snapshot) if self._analyse is not None else []
            found = [*self._gates.samples(), *more]
        finally:
            self._samples = found


class Source:
    """Read one engine on a thread of its own.

    Args:
        opener: Opens a session with this engine, and only this one.
        name: Gives an engine its label and the time of its start.
        sink: Receives the decisions.
        analyse: Makes further samples of a page table, as often as the gates run.
        rhythm: How often.
        note: Receives a sentence when the engine is lost or found again.
    """

    def __init__(
        self,
        opener: Callable[[], Live],
        name: Callable[[EngineInfo, Geometry], Identity],
        *,
        sink: Sink | None = None,
        analyse: Analysis | None = None,
        rhythm: Rhythm | None = None,
        note: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._opener = opener
        self._name = name
        self._sink = sink
        self._judgement = Judgement(analyse)
        self._rhythm = rhythm or Rhythm()
        self._note = note
        self._stop = threading.Event()
        self._pauses = Pauses()
        self._began_ns = time.time_ns()
        self._holder = secrets.token_hex(8)
        self._retry_s = self._rhythm.first_retry_s
        self._lost = False
        self.identity: Identity | None = None
        """None until the engine answered for the first time."""
        self._reading: Reading | None = None
        self._thread = threading.Thread(target=self._run, name="kvctl-source", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; the lease is given back."""
        self.ask_to_stop()
        self._thread.join(timeout_s)

    def ask_to_stop(self) -> None:
        """Let the thread end soon, without waiting for it."""
        self._stop.set()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def reading(self) -> Reading | None:
        """The latest reading; None until there is one."""
        return self._reading

    # ----------------------------------------------------------------- thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                session = self._opener()
            except KvctlError as error:
                self._down(error)
                continue
            try:
                self._serve(session)
            except KvctlError as error:
                self._down(error)
            finally:
                session.close()

    def _down(self, error: KvctlError) -> None:
        if self.identity is not None:
            self._publish([])
        if not self._lost:
            self._lost = True
            why = f" ({error.why})" if error.why else ""
            self._note(f"{error.what}{why}; trying again")
        self._stop.wait(self._retry_s)
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2)

    def _serve(self, session: Live) -> None:
        self.identity = identity = self._name(session.info, session.geometry)
        accountant = Accountant(session, session.geometry, holder=self._holder)
        visit = _Visit(
            session,
            identity,
            self._rhythm,
            accountant,
            judgement=self._judgement,
            pauses=self._pauses,
            note=self._note,
        )
        visit.begin()
        if self._lost:
            self._note(f"reading {identity.engine} again")
        self._lost, self._retry_s = False, self._rhythm.first_retry_s
        while not self._stop.is_set():
            decisions = visit.take_decisions()
            if decisions and self._sink is not None:
                self._sink(identity, decisions)
            samples = visit.samples(news=bool(decisions))
            if samples is not None:
                self._publish([*samples, Sample(metric=CATALOGUE["up"], value=1)])
            self._stop.wait(self._rhythm.poll_s)
        accountant.release()

    def _publish(self, samples: list[Sample]) -> None:
        identity = self.identity
        if identity is None:
            return
        self._reading = Reading(
            engine=identity.engine,
            model=identity.model,
            start_ns=identity.start_ns,
            exporter_start_ns=self._began_ns,
            taken_ns=time.time_ns(),
            samples=tuple(samples) or (Sample(metric=CATALOGUE["up"], value=0),),
            attributes=identity.attributes,
        )


class _Visit:
    """One connection to the engine, from joining the feed to its loss."""

    def __init__(
        self,
        session: Live,
        identity: Identity,
        rhythm: Rhythm,
        accountant: Accountant,
        *,
        judgement: "Judgement",
        pauses: Pauses,
        note: Callable[[str], None],
    ) -> None:
        self._session = session
        self._identity = identity
        self._rhythm = rhythm
        self._judgement = judgement
        self._pauses = pauses
        self._note = note
        self._accountant = accountant
        self._following = False
        self._complaint = ""
        """What was said last about not following: once is enough."""
        self._follow_at = 0.0
        self._seen = 0
        """Number of the latest decision taken without the feed."""
        self._look_at = 0.0
        self._pages_at = 0.0
        self._gates_at = 0.0
        self._snapshot: Snapshot | None = None
        self._table: list[Sample] = []

    def begin(self) -> None:
        """Join the feed where there is one, and square the books with what happened before."""
        before = self._accountant.last()
        self._follow(time.monotonic())
        self._accountant.skip_to(before)
        self._seen = self._accountant.accounted

    def take_decisions(self) -> tuple[Decision, ...]:
        """Return new decisions, explained where the page table is followed."""
        now = time.monotonic()
        if not self._following and now >= self._follow_at:
            self._follow(now)
        if self._following:
            decisions = self._session.poll()
        else:
            decisions = self._session.decisions(since=self._seen, limit=10_000)
            # "Since 0" means the latest ones to the probe: those that are in the books are no news.
            decisions = tuple(one for one in decisions if one.id > max(self._seen, self._accountant.accounted))
        if decisions:
            self._seen = max(self._seen, decisions[-1].id)
        self._accountant.add(decisions)
        return decisions

    def samples(self, *, news: bool) -> list[Sample] | None:
        """Return what is to be shown now; None when nothing is due."""
        now = time.monotonic()
        if not news and now < self._look_at:
            return None
        self._look_at = now + self._rhythm.look_s
        self._accountant.look()
        if self._due(self._pages_at, self._rhythm.pages_s, now):
            self._pages_at = now + (self._rhythm.pages_s or 0.0)
            self._read_table(now)
        return [*self._of_probe(), *self._table, *self._age(), *self._judgement.samples(), *self._pauses.samples()]

    def _due(self, at: float, every_s: float | None, now: float) -> bool:
        return self._following and every_s is not None and now >= at

    def _follow(self, now: float) -> None:
        self._follow_at = now + FOLLOW_AGAIN_S
        try:
            self._session.follow(Level.CONTENT, deadline_s=FOLLOW_AGAIN_S)
        except KvctlError as error:
            # The feed is off, or the breaker is open: the probe's counters say so, if the connection still stands.
            why = f": {error.why}" if error.why else ""
            complaint = f"{self._identity.engine}: decisions are not explained, {error.what}{why}"
            if complaint != self._complaint:
                self._note(complaint)
            self._complaint = complaint
            return
        self._following = True

    def _of_probe(self) -> list[Sample]:
        answer = self._session.call("counters", deadline_s=CALL_S)
        counters = answer.get("counters")
        flags = {"following": self._following, "accounting": self._accountant.granted}
        samples = [Sample(metric=CATALOGUE[name], value=float(on)) for name, on in flags.items()]
        return samples + of_counters(counters if isinstance(counters, dict) else {})

    def _read_table(self, now: float) -> None:
        try:
            snapshot = self._session.snapshot(tables=False, deadline_s=CALL_S)
        except DeadlineError:
            return
        except (UnsupportedError, InconclusiveError):
            self._snapshot, self._table = None, []
            return
        previous, self._snapshot = self._snapshot, snapshot
        self._table = of_snapshot(snapshot)
        if snapshot.capture.pause_ns is not None:
            self._pauses.add(snapshot.capture.pause_ns / 1e9)
        if self._due(self._gates_at, self._rhythm.gates_s, now):
            self._gates_at = now + (self._rhythm.gates_s or 0.0)
            self._judgement.judge(snapshot, previous)

    def _age(self) -> list[Sample]:
        if self._snapshot is None:
            return []
        age_ns = max(0, time.time_ns() - self._snapshot.capture.taken_ns)
        return [Sample(metric=CATALOGUE["snapshot_age_seconds"], value=age_ns / 1e9)]
