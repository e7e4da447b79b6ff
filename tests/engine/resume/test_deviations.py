"""Each named departure of vLLM 0.32's look-up from the resume rules, shown on the real cache manager in a few pages."""

from collections.abc import Mapping, Sequence

import pytest
from vllm.v1.kv_cache_interface import KVCacheSpec

from agent.engines.vllm.groups import geometry_of
from agent.model.states import KEY_BYTES
from agent.resume import KV305, Deviation, evaluate, expected_engine_hit, explain_difference
from tests.support.vllm_groups import Setup, chunked, full, mamba, window
from tests.support.vllm_worlds import KeySet, keys_of, plant_keys

Pages = Mapping[int, Sequence[int]]
"""Group -> boundaries of its cached pages, in tokens."""


def ask(
    groups: tuple[KVCacheSpec, ...], unit: int, tokens: int, pages: Pages, drafts: frozenset[int] = frozenset()
) -> tuple[int, int | None, frozenset[Deviation] | None]:
    """Plant pages, look a prompt up; return the engine's hit, ours, and the deviations that tell them apart."""
    setup = Setup(name="planted", groups=groups, unit=unit, retention=None, drafts=drafts, pages=200)
    manager = setup.manager()
    digests = [bytes([1 + i]) * 32 for i in range(tokens // unit)]
    for group, ends in pages.items():
        plant_keys(manager, group, [(end, digests[end // unit - 1]) for end in ends])
    engine = manager.coordinator.find_longest_cache_hit(digests, tokens - 1)[1]
    geometry, chain, presence = geometry_of(manager), [key[:KEY_BYTES] for key in digests], KeySet(keys_of(manager))
    limit = tokens - 1
    assert expected_engine_hit(geometry, chain, presence, limit=limit) == engine
    names = explain_difference(geometry, chain, presence, limit=limit, answer=engine)
    return engine, evaluate(geometry, chain, presence, limit=limit).usable, names


def test_a_window_of_one_token() -> None:
    """W = 1 needs nothing of the past, but the engine asks for the block that ends at the boundary."""
    got = ask((window(4, 1), full(4)), 4, 18, {1: range(4, 17, 4)})
    assert got == (0, 16, frozenset({Deviation.WINDOW_OF_ONE}))


def test_a_chunk_that_is_no_multiple_of_the_block() -> None:
    """Nothing at all is cached, yet the engine returns 4 tokens: the block that the chunk starts in (a true KV305)."""
    got = ask((chunked(4, 6),), 4, 8, {})
    assert got == (4, 0, frozenset({Deviation.UNVERIFIED_CHUNK}))
    assert Deviation.UNVERIFIED_CHUNK in KV305


def test_a_chunk_that_is_no_multiple_of_the_block_beside_full_attention() -> None:
    """With a full group that holds everything, the chunk's own blocks are still never looked at."""
    engine, usable, names = ask((chunked(4, 6), full(4)), 4, 9, {1: (4, 8)})
    assert (engine, usable) == (4, 0)
    assert names == frozenset({Deviation.UNVERIFIED_CHUNK})


def test_a_chunk_that_is_a_multiple_of_the_block_is_verified() -> None:
    """The control: with C = 8 the same cache gives what the rules give."""
    assert ask((chunked(4, 8), full(4)), 4, 8, {1: (4, 8)}) == (0, 0, frozenset())


def test_partial_tails_of_full_groups_depend_on_their_order() -> None:
    """The later full group has a key at 6, which covers 4 as well; the engine only asks it for keys up to 4."""
    groups = (full(8, heads=2), full(8, heads=4), mamba(8))
    got = ask(groups, 2, 9, {0: [4], 1: [6], 2: [4]})
    assert got == (0, 4, frozenset({Deviation.PARTIAL_TAIL_ORDER}))


def test_a_whole_block_of_a_later_full_group() -> None:
    """The later group holds its whole block, which ends beyond the earlier group's hit: the engine does not see it."""
    groups = (full(2), full(8, heads=4), mamba(8))
    got = ask(groups, 2, 13, {0: [2, 4], 1: [8], 2: [4]})
    assert got == (0, 4, frozenset({Deviation.PARTIAL_TAIL_ORDER}))


def test_partial_tails_the_other_way_round() -> None:
    """The control: with the longer key in the earlier group the engine finds the same 4 tokens."""
    groups = (full(8, heads=2), full(8, heads=4), mamba(8))
    assert ask(groups, 2, 9, {0: [6], 1: [4], 2: [4]}) == (4, 4, frozenset())


def test_a_speculative_window_whose_block_is_not_the_alignment() -> None:
    """Every page is there, margin included, and the engine loses 8 of 24 tokens (KV306)."""
    got = ask((window(4, 33), full(8)), 4, 31, {0: range(4, 29, 4), 1: (8, 16, 24)}, frozenset({0}))
    assert got == (16, 24, frozenset({Deviation.DRAFT_WINDOW_REALIGNED}))


def test_several_speculative_groups() -> None:
    """One group's margin is proved at 16; the other cuts the hit to 8, where the first has no margin: not asked."""
    groups = (full(4), window(4, 5), window(4, 9))
    pages = {0: range(4, 25, 4), 1: [8, 16, 20], 2: [4, 8, 12]}
    got = ask(groups, 4, 26, pages, frozenset({1, 2}))
    assert got == (8, 0, frozenset({Deviation.MARGIN_NOT_RECHECKED}))


def test_a_speculative_window_beside_a_recurrent_group_marked_speculative() -> None:
    """The recurrent group has no margin, yet the hit that it shortens is not asked for the window's margin again."""
    groups = (full(4), window(4, 5), mamba(4))
    pages = {0: range(4, 25, 4), 1: [8, 16, 20], 2: [8]}
    got = ask(groups, 4, 26, pages, frozenset({1, 2}))
    assert got == (8, 0, frozenset({Deviation.MARGIN_NOT_RECHECKED}))


def test_a_single_speculative_group_is_asked_within_the_limit() -> None:
    """No deviation but a rule: with one group the margin lies below the limit, with several below the last key."""
    pages = range(4, 17, 4)
    assert ask((full(4),), 4, 16, {0: pages}, frozenset({0})) == (8, 8, frozenset())
    assert ask((full(4), full(4, heads=4)), 4, 16, {0: pages, 1: pages}, frozenset({0})) == (12, 12, frozenset())


@pytest.mark.parametrize("heads", [2, 4])
def test_groups_of_equal_spec_must_hold_the_same_key_inside_a_block(heads: int) -> None:
    """No deviation but a rule: groups of equal spec are looked up together, those of different spec are not."""
    groups = (full(8, heads=2), full(8, heads=heads), mamba(8))
    engine, usable, names = ask(groups, 2, 9, {0: [6], 1: [4], 2: [4]})
    assert (engine, usable, names) == ((0, 0, frozenset()) if heads == 2 else (4, 4, frozenset()))
