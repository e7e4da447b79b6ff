"""The resume rules against every boundary tried one by one."""

from math import lcm

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.model.groups import Geometry, Group
from agent.model.states import GroupId, ResumeKind, State
from agent.resume import evaluate, expected_engine_hit
from tests.support.bruteforce import BruteForce

KINDS = [ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED, ResumeKind.RECURRENT]


class Keys:
    """A set of (group, key) as a page table."""

    def __init__(self, held: frozenset[tuple[int, bytes]]) -> None:
        self.held = held

    def has(self, group: GroupId, key: bytes, /) -> bool:
        """Look the pair up."""
        return (group, key) in self.held


def chain_of(length: int) -> tuple[bytes, ...]:
    return tuple(i.to_bytes(16, "big") for i in range(1, length + 1))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    unit = draw(st.sampled_from([1, 2, 4]))
    scales = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4))
    partial = len(scales) > 1 and draw(st.booleans())
    groups: list[Group] = []
    for number, scale in enumerate(scales):
        kind = draw(st.sampled_from(KINDS))
        block = unit * scale
        can_be_fine = kind in {ResumeKind.FULL, ResumeKind.RECURRENT}
        if partial and not can_be_fine:
            block = unit
        groups.append(
            Group(
                id=GroupId(number),
                name=f"g{number}",
                states=(State.SWA if kind is ResumeKind.WINDOW else State.COMPRESSED,),
                kind=kind,
                block_size=block,
                window_past_tokens=draw(st.integers(0, 6 * unit)) if kind is ResumeKind.WINDOW else None,
                chunk_tokens=draw(st.integers(1, 5)) * draw(st.sampled_from([1, block])),
                draft=draw(st.integers(0, 1 if partial else 3)) == 0,
                fine_grained=can_be_fine and block > unit,
                lookup_class=draw(st.sampled_from([number, 0])) if number and groups[0].kind is kind else number,
            )
        )
    # Groups of one class have one spec.
    groups = [g if g.lookup_class == g.id else _same_spec(groups[g.lookup_class], g.id) for g in groups]
    alignment = unit if partial else groups[0].block_size if len(groups) == 1 else lcm(*(g.block_size for g in groups))
    if len(groups) == 1:
        unit = alignment
    return Geometry(groups=tuple(groups), hash_unit=unit, alignment=alignment, partial_hits=partial)


def _same_spec(group: Group, number: GroupId) -> Group:
    return Group(
        id=number, name=f"g{number}", states=group.states, kind=group.kind, block_size=group.block_size,
        window_past_tokens=group.window_past_tokens, chunk_tokens=group.chunk_tokens, draft=group.draft,
        fine_grained=group.fine_grained, lookup_class=group.lookup_class,
    )  # fmt: skip


@st.composite
def lookups(draw: st.DrawFn) -> tuple[Geometry, tuple[bytes, ...], frozenset[tuple[int, bytes]], int]:
    geometry = draw(geometries())
    length = draw(st.integers(0, 14))
    chain = chain_of(length)
    tokens = length * geometry.hash_unit + draw(st.integers(0, geometry.hash_unit - 1))
    # Mostly present: only near-complete tables make windows, chunks and prefixes meet.
    density = draw(st.sampled_from([0, 1, 2, 2, 2]))
    held = set()
    for group in geometry.groups:
        for key in chain:
            if (density == 2 and draw(st.integers(0, 6))) or (density == 1 and draw(st.booleans())):
                held.add((int(group.id), key))
    return geometry, chain, frozenset(held), max(0, tokens - 1)


@settings(max_examples=4000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_rules_equal_every_boundary_tried(
    look: tuple[Geometry, tuple[bytes, ...], frozenset[tuple[int, bytes]], int],
) -> None:
    """Usable, logical and every group's own hit equal the rules written out over all boundaries."""
    geometry, chain, held, limit = look
    brute = BruteForce(geometry, chain, held, limit)
    hit = evaluate(geometry, chain, Keys(held), limit=limit)
    assert hit.usable == brute.usable()
    assert hit.logical == brute.logical()
    assert hit.per_group == tuple(brute.own(group) for group in geometry.groups)
    assert expected_engine_hit(geometry, chain, Keys(held), limit=limit, deviations=frozenset()) == hit.usable


@settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_waterfall_adds_up(look: tuple[Geometry, tuple[bytes, ...], frozenset[tuple[int, bytes]], int]) -> None:
    """The steps below logical form one unbroken line down to usable, and the limiting group has the largest sum."""
    geometry, chain, held, limit = look
    hit = evaluate(geometry, chain, Keys(held), limit=limit)
    assert hit.usable is not None
    top = limit - limit % geometry.alignment
    inner = [step for step in hit.waterfall if step.to_tokens < top]
    position = min(hit.logical, top)
    for step in inner:
        assert step.from_tokens == position
        assert step.lost > 0
        position = step.to_tokens
    assert position == hit.usable
    sums: dict[int, int] = {}
    for step in inner:
        if step.group is not None:
            sums[step.group] = sums.get(step.group, 0) + step.lost
    expected = min((g for g, lost in sums.items() if lost == max(sums.values())), default=None)
    assert hit.limiting_group == expected
