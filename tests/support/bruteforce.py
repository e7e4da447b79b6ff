"""The resume rules as predicates over every boundary: slow, short, and sharing nothing with ``agent.resume``.

Invariant: imports the model's values only. An oracle for tests; see the domain model, "Where a group can resume".
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from agent.model.groups import Geometry, Group
from agent.model.states import Requirement, ResumeKind

Held = AbstractSet[tuple[int, bytes]]


class BruteForce:
    """One look-up, answered by trying every boundary."""

    def __init__(self, geometry: Geometry, chain: Sequence[bytes], held: Held, limit: int) -> None:
        self.geometry, self.chain, self.held, self.limit = geometry, chain, held, limit
        self.asked = [
            g for g in geometry.groups if g.kind is not ResumeKind.NONE and g.requirement is not Requirement.TRANSIENT
        ]
        self.candidates = [t for t in range(limit + 1) if t % geometry.alignment == 0]
        self.readable = limit if len(geometry.groups) == 1 else max(limit, len(chain) * geometry.hash_unit)

    def key(self, group: Group, end: int) -> bool:
        """The group holds the page that ends at this boundary."""
        unit = self.geometry.hash_unit
        return (
            end % unit == 0
            and 0 < end // unit <= len(self.chain)
            and (group.id, self.chain[end // unit - 1]) in self.held
        )

    def inside(self, group: Group) -> bool:
        """Hits of the group may end inside a block."""
        return self.geometry.partial_hits and group.fine_grained and group.block_size > self.geometry.hash_unit

    def margin(self, group: Group) -> int:
        """Tokens that a speculative group must hold beyond t."""
        if not group.draft or group.kind is ResumeKind.RECURRENT:
            return 0
        return self.geometry.hash_unit if self.inside(group) else group.block_size

    def range_held(self, group: Group, start: int, end: int) -> bool:
        """Every block that intersects ``[start, end)`` is there."""
        b = group.block_size
        return all(self.key(group, i * b + b) for i in range(start // b, (end + b - 1) // b))

    def can_resume(self, group: Group, t: int, *, alone: bool) -> bool:
        """The rule of the group's kind at t."""
        if t == 0 or group.kind is ResumeKind.UNKNOWN:
            return True
        end = t + self.margin(group)
        if self.margin(group) and end > self.readable:
            return False
        if group.kind is ResumeKind.RECURRENT:
            return self.key(group, t)
        if group.kind is ResumeKind.WINDOW:
            past = group.window_past_tokens or 0
            start = max(0, t - past)
            return start >= end or self.range_held(group, start, end)
        if group.kind is ResumeKind.CHUNKED:
            chunk = group.chunk_tokens or 1
            start = t // chunk * chunk
            return start >= end or self.range_held(group, start, end)
        if self.inside(group):
            return self.full_inside(group, end, alone=alone)
        return self.range_held(group, 0, end)

    def full_inside(self, group: Group, end: int, *, alone: bool) -> bool:
        """Whole blocks up to the last one, and in that one a key that reaches ``end``, common to the look-up class."""
        b = group.block_size
        last = min(self.limit + self.margin(group), self.readable)
        together = [g for g in self.geometry.groups if g.lookup_class == group.lookup_class and not alone] or [group]
        if not all(self.range_held(g, 0, end // b * b) for g in together):
            return False
        if end % b == 0:
            return end <= last
        block_end = end // b * b + b
        return any(all(self.key(g, e) for g in together) for e in range(end, min(block_end, last) + 1))

    def usable(self) -> int | None:
        """Largest t at which every group can resume."""
        if any(g.kind is ResumeKind.UNKNOWN for g in self.geometry.groups):
            return None
        return max(t for t in self.candidates if all(self.can_resume(g, t, alone=False) for g in self.asked))

    def own(self, group: Group) -> int | None:
        """Largest t at which this group alone can resume."""
        if group not in self.asked or group.kind is ResumeKind.UNKNOWN:
            return None
        return max(t for t in self.candidates if self.can_resume(group, t, alone=True))

    def logical(self) -> int:
        """Largest boundary with any key, or what is usable without one."""
        known = [g for g in self.asked if g.kind is not ResumeKind.UNKNOWN]
        usable = max(t for t in self.candidates if all(self.can_resume(g, t, alone=False) for g in known))
        ends = [
            e for g in self.asked for e in range(1, self.limit + 1)
            if (e % g.block_size == 0 or g.fine_grained) and self.key(g, e)
        ]  # fmt: skip
        return max([usable, *ends])
