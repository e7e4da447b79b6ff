"""Where one group can resume: one rule for each kind (domain model, "Where a group can resume").

Invariant: every rule answers with the *largest* boundary not above the one asked for, so that the fixed point over all
groups is the largest common boundary. For the modules of ``agent.resume`` only.
"""

from collections.abc import Callable, Sequence

from ..model.groups import Geometry, Group
from ..model.states import GroupId, Requirement, ResumeKind, Tokens
from .presence import Presence


def insists(group: Group) -> bool:
    """Tell whether the engine insists on this group: an optional (draft) group it insists on too.

    An adapter whose engine does not look a group up at all declares its kind ``NONE``.
    """
    return group.kind is not ResumeKind.NONE and group.requirement is not Requirement.TRANSIENT


def fine(geometry: Geometry, group: Group) -> bool:
    """Tell whether hits of this group may end inside a block."""
    return geometry.partial_hits and group.fine_grained and group.block_size > geometry.hash_unit


def margin(geometry: Geometry, group: Group) -> Tokens:
    """Tokens beyond t that a speculative group must hold: its block, or the hash unit where hits end inside blocks.

    Recurrent groups have none: no draft layer leaves recurrent state.
    """
    if not group.draft or group.kind in {ResumeKind.RECURRENT, ResumeKind.NONE, ResumeKind.UNKNOWN}:
        return 0
    return geometry.hash_unit if fine(geometry, group) else group.block_size


