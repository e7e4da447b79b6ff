"""One reuse decision: a look-up of one request and everything needed to explain it."""

from dataclasses import dataclass
from enum import StrEnum

from .states import GroupId, State, Tokens


class Outcome(StrEnum):
    """What became of a look-up, in the order of the degradation chain."""

    REUSE = "reuse"
    PARTIAL = "partial"
    PREFETCHING = "prefetching"
    RECOMPUTE = "recompute"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """First admission of a request, or a resumption after preemption. The two are counted apart."""

    FIRST = "first"
    RESUMED = "resumed"


class Reason(StrEnum):
    """Why tokens were not reused. A closed list; every member has an explain text."""

    COLD = "cold"
    EVICTED = "evicted"
    NOT_RETAINED = "not_retained"
    WINDOW_HOLE = "window_hole"
    TAIL_MISSING = "tail_missing"
    CHECKPOINT_MISSING = "checkpoint_missing"
    INDEXER_UNSYNCED = "indexer_unsynced"
    INVALIDATED = "invalidated"
    BELOW_GRANULARITY = "below_granularity"
    NOT_READY = "not_ready"
    FINGERPRINT = "fingerprint"
    IDENTITY = "identity"
    SKIPPED = "skipped"
    ALIGNMENT = "alignment"
    LAST_TOKEN = "last_token"  # noqa: S105 - a token of text
    DRAFT_MARGIN = "draft_margin"
    UNKNOWN = "unknown"


BY_DESIGN = frozenset({Reason.ALIGNMENT, Reason.LAST_TOKEN, Reason.DRAFT_MARGIN})
"""Losses that are no degradation."""


class Fidelity(StrEnum):
    """How close a recovery comes to a full computation."""

    EXACT = "exact"
    REPLAY_EXACT = "replay_exact"
    REPLAY_APPROXIMATE = "replay_approximate"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallStep:
    """One step of the fixed point: a group (or a rule of the engine) lowered the common boundary."""

    group: GroupId | None
    """The group that caused the step; None for alignment, last token and draft margin."""
    reason: Reason
    from_tokens: Tokens
    to_tokens: Tokens
    round: int = 0
    """Round of the fixed point, from 0."""

    @property
    def lost(self) -> Tokens:
        """Tokens lost in this step."""
        return self.from_tokens - self.to_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a prefix is worth now: computed from the page table, independently of the engine."""

    logical: Tokens
    usable: Tokens | None
    """None where a group of unknown kind makes it unknowable."""
    per_group: tuple[Tokens | None, ...]
    """Each group's own longest hit, indexed by group id; None where it has none: kind unknown, or not cacheable."""
    limiting_group: GroupId | None
    """The group with the largest sum of losses, ties to the lowest id; None when nothing was lost to a group."""
    limiting_state: State | None
    reason: Reason | None
    """Main reason of the loss between logical and usable; None when there is none."""
    waterfall: tuple[WaterfallStep, ...] = ()
    limit: Tokens = 0
    """Largest boundary that may be hit: tokens - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One admitted look-up. What was not read is None and is shown as ``unknown``."""

    id: int
    """Sequence number in the probe, from 1; unique for one engine instance."""
    time_ns: int
    """Wall clock, nanoseconds since the epoch."""
    step: int
    """Schedule call that admitted the request."""
    request: str
    """The engine's request id: free text chosen by a client; a renderer must clean it."""
    phase: Phase
    outcome: Outcome
    lookup_tokens: Tokens
    """Tokens of the request at the look-up."""
    engine_usable: Tokens
    """What the engine reused locally."""
    logical: Tokens | None
    usable: Tokens | None
    """What our rules say from the table at the look-up; None where no table was at hand."""
    external: Tokens
    """Tokens that a connector brought from another tier."""
    limiting_group: GroupId | None
    limiting_state: State | None
    reason: Reason | None
    lost: tuple[tuple[Reason, GroupId | None, Tokens], ...] = ()
    """Tokens lost for each reason and group (None: no single group: by design, or no group has it)."""
    per_group: tuple[Tokens | None, ...] | None = None
    waterfall: tuple[WaterfallStep, ...] = ()
    lookups: int = 1
    """How often the request was looked up before it was admitted."""
    skipped: bool = False
    """The request asked not to read the cache."""
    duration_ns: int | None = None
    """Time spent in the look-up that was admitted."""
    epoch: int | None = None
    """Feed epoch of the table the explanation was made from."""
    trace: tuple[tuple[str, str], ...] = ()
    """Trace headers (``traceparent``, ``tracestate``) that the engine handed over."""
    fidelity: Fidelity | None = None
    chain: tuple[bytes, ...] | None = None
    """Keys of the request at each hash unit, sampled; never printed without ``--reveal``."""
    shared: bool = False
    """Explained by another reader, which followed the engine when it was made; this one only read that."""

    @property
    def degraded(self) -> bool:
        """Whether something that was cached could not be used, and not by design."""
        if self.logical is None or self.logical <= self.engine_usable:
            return False
        designed = sum(tokens for reason, _, tokens in self.lost if reason in BY_DESIGN)
        return self.reason not in BY_DESIGN and self.logical - self.engine_usable > designed
