"""Small look-ups without an engine: keys in a set, a ghost that is asked by group, records as the probe makes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agent.model.decision import Decision, Outcome, Phase
from agent.model.groups import Geometry, Group
from agent.model.states import GroupId, ResumeKind, Tokens


@dataclass(slots=True)
class Cache:
    """A page table that registers and evicts as an engine with dense or sparse retention does."""

    geometry: Geometry
    held: set[tuple[int, bytes]] = field(default_factory=set)
    registered: set[tuple[int, bytes]] = field(default_factory=set)

    def has(self, group: GroupId, key: bytes, /) -> bool:
        """See ``agent.resume.Presence``."""
        return (group, key) in self.held

    def register(self, group: int, chain: Sequence[bytes], ends: Iterable[Tokens]) -> None:
        """Register the pages of a group that end at these boundaries."""
        keys = {(group, chain[end // self.geometry.hash_unit - 1]) for end in ends}
        self.held |= keys
        self.registered |= keys

    def prompt(self, chain: Sequence[bytes], tokens: Tokens) -> None:
        """Register what vLLM does for a prompt under the geometry's retention rule."""
        unit, interval = self.geometry.alignment, self.geometry.retention_interval
        top = tokens // unit * unit
        step = unit if interval is None else interval
        boundaries = {(tokens - 1) // unit * unit} | (set(range(step, top + 1, step)) if step else set())
        for group in self.geometry.groups:
            for boundary in [top] if group.kind in {ResumeKind.FULL, ResumeKind.CHUNKED} else sorted(boundaries):
                self.register(group.id, chain, _tail(group, boundary))

    def evict(self, group: int, chain: Sequence[bytes], end: Tokens) -> None:
        """Lose one page."""
        self.held.remove((group, chain[end // self.geometry.hash_unit - 1]))

    def ghost(self, *, complete: bool = True) -> "Memory":
        """Give a memory of everything that was ever registered."""
        return Memory(frozenset(self.registered), complete)


@dataclass(frozen=True, slots=True)
class Memory:
    """A ghost: what was registered; unknown keys are certain only if it is complete."""

    registered: frozenset[tuple[int, bytes]]
    complete: bool

    def seen(self, group: GroupId | None, key: bytes, /) -> bool | None:
        """See ``agent.resume.Ghost``."""
        found = any(known == key and group in {None, owner} for owner, known in self.registered)
        return True if found else False if self.complete else None

    def taken(self, group: GroupId | None, key: bytes, /) -> bool:
        """Nobody takes anything out on purpose here."""
        del group, key
        return False


def _tail(group: Group, boundary: Tokens) -> range:
    block = group.block_size
    match group.kind:
        case ResumeKind.FULL | ResumeKind.CHUNKED:
            start = 0
        case ResumeKind.WINDOW:
            start = max(0, boundary - (group.window_past_tokens or 0)) // block * block
        case ResumeKind.RECURRENT:
            start = boundary - block
        case _:
            return range(0)
    return range(start + block, boundary + 1, block)


def record(
    chain: Sequence[bytes] | None,
    tokens: Tokens,
    engine_usable: Tokens = 0,
    *,
    phase: Phase = Phase.FIRST,
    lookups: int = 1,
    skipped: bool = False,
    external: Tokens = 0,
    outcome: Outcome = Outcome.UNKNOWN,
) -> Decision:
    """Make a decision as the engine side records it: analysis fields None."""
    return Decision(
        id=1, time_ns=0, step=1, request="r", phase=phase, outcome=outcome, lookup_tokens=tokens,
        engine_usable=engine_usable, logical=None, usable=None, external=external, limiting_group=None,
        limiting_state=None, reason=None, lookups=lookups, skipped=skipped,
        chain=None if chain is None else tuple(chain),
    )  # fmt: skip
