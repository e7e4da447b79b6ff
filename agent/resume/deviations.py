"""Where vLLM's own look-up departs from the resume rules: each departure has a name, none is a tolerance.

Invariant: with no deviation named, ``expected_engine_hit`` is ``usable``; with all of them it is what vLLM 0.32's
coordinator answers. A comparison of the two may account for a difference by named deviations only. Used by gate 3 and
by the property test on the real cache manager.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from ..model.groups import Geometry, Group
from ..model.states import ResumeKind, Tokens
from .presence import Presence
from .rules import GroupRule, fine, insists, margin


class Deviation(StrEnum):
    """One departure of the engine from the rules."""

    MARGIN_NOT_RECHECKED = "margin_not_rechecked"
    """Several speculative groups: a group whose margin was proved at a longer boundary is not asked for it again when
    another speculative group shortens the hit, so the answer can exceed the rule with margins (never the one without).
    Recurrent groups marked speculative count, although they have no margin; vLLM marks every group where it cannot tell
    which is the draft's.
    """
    DRAFT_WINDOW_REALIGNED = "draft_window_realigned"
    """A speculative window group whose block is not the alignment, hit from position 0 on with fewer blocks than its
    window: the engine rounds down before *and* after it drops the margin and loses one alignment unit (KV306)."""
    PARTIAL_TAIL_ORDER = "partial_tail_order"
    """Partial hits with full groups of different specs: a later group is only asked for keys up to the hit of the
    earlier one, although a longer key in the same block, or the whole block, would do (KV306)."""
    UNVERIFIED_CHUNK = "unverified_chunk"
    """A chunk that is not a multiple of the block: the engine takes the block that the chunk starts in for granted
    where no block of the chunk is cached, and returns a boundary whose own chunk nobody verified (a true KV305)."""
    WINDOW_OF_ONE = "window_of_one"
    """A window of one token needs nothing of the past; the engine asks for the block that ends at the boundary."""


ALL = frozenset(Deviation)


def expected_engine_hit(
    geometry: Geometry,
    chain: Sequence[bytes],
    presence: Presence,
    *,
    limit: Tokens,
    deviations: frozenset[Deviation] = ALL,
) -> Tokens:
    """Tell what the engine answers for a look-up.

    Args:
        geometry: The engine's groups.
        chain: Keys of the request, as for ``evaluate``.
        presence: The page table.
        limit: Largest boundary that may be hit: tokens of the request - 1.
        deviations: Departures to reproduce, as far as this geometry can show them; none of them gives ``usable``.

    Returns:
        The hit in tokens. Meaningless where a group's kind is unknown.
    """
    if not geometry.caching:
        return 0
    return _Engine(geometry, chain, presence, limit, deviations & possible(geometry)).answer()


def possible(geometry: Geometry) -> frozenset[Deviation]:
    """Tell which departures the groups of an engine can show at all; a difference is never put down to another one."""
    asked = [group for group in geometry.groups if insists(group)]
    windows = [group for group in asked if group.kind is ResumeKind.WINDOW]
    full = [group for group in asked if group.kind is ResumeKind.FULL]
    drafts = {group.lookup_class for group in asked if group.draft and group.kind is not ResumeKind.FULL}
    margins = any(group.kind is not ResumeKind.FULL and margin(geometry, group) for group in asked)
    conditions = {
        Deviation.MARGIN_NOT_RECHECKED: margins and len(drafts) > 1,
        Deviation.DRAFT_WINDOW_REALIGNED: any(
            group.draft and group.block_size != geometry.alignment for group in windows
        ),
        Deviation.PARTIAL_TAIL_ORDER: any(fine(geometry, group) for group in full)
        and len({group.lookup_class for group in full}) > 1,
        Deviation.UNVERIFIED_CHUNK: any(
            group.kind is ResumeKind.CHUNKED and (group.chunk_tokens or 1) % group.block_size for group in asked
        ),
        Deviation.WINDOW_OF_ONE: any(not group.window_past_tokens for group in windows),
    }
    return frozenset(name for name, holds in conditions.items() if holds)


def explain_difference(
    geometry: Geometry, chain: Sequence[bytes], presence: Presence, *, limit: Tokens, answer: Tokens
) -> frozenset[Deviation] | None:
    """Find the fewest deviations that turn ``usable`` into the engine's answer.

    Returns:
        An empty set where there is no difference; None where no combination of deviations accounts for it.
    """
    names_here = sorted(possible(geometry))
    for count in range(len(names_here) + 1):
        for chosen in combinations(names_here, count):
            names = frozenset(chosen)
            if expected_engine_hit(geometry, chain, presence, limit=limit, deviations=names) == answer:
                return names
    return None


@dataclass(slots=True)
class _Class:
    """Groups that the engine looks up together: a key counts if each of them has it."""

    rule: GroupRule
    margin_tokens: Tokens
    draft: bool
    full: bool
    found: Tokens | None = None
    """A full class is looked up once; later rounds only trim it."""
    proved: Tokens | None = None
    """Boundary at which its margin was proved; None after a group without margin shortened the hit."""


@dataclass(slots=True)
class _Engine:
    """The engine's own loop: classes of equal spec, full attention first, margins proved once a candidate."""

    geometry: Geometry
    chain: Sequence[bytes]
    presence: Presence
    limit: Tokens
    deviations: frozenset[Deviation]
    classes: list[_Class] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[int, list[Group]] = {}
        for group in self.geometry.groups:
            if insists(group) and group.kind is not ResumeKind.UNKNOWN:
                numbers.setdefault(group.lookup_class, []).append(group)
        self.classes = [self._class(groups) for groups in numbers.values()]
        self.classes.sort(key=lambda each: not each.full)

    def _class(self, groups: list[Group]) -> _Class:
        ids = tuple(group.id for group in groups)
        rule = GroupRule(self.geometry, groups[0], self.chain, self.presence, self.limit, ids)
        widest = max(margin(self.geometry, group) for group in groups)
        return _Class(rule, widest, any(group.draft for group in groups), groups[0].kind is ResumeKind.FULL)

    def answer(self) -> Tokens:
        # One pass settles one group, or full attention and one other kind: the engine stops there. By the rules another
        # pass changes nothing, but a departure may take the second one differently.
        simple = len(self.classes) == 2 and self.classes[0].full
        one_pass = bool(self.deviations) and (simple or len(self.geometry.groups) == 1)
        hit = max(self.limit, 0)
        while True:
            tokens = hit
            for each in self.classes:
                tokens = self._ask(each, tokens)
            if tokens >= hit:
                break
            hit = tokens
            if one_pass:
                break
        return hit - hit % self.geometry.alignment

    def _ask(self, each: _Class, tokens: Tokens) -> Tokens:
        if each.full:
            return self._ask_full(each, tokens)
        if Deviation.MARGIN_NOT_RECHECKED in self.deviations:
            prove = each.draft and each.proved is None
        else:
            prove = each.margin_tokens > 0 and each.proved != tokens
        found = self._find(each, tokens, each.margin_tokens if prove else 0)
        if prove:
            each.proved = found
        elif found < tokens:
            for other in self.classes:
                other.proved = None
        return found

    def _ask_full(self, each: _Class, tokens: Tokens) -> Tokens:
        if Deviation.PARTIAL_TAIL_ORDER not in self.deviations or not fine(self.geometry, each.rule.group):
            return self._find(each, tokens, each.margin_tokens)
        if each.found is None:
            # Keys beyond the candidate are not asked for.
            each.rule.limit = tokens
            each.found = self._find(each, tokens, each.margin_tokens)
        return min(tokens, each.found)

    def _find(self, each: _Class, tokens: Tokens, margin_tokens: Tokens) -> Tokens:
        rule, group = each.rule, each.rule.group
        if group.kind is ResumeKind.CHUNKED and Deviation.UNVERIFIED_CHUNK in self.deviations:
            return _scan_chunk(rule, tokens)
        aligned = rule.align(tokens)
        if group.kind is not ResumeKind.WINDOW:
            return rule.floor(aligned, margin_tokens)
        if not group.window_past_tokens and not margin_tokens and Deviation.WINDOW_OF_ONE in self.deviations:
            return rule.held_below(aligned, self.geometry.alignment)
        found = rule.floor(aligned, margin_tokens)
        if margin_tokens and Deviation.DRAFT_WINDOW_REALIGNED in self.deviations:
            return self._realigned(group, found)
        return found

    def _realigned(self, group: Group, tokens: Tokens) -> Tokens:
        block, unit = group.block_size, self.geometry.alignment
        if block == unit or tokens <= 0:
            return tokens
        need = -(-(group.window_past_tokens or 0) // block) + 1
        return tokens - unit if tokens // block + 1 < need else tokens


def _scan_chunk(rule: GroupRule, tokens: Tokens) -> Tokens:
    """Scan from the block that the chunk of ``tokens`` starts in, as the engine does; it never looks before that."""
    group = rule.group
    chunk, block = group.chunk_tokens or 1, group.block_size
    reach = tokens // chunk * chunk // block * block
    while reach + block <= tokens and rule.has(reach + block):
        reach += block
    return reach


KV305 = frozenset({Deviation.UNVERIFIED_CHUNK})
"""Deviations by which the engine reuses what no rule allows: errors, however well known."""
