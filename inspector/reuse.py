"""Sums over decisions: what was looked up, cached, usable, and where the rest went.

Invariant: a decision without a table (``logical`` None) is left out of every sum that needs it and is counted as
unknown, so that ratios compare like with like. Used by the views.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.model.decision import BY_DESIGN, Decision, Outcome, Phase, Reason
from agent.model.groups import Geometry
from agent.model.states import GroupId, Tokens

NOT_CACHED = frozenset(
    {
        Reason.COLD,
        Reason.EVICTED,
        Reason.INVALIDATED,
        Reason.IDENTITY,
        Reason.BELOW_GRANULARITY,
        Reason.NOT_READY,
        Reason.UNKNOWN,
    }
)
"""Reasons that, booked to no group, say why tokens beyond the logical hit were not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Sums over a number of decisions. Tokens."""

    decisions: int
    explained: int
    """Decisions for which a page table was at hand: only these have ``logical``."""
    lookup: Tokens
    """Of the explained ones, like everything below."""
    logical: Tokens
    usable: Tokens
    external: Tokens
    outcomes: Counter[Outcome]
    """Of all decisions."""
    lost: Counter[tuple[Reason, GroupId | None]]
    """Tokens lost between logical and usable for each reason and group; losses by design are not in it."""
    absent: Counter[Reason]
    """Tokens that were not cached at all when they were looked up, for each reason: no loss between the two hits."""
    by_design: Tokens
    degraded: Counter[GroupId | None]
    """Degraded decisions by limiting group."""

    @property
    def short(self) -> Tokens:
        """Tokens that were cached and could not be used, those lost by design left out."""
        return max(sum(self.lost.values()), self.logical - self.usable - self.by_design)

    @property
    def logical_ratio(self) -> float | None:
        """Logical over looked-up tokens; None without explained decisions."""
        return self.logical / self.lookup if self.lookup else None

    @property
    def usable_ratio(self) -> float | None:
        """Usable over looked-up tokens; None without explained decisions."""
        return self.usable / self.lookup if self.lookup else None

    @property
    def usable_of_logical(self) -> float | None:
        """Usable over logical tokens: 1 is an engine that loses nothing. None where nothing was cached."""
        return self.usable / self.logical if self.logical else None


def too_much(geometry: Geometry, item: Decision) -> bool:
    """Whether the engine reused what the rules forbid; with drafts ours includes a margin, so nothing follows there."""
    drafts = any(group.draft for group in geometry.groups)
    return not drafts and not item.skipped and item.usable is not None and item.engine_usable > item.usable


def sum_up(decisions: Sequence[Decision], *, phase: Phase | None = None) -> Reuse:
    """Return the sums over ``decisions``, of one phase or of both."""
    picked = [item for item in decisions if phase is None or item.phase is phase]
    explained = [item for item in picked if item.logical is not None]
    lost: Counter[tuple[Reason, GroupId | None]] = Counter()
    degraded: Counter[GroupId | None] = Counter()
    absent: Counter[Reason] = Counter()
    by_design = 0
    for item in explained:
        for reason, group, tokens in item.lost:
            if reason in BY_DESIGN:
                by_design += tokens
            elif group is None and reason in NOT_CACHED:
                absent[reason] += tokens
            else:
                lost[reason, group] += tokens
        if item.degraded:
            degraded[item.limiting_group] += 1
    return Reuse(
        decisions=len(picked),
        explained=len(explained),
        lookup=sum(item.lookup_tokens for item in explained),
        logical=sum(item.logical or 0 for item in explained),
        usable=sum(item.engine_usable for item in explained),
        external=sum(item.external for item in explained),
        outcomes=Counter(item.outcome for item in picked),
        lost=lost,
        absent=absent,
        by_design=by_design,
        degraded=degraded,
    )
