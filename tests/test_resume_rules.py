"""The resume rules one by one, in examples small enough to check by hand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from agent.model.decision import Fidelity, Reason
from agent.model.groups import Geometry, Group, Layer
from agent.model.states import GroupId, Requirement, ResumeKind, State
from agent.resume import evaluate, recoverable
from tests.support.lookups import Cache
from tests.support.pools import chain_of, deepseek_v4, group_of


@dataclass(slots=True)
class Counting:
    """Keys in a set, and how often it was asked."""

    held: set[tuple[int, bytes]] = field(default_factory=set)
    asked: int = 0

    def has(self, group: GroupId, key: bytes, /) -> bool:
        """See ``agent.resume.Presence``."""
        self.asked += 1
        return (group, key) in self.held


def geometry_of(*groups: Group, unit: int = 4, alignment: int = 4, partial: bool = False) -> Geometry:
    """Make a geometry."""
    return Geometry(groups=groups, hash_unit=unit, alignment=alignment, partial_hits=partial)


def usable(geometry: Geometry, tokens: int, pages: Mapping[int, Iterable[int]]) -> int | None:
    """Evaluate a prompt of some tokens on pages that end at some boundaries."""
    chain = chain_of("a", tokens, geometry.hash_unit)
    held = {(group, chain[end // geometry.hash_unit - 1]) for group, ends in pages.items() for end in ends}
    return evaluate(geometry, chain, Counting(held), limit=tokens - 1).usable


def test_full_needs_every_block() -> None:
    """A gap ends the prefix."""
    assert usable(geometry_of(group_of(0, ResumeKind.FULL, 4)), 20, {0: [4, 8, 16]}) == 8


@pytest.mark.parametrize(("past", "expected"), [(3, 16), (4, 16), (5, 8)])
def test_window_needs_the_blocks_that_touch_it(past: int, expected: int) -> None:
    """Resuming at 16 with W - 1 past tokens needs the blocks that intersect the last W - 1 tokens before 16."""
    group = group_of(0, ResumeKind.WINDOW, 4, window_past_tokens=past)
    pages = [16] if past <= 4 else [4, 8, 16]
    assert usable(geometry_of(group), 20, {0: pages}) == expected


def test_a_window_of_one_token_needs_nothing() -> None:
    """W = 1 attends to the token itself only."""
    groups = group_of(0, ResumeKind.WINDOW, 4, window_past_tokens=0), group_of(1, ResumeKind.FULL, 4)
    assert usable(geometry_of(*groups), 20, {1: [4, 8, 12, 16]}) == 16


def test_chunked_needs_its_own_chunk() -> None:
    """Inside a chunk its blocks from the chunk's start; at a chunk boundary nothing."""
    group = group_of(0, ResumeKind.CHUNKED, 4, chunk_tokens=8)
    assert usable(geometry_of(group), 22, {0: [20]}) == 20
    assert usable(geometry_of(group), 22, {}) == 16


def test_a_chunk_that_is_no_multiple_of_the_block() -> None:
    """The block that the chunk starts in is needed as well, whatever an engine takes for granted."""
    group = group_of(0, ResumeKind.CHUNKED, 4, chunk_tokens=6)
    assert usable(geometry_of(group), 8, {}) == 0
    assert usable(geometry_of(group), 9, {0: [8]}) == 8
    assert usable(geometry_of(group), 13, {0: [8]}) == 12, "12 is a chunk boundary"
    assert usable(geometry_of(group), 12, {0: []}) == 0


def test_recurrent_needs_one_checkpoint() -> None:
    """Exactly the state at t, nothing before it."""
    groups = group_of(0, ResumeKind.RECURRENT, 4), group_of(1, ResumeKind.FULL, 4)
    assert usable(geometry_of(*groups), 20, {0: [8], 1: [4, 8, 12, 16]}) == 8


def test_partial_hits_end_inside_a_block() -> None:
    """Whole blocks before, and in the last one any key at or beyond t within the limit."""
    full = group_of(0, ResumeKind.FULL, 8, fine_grained=True)
    state = group_of(1, ResumeKind.RECURRENT, 8, fine_grained=True)
    geometry = geometry_of(full, state, unit=2, alignment=2, partial=True)
    assert usable(geometry, 16, {0: [8, 14], 1: [12]}) == 12
    assert usable(geometry, 16, {0: [8], 1: [12, 6]}) == 6
    assert usable(geometry, 14, {0: [8, 14], 1: [12]}) == 0, "the key at 14 is the last token's"


def test_a_draft_group_needs_its_margin() -> None:
    """A speculative group must hold a block beyond t; recurrent groups never need one."""
    full, draft = group_of(0, ResumeKind.FULL, 4), group_of(1, ResumeKind.FULL, 4, draft=True)
    state = group_of(2, ResumeKind.RECURRENT, 4, draft=True)
    assert usable(geometry_of(full, draft, state), 20, {0: [4, 8, 12], 1: [4, 8, 12], 2: [8, 12]}) == 8


