"""The fixed point over all groups, made visible.

Invariant: ``usable`` is the largest boundary at which every required group can resume, whatever the order of the
groups; only the booking of losses depends on the order (groups by id, rounds until stable).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.decision import Hit, Reason, WaterfallStep
from ..model.groups import Geometry, Group
from ..model.states import GroupId, ResumeKind, Tokens
from .presence import Ghost, Presence
from .reasons import reason_at
from .rules import GroupRule, fine, insists, margin


def evaluate(
    geometry: Geometry,
    chain: Sequence[bytes],
    presence: Presence,
    *,
    limit: Tokens,
    ghost: Ghost | None = None,
) -> Hit:
    """Tell what a request's prefix is worth now.

    Args:
        geometry: The engine's groups.
        chain: ``chain[i]`` is the key (16 bytes) of the chained hash that ends at ``(i + 1) * hash_unit`` tokens.
        presence: The page table.
        limit: Largest boundary that may be hit: tokens of the request - 1.
        ghost: Memory of removed keys. Without it a loss whose cause does not follow from the table is ``unknown``.

    Returns:
        The hit. Its waterfall has the lines by design above the limit (``alignment``, ``last_token``), then those from
        ``logical`` down to ``usable``; what lies between the two parts was not found in any group. ``usable`` is None
        where a group's kind is unknown; the waterfall then covers the groups that are known.
    """
    if not geometry.caching:
        return Hit(
            logical=0, usable=0, per_group=(0,) * len(geometry.groups), limiting_group=None, limiting_state=None,
            reason=None, limit=limit,
        )  # fmt: skip
    look = _Look(geometry, chain, presence, limit)
    top = look.align(limit)
    usable = look.descend(top)
    logical = max(usable, newest_boundary(geometry, chain, presence, floor=usable, limit=limit))
    look.book_design(limit)
    by_design = len(look.steps)
    look.ghost, look.record = ghost, True
    start = min(logical, top)
    look.book(None, Reason.ALIGNMENT, start, look.align(start))
    look.descend(look.align(start))
    known = all(group.kind is not ResumeKind.UNKNOWN for group in geometry.groups)
    limiting, reason = limiting_of(look.steps[by_design:])
    return Hit(
        logical=logical,
        usable=usable if known else None,
        per_group=tuple(own_hit(geometry, group, chain, presence, limit) for group in geometry.groups),
        limiting_group=limiting if known else None,
        limiting_state=geometry.groups[limiting].state if known and limiting is not None else None,
        reason=reason if known else Reason.UNKNOWN,
        waterfall=tuple(look.steps),
        limit=limit,
    )


def own_hit(
    geometry: Geometry, group: Group, chain: Sequence[bytes], presence: Presence, limit: Tokens
) -> Tokens | None:
    """Longest hit of one group alone; None where it has none (kind unknown, or not cacheable)."""
    if not insists(group) or group.kind is ResumeKind.UNKNOWN:
        return None
    rule = GroupRule(geometry, group, chain, presence, limit)
    return rule.floor(rule.align(limit), margin(geometry, group))


def newest_boundary(
    geometry: Geometry, chain: Sequence[bytes], presence: Presence, *, floor: Tokens, limit: Tokens
) -> Tokens:
    """Largest boundary in ``(floor, limit]`` at which any group holds a key of this chain; ``floor`` if there is none.

    A chained key proves that the whole prefix before it was computed once.
    """
    unit, best, has = geometry.hash_unit, floor, presence.has
    steps = [(_key_step(geometry, group), group) for group in geometry.groups if insists(group)]
    # Coarse groups first: few look-ups raise the floor for those with many.
    for step, group in sorted(steps, key=lambda pair: -pair[0]):
        number = group.id
        top = min(limit, len(chain) * unit)
        for boundary in range(top - top % step, best, -step):
            if has(number, chain[boundary // unit - 1]):
                best = boundary
                break
    return best


def limiting_of(steps: Sequence[WaterfallStep]) -> tuple[GroupId | None, Reason | None]:
    """Find the group with the largest sum of losses (ties: lowest id) and the reason of its largest one.

    Where no group lost anything: the largest loss by design, if any.
    """
    sums: dict[GroupId, Tokens] = {}
    for step in steps:
        if step.group is not None:
            sums[step.group] = sums.get(step.group, 0) + step.lost
    if not sums:
        largest = max(steps, key=lambda step: step.lost, default=None)
        return None, None if largest is None else largest.reason
    limiting = min(sums, key=lambda group: (-sums[group], group))
    reasons: dict[Reason, Tokens] = {}
    for step in steps:
        if step.group == limiting:
            reasons[step.reason] = reasons.get(step.reason, 0) + step.lost
    return limiting, max(reasons, key=lambda reason: reasons[reason])


@dataclass(slots=True)
class _Look:
    """One look-up under way."""

    geometry: Geometry
    chain: Sequence[bytes]
    presence: Presence
    limit: Tokens
    ghost: Ghost | None = None
    record: bool = False
    steps: list[WaterfallStep] = field(default_factory=list)
    rules: list[GroupRule] = field(init=False)

    def __post_init__(self) -> None:
        self.rules = [
            GroupRule(self.geometry, group, self.chain, self.presence, self.limit, _members(self.geometry, group))
            for group in self.geometry.groups
            if insists(group)
        ]

    def align(self, tokens: Tokens) -> Tokens:
        return tokens - tokens % self.geometry.alignment if tokens > 0 else 0

    def key_at(self, boundary: Tokens) -> bytes | None:
        index, rest = divmod(boundary, self.geometry.hash_unit)
        return self.chain[index - 1] if not rest and 0 < index <= len(self.chain) else None

    def book(self, group: Group | None, reason: Reason, start: Tokens, end: Tokens, number: int = 0) -> None:
        if end < start:
            self.steps.append(
                WaterfallStep(
                    group=None if group is None else group.id, reason=reason, from_tokens=start, to_tokens=end,
                    round=number,
                )
            )  # fmt: skip

    def book_design(self, limit: Tokens) -> None:
        """Book what no request of this length can reuse."""
        whole = self.align(limit + 1)
        self.book(None, Reason.ALIGNMENT, limit + 1, whole)
        self.book(None, Reason.LAST_TOKEN, whole, self.align(limit))

    def descend(self, start: Tokens) -> Tokens:
        """Lower the boundary group by group until all agree."""
        tokens, number = start, 0
        while True:
            before = tokens
            for rule in self.rules:
                tokens = self._ask(rule, tokens, number)
            if tokens == before:
                return tokens
            number += 1

    def _ask(self, rule: GroupRule, tokens: Tokens, number: int) -> Tokens:
        extra = margin(self.geometry, rule.group)
        proved = rule.floor(tokens, extra)
        if proved < tokens and self.record:
            # Inside blocks a margin may even help: it reads keys beyond the limit. Then nothing is lost to the group.
            held = max(proved, rule.floor(tokens)) if extra else proved
            if held < tokens:
                reason = reason_at(self.geometry, rule, tokens, self.ghost, self.key_at)
                self.book(rule.group, reason, tokens, held, number)
            self.book(None, Reason.DRAFT_MARGIN, held, proved, number)
        return proved


def _members(geometry: Geometry, group: Group) -> tuple[GroupId, ...]:
    """Groups whose keys must coincide with this group's: those looked up with it, up to itself.

    Only where a key inside a block stands for the whole block does it matter that it is the same one; the group that
    breaks the agreement is then the one with the higher id.
    """
    if not fine(geometry, group) or group.kind is not ResumeKind.FULL:
        return (group.id,)
    return tuple(
        other.id for other in geometry.groups if other.lookup_class == group.lookup_class and other.id <= group.id
    )


def _key_step(geometry: Geometry, group: Group) -> Tokens:
    return geometry.hash_unit if group.fine_grained else group.block_size
