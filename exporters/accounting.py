"""Decisions turned into sums, and the books in the engine that they go to.

Invariant: a decision is counted exactly once, whoever exports and however often: posts are contiguous by decision
number and the engine's ledger takes each of them whole or not at all. Used by :mod:`exporters.source`, on its thread.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from agent.model.decision import Decision, Reason
from agent.model.groups import Geometry
from agent.model.states import GroupId

from .labels import NONE, clean_label, key_of

PENDING_LIMIT: Final = 20_000
"""Decisions kept while another exporter holds the lease, or the engine does not answer; the oldest go first."""

POST_LIMIT: Final = 2_000
"""Decisions in one post."""

LOST_LOOKS: Final = 30
"""Looks at the books, about a second apart, without any progress, after which decisions that never arrived are counted
as unexplained. A new bootstrap after an overrun takes up to 15 s."""


class Books(Protocol):
    """The part of a session that accounting needs."""

    def call(self, op: str, /, *, deadline_s: float = ..., **args: Any) -> dict[str, Any]:
        """Run an operation of the probe."""
        ...

    def decisions(self, *, since: int = 0, limit: int = 1000) -> tuple[Decision, ...]:
        """Read decisions as the probe recorded them, explained as far as any reader did that."""
        ...


def tally(decisions: Iterable[Decision], geometry: Geometry) -> Counter[str]:
    """Return what decisions add to each key of the ledger."""
    adds: Counter[str] = Counter()
    for decision in decisions:
        phase = {"phase": decision.phase.value}
        adds[key_of("reuse_outcomes", {"outcome": decision.outcome.value, **phase})] += 1
        if decision.logical is None or decision.usable is None:
            # Who asked not to read the cache is explained by that.
            adds["reuse_unexplained_decisions"] += 0 if decision.skipped else 1
            continue
        adds[key_of("reuse_explained_decisions", phase)] += 1
        adds[key_of("reuse_explained_tokens", phase)] += decision.lookup_tokens
        adds[key_of("reuse_logical_tokens", phase)] += decision.logical
        adds[key_of("reuse_usable_tokens", phase)] += decision.usable
        for reason, group, tokens in decision.lost:
            adds[_lost(geometry, reason, group)] += tokens
        if decision.engine_usable != decision.usable and not decision.skipped:
            kind = "more" if decision.engine_usable > decision.usable else "less"
            adds[key_of("reuse_disagreements", {"kind": kind})] += 1
        if decision.degraded:
            adds[key_of("degradations", _where(geometry, decision.limiting_group))] += 1
    return adds


def _lost(geometry: Geometry, reason: Reason, group: GroupId | None) -> str:
    return key_of("reuse_lost_tokens", {**_where(geometry, group), "reason": reason.value})


def _where(geometry: Geometry, group: GroupId | None) -> Mapping[str, str]:
    if group is None or not 0 <= group < len(geometry.groups):
        return {"state": NONE, "group": NONE}
    found = geometry.groups[group]
    return {"state": found.state.value, "group": clean_label(found.name)}


class Accountant:
    """Post the decisions of one engine to its ledger.

    Args:
        books: The engine.
        geometry: Its groups.
        holder: Name of this exporter, the same for all its connections to an engine.
    """

    def __init__(self, books: Books, geometry: Geometry, *, holder: str) -> None:
        self._books = books
        self._geometry = geometry
        self._holder = holder
        self._pending: deque[Decision] = deque(maxlen=PENDING_LIMIT)
        self.accounted = 0
        self.granted = False
        """Whether this exporter held the lease at the last look."""
        self._stuck: tuple[int, int] | None = None
        """Where the books stood at an earlier look, and the last decision at that time."""
        self._looks_stuck = 0

    def add(self, decisions: Iterable[Decision]) -> None:
        """Take over decisions, oldest first."""
        self._pending.extend(decisions)

    @property
    def pending(self) -> int:
        """Decisions that are not in the books yet."""
        return len(self._pending)

    def look(self) -> None:
        """Take or renew the lease, post what is there, and give up on what will not come any more.

        Raises:
            KvctlError: The engine does not answer; nothing is lost or counted twice.
        """
        last = int(self._ask()["last"])
        while self.granted and self._pending:
            self._post(list(self._upto_gap()))
        behind = self.granted and self.accounted < last
        if not behind or self._stuck is None or self._stuck[0] != self.accounted:
            self._stuck = (self.accounted, last) if behind else None
            self._looks_stuck = 0
            return
        self._looks_stuck += 1
        if self._looks_stuck >= LOST_LOOKS:
            self._fill(self._stuck[1] + 1)

    def last(self) -> int:
        """Return the number of the engine's latest decision."""
        return int(self._ask()["last"])

    def skip_to(self, last: int) -> None:
        """Count what was decided before this exporter followed, with what the engine and its other readers know."""
        self._ask()
        self._fill(last + 1)

    def release(self) -> None:
        """Give the lease to whoever comes next."""
        if self.granted:
            self._books.call("account", holder=self._holder, release=True)
            self.granted = False

    def _upto_gap(self) -> Iterable[Decision]:
        """Yield what continues the books without a gap; a gap before it is filled first."""
        if self._pending[0].id > self.accounted + 1:
            self._fill(self._pending[0].id)
        expected = self.accounted + 1
        for decision in self._pending:
            if decision.id != expected or decision.id > self.accounted + POST_LIMIT:
                break
            yield decision
            expected += 1

    def _fill(self, before: int) -> None:
        """Account for decisions up to ``before`` that never came through the feed; another reader may have them."""
        while self.granted and self.accounted + 1 < before:
            first = self.accounted + 1
            found = [
                one
                for one in self._books.decisions(since=self.accounted, limit=PENDING_LIMIT)
                if first <= one.id < before
            ]
            upto = found[-1].id if found else before - 1
            adds = tally(found, self._geometry)
            # The probe has forgotten the rest: that they were made is all that is known.
            adds["reuse_unexplained_decisions"] += upto - self.accounted - len(found)
            if not self._send(upto, adds):
                return

    def _post(self, decisions: list[Decision]) -> None:
        if decisions:
            self._send(decisions[-1].id, tally(decisions, self._geometry))

    def _send(self, upto: int, adds: Mapping[str, float]) -> bool:
        answer = self._ask(after=self.accounted, upto=upto, adds={key: value for key, value in adds.items() if value})
        return bool(answer["applied"])

    def _ask(self, **post: Any) -> dict[str, Any]:
        answer = self._books.call("account", holder=self._holder, **post)
        self.granted = bool(answer["granted"])
        self.accounted = int(answer["accounted"])
        while self._pending and self._pending[0].id <= self.accounted:
            self._pending.popleft()
        return answer