def test_transient_groups_need_nothing() -> None:
    """What the engine rebuilds for each request is never missing."""
    ring = group_of(0, ResumeKind.NONE, 4, requirement=Requirement.TRANSIENT)
    assert usable(geometry_of(ring, group_of(1, ResumeKind.FULL, 4)), 20, {1: [4, 8]}) == 8


def test_below_every_groups_own_hit() -> None:
    """Groups that each reach 16 or 12 alone may agree on 4 only; the waterfall shows the rounds."""
    chain = chain_of("a", 20, 4)
    groups = group_of(0, ResumeKind.RECURRENT, 4), group_of(1, ResumeKind.RECURRENT, 4)
    held = {(0, chain[3]), (0, chain[0]), (1, chain[2]), (1, chain[0])}
    hit = evaluate(geometry_of(*groups), chain, Counting(held), limit=19)
    assert (hit.per_group, hit.usable, hit.logical) == ((16, 12), 4, 16)
    inner = [
        (step.round, step.group, step.from_tokens, step.to_tokens) for step in hit.waterfall if step.to_tokens < 16
    ]
    assert inner == [(0, 1, 16, 12), (1, 0, 12, 4)]
    assert hit.limiting_group == 0


def test_ties_go_to_the_lowest_group() -> None:
    """Equal losses: the group with the lower id is limiting."""
    chain = chain_of("a", 20, 4)
    groups = group_of(0, ResumeKind.RECURRENT, 4), group_of(1, ResumeKind.RECURRENT, 4)
    held = {(0, chain[3]), (0, chain[1]), (1, chain[2]), (1, chain[1])}
    hit = evaluate(geometry_of(*groups), chain, Counting(held), limit=19)
    assert [(step.group, step.lost) for step in hit.waterfall if step.group is not None] == [(1, 4), (0, 4)]
    assert hit.limiting_group == 0


def test_plain_models_lose_nothing() -> None:
    """One full group: usable equals logical, and only lines by design remain."""
    chain = chain_of("a", 64, 16)
    hit = evaluate(
        geometry_of(group_of(0, ResumeKind.FULL, 16), unit=16, alignment=16),
        chain, Counting({(0, key) for key in chain}), limit=63,
    )  # fmt: skip
    assert (hit.logical, hit.usable, hit.limiting_group, hit.reason) == (48, 48, None, None)
    assert [(step.reason, step.lost) for step in hit.waterfall] == [(Reason.LAST_TOKEN, 16)]


@pytest.mark.parametrize("kept", ["all", "nothing", "every other page"])
def test_a_long_look_up_asks_seldom(kept: str) -> None:
    """32k tokens on DeepSeek-V4's groups: the table is asked a small multiple of the number of pages, never squared."""
    geometry = deepseek_v4(None)
    chain = chain_of("a", 32_768, 4)
    pages = sum(32_768 // group.block_size for group in geometry.groups)
    step = {"all": 1, "nothing": len(chain) + 1, "every other page": 2}[kept]
    held = {(int(group.id), key) for group in geometry.groups for key in chain[::step]} if kept != "nothing" else set()
    table = Counting(held)
    evaluate(geometry, chain, table, limit=32_767)
    assert table.asked <= 4 * pages


def test_recovery_asks_for_what_the_mathematics_needs() -> None:
    """A compressor without overlap is empty at a multiple of its ratio: its lost state costs nothing in truth."""
    geometry = deepseek_v4(None)
    groups = list(geometry.groups)
    groups[4] = replace(groups[4], tokens_per_entry=128)
    geometry = replace(geometry, groups=tuple(groups))
    chain = chain_of("a", 1_000, 4)
    cache = Cache(geometry)
    cache.prompt(chain, 1_000)
    cache.evict(4, chain, 768)
    hit = evaluate(geometry, chain, cache, limit=999)
    ways = recoverable(geometry, chain, cache, limit=999, usable=hit.usable or 0)
    assert hit.usable == 512
    assert (ways[0].fidelity, ways[0].tokens, ways[0].gained) == (Fidelity.EXACT, 768, 256)


def test_recovery_by_replay() -> None:
    """Lost windows come back by computing the last W tokens of each window layer, or approximately the last W."""
    geometry = deepseek_v4(None)
    layers = tuple(Layer(name=f"l{i}", state=State.SWA) for i in range(2))
    geometry = replace(geometry, groups=tuple(replace(group, layers=layers) for group in geometry.groups))
    chain = chain_of("a", 2_000, 4)
    cache = Cache(geometry)
    cache.prompt(chain, 2_000)
    cache.held = {pair for pair in cache.held if pair[0] != 0}
    ways = recoverable(geometry, chain, cache, limit=1_999, usable=0)
    assert [(way.fidelity, way.tokens, way.replay_tokens, way.gained) for way in ways] == [
        (Fidelity.REPLAY_EXACT, 1_792, 512, 1_280),
        (Fidelity.REPLAY_APPROXIMATE, 1_792, 128, 1_664),
    ]


def test_nothing_to_recover() -> None:
    """Where nothing is there, the only way is to compute."""
    chain = chain_of("a", 2_000, 4)
    ways = recoverable(deepseek_v4(), chain, Cache(deepseek_v4()), limit=1_999, usable=0)
    assert [way.fidelity for way in ways] == [Fidelity.RECOMPUTE]