class GroupRule:
    """One group of one look-up.

    Args:
        geometry: The engine's groups.
        group: The group.
        chain: Keys of the request.
        presence: The page table.
        limit: Largest boundary that may be hit.
        members: Groups whose pages must carry a key before it counts; the group itself by default. Groups of equal
            spec are looked up together, which matters where a key inside a block stands for a whole range.
    """

    __slots__ = ("_chain", "_fine", "_geometry", "_has", "_members", "_prefix", "_reach", "ceiling", "group", "limit")

    def __init__(
        self,
        geometry: Geometry,
        group: Group,
        chain: Sequence[bytes],
        presence: Presence,
        limit: Tokens,
        members: tuple[GroupId, ...] = (),
    ) -> None:
        self._geometry = geometry
        self.group = group
        self._chain = chain
        self._has: Callable[[GroupId, bytes], bool] = presence.has
        self._members = members or (group.id,)
        self._fine = fine(geometry, group)
        self.limit = limit
        # A margin may read beyond the limit, up to the last key; an engine with one group stops at the limit.
        known = len(chain) * geometry.hash_unit
        beyond = geometry.margin_beyond_limit and len(geometry.groups) > 1
        self.ceiling = max(limit, known) if beyond else limit
        self._prefix = 0
        self._reach: dict[Tokens, Tokens] = {}

    def align(self, tokens: Tokens) -> Tokens:
        """Round down to a boundary that can be hit."""
        return tokens - tokens % self._geometry.alignment if tokens > 0 else 0

    def has(self, boundary: Tokens) -> bool:
        """Tell whether the key at this boundary is cached (in every member)."""
        index, rest = divmod(boundary, self._geometry.hash_unit)
        if rest or not 0 < index <= len(self._chain):
            return False
        key = self._chain[index - 1]
        if len(self._members) == 1:
            return self._has(self._members[0], key)
        return all(self._has(member, key) for member in self._members)

    def held_below(self, boundary: Tokens, step: Tokens) -> Tokens:
        """Largest boundary ``<= boundary``, going down by ``step``, whose key is cached; 0 if there is none."""
        unit, chain, has = self._geometry.hash_unit, self._chain, self._has
        known = len(chain) * unit
        if boundary > known:
            boundary -= -(-(boundary - known) // step) * step
        if len(self._members) > 1 or step % unit or boundary % unit:
            return next((end for end in range(boundary, 0, -step) if self.has(end)), 0)
        number = self._members[0]
        for end in range(boundary, 0, -step):
            if has(number, chain[end // unit - 1]):
                return end
        return 0

    def floor(self, tokens: Tokens, margin_tokens: Tokens = 0) -> Tokens:
        """Largest boundary ``t <= tokens`` at which the group can resume.

        Args:
            tokens: A boundary that can be hit.
            margin_tokens: Extends the required range to ``t + margin_tokens``.

        Returns:
            The boundary; 0 always resumes.
        """
        match self.group.kind:
            case ResumeKind.FULL:
                return self._full(tokens, margin_tokens)
            case ResumeKind.WINDOW:
                return self._window(tokens, margin_tokens)
            case ResumeKind.CHUNKED:
                return self._chunked(tokens, margin_tokens)
            case ResumeKind.RECURRENT:
                return self._recurrent(tokens)
            case _:
                return tokens

    def missing(self, tokens: Tokens) -> tuple[Tokens, ...]:
        """Boundaries of the blocks that resuming at ``tokens`` needs (margin apart) and that are not cached.

        For a group that may be hit inside a block: every boundary of that block that would have done.
        """
        first, last = self._needed(tokens)
        block = self.group.block_size
        if self.group.kind is ResumeKind.RECURRENT:
            return () if self.has(tokens) else (tokens,)
        holes = [end for i in range(first, last) if not self.has(end := (i + 1) * block)]
        if self.group.kind is ResumeKind.FULL and self._fine and tokens % block:
            holes = [end for end in holes if end <= tokens]
            stop = min(self.limit, tokens - tokens % block + block)
            inside = range(tokens, stop + 1, self._geometry.hash_unit)
            if not any(self.has(end) for end in inside):
                holes.extend(inside)
        return tuple(holes)

    def _needed(self, tokens: Tokens) -> tuple[int, int]:
        """Blocks ``[first, last)`` that resuming at ``tokens`` needs."""
        block = self.group.block_size
        last = -(-tokens // block)
        match self.group.kind:
            case ResumeKind.FULL:
                return 0, last
            case ResumeKind.WINDOW:
                past = self.group.window_past_tokens or 0
                return (max(0, tokens - past) // block, last) if past else (last, last)
            case ResumeKind.CHUNKED:
                start = _chunk_start(self.group, tokens)
                return (start // block, last) if start < tokens else (last, last)
            case _:
                return last, last

    def _full(self, tokens: Tokens, margin_tokens: Tokens) -> Tokens:
        bound = min(self.limit + margin_tokens, self.ceiling)
        reach = self._full_reach(min(bound, tokens + margin_tokens) if not self._fine else bound)
        return self.align(min(tokens, reach - margin_tokens))

    def _full_reach(self, bound: Tokens) -> Tokens:
        """Tokens covered from 0 on without a gap, looking at boundaries up to ``bound`` only."""
        if bound in self._reach:
            return self._reach[bound]
        block = self.group.block_size
        while self._prefix + block <= bound and self.has(self._prefix + block):
            self._prefix += block
        reach = min(self._prefix, bound - bound % block)
        if self._fine:
            unit = self._geometry.hash_unit
            top = min(reach + block - unit, bound - bound % unit)
            reach = next((end for end in range(top, reach, -unit) if self.has(end)), reach)
        self._reach[bound] = reach
        return reach

    def _window(self, tokens: Tokens, margin_tokens: Tokens) -> Tokens:
        past, block = self.group.window_past_tokens or 0, self.group.block_size
        if not past and not margin_tokens:
            return tokens
        while tokens > 0:
            end = tokens + margin_tokens
            if end > self.ceiling and margin_tokens:
                tokens = self.align(self.ceiling - margin_tokens)
                continue
            boundary = -(-end // block) * block
            stop = max(0, tokens - past) // block * block
            while boundary > stop and self.has(boundary):
                boundary -= block
            if boundary <= stop:
                return tokens
            # Every larger candidate needs this missing block as well, and each its own last block.
            tokens = self.align(boundary - block - margin_tokens)
            last = -(-(tokens + margin_tokens) // block) * block
            held = self.held_below(last, block)
            if held < last:
                tokens = self.align(held - margin_tokens)
        return 0

    def _chunked(self, tokens: Tokens, margin_tokens: Tokens) -> Tokens:
        block, step = self.group.block_size, self._geometry.alignment
        if margin_tokens:
            while tokens > 0 and not self._chunk_held(tokens, margin_tokens):
                tokens -= step
            return max(tokens, 0)
        while tokens > 0:
            start = _chunk_start(self.group, tokens)
            if tokens == start:
                return tokens
            reach = start // block * block
            while reach < tokens and self.has(reach + block):
                reach += block
            inside = self.align(min(tokens, reach))
            if inside > start:
                return inside
            tokens = self.align(start)
        return 0

    def _chunk_held(self, tokens: Tokens, margin_tokens: Tokens) -> bool:
        block, end = self.group.block_size, tokens + margin_tokens
        first = _chunk_start(self.group, tokens) // block
        return end <= self.ceiling and all(self.has((i + 1) * block) for i in range(first, -(-end // block)))

    def _recurrent(self, tokens: Tokens) -> Tokens:
        return self.held_below(tokens, self._geometry.alignment)


def _chunk_start(group: Group, tokens: Tokens) -> Tokens:
    chunk = group.chunk_tokens or 1
    return tokens // chunk * chunk
