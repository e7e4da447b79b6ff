"""Random geometries, chains and page tables, small enough to be checked at every boundary.

Invariant: every geometry is one that an engine could have: groups of one look-up class have one spec, the alignment is
the least common multiple of the blocks (the hash unit with partial hits, the block with one group).
"""

from dataclasses import replace
from math import lcm

from hypothesis import strategies as st

from agent.model.groups import Geometry, Group
from agent.model.states import GroupId, ResumeKind, State

Held = frozenset[tuple[int, bytes]]
Lookup = tuple[Geometry, tuple[bytes, ...], Held, int]
"""Geometry, chain, keys that are cached, limit."""

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
    groups = [g if g.lookup_class == g.id else replace(groups[0], id=g.id, name=g.name) for g in groups]
    alignment = unit if partial else groups[0].block_size if len(groups) == 1 else lcm(*(g.block_size for g in groups))
    if len(groups) == 1:
        unit = alignment
    return Geometry(groups=tuple(groups), hash_unit=unit, alignment=alignment, partial_hits=partial)


@st.composite
def lookups(draw: st.DrawFn) -> Lookup:
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
