"""The feed turns itself off, with the place, when an engine changes pages where nobody looks."""

from typing import Any

import pytest

from agent.engines.vllm.completeness import ALLOWED, Completeness, sites_in
from agent.engines.vllm.pool import VllmPool
from agent.probe.feed import Feed
from tests.support.cache_core import KINDS, make_core

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_engine_is_known_completely(kind: str) -> None:
    """Every place in the installed vLLM that changes a page is on the list, and every place on the list is real."""
    core = make_core(kind, 64)
    found = Completeness.of(core.pool, (*core.managers, core.manager, core.manager.coordinator))
    assert found.reason is None
    assert {"BlockPool.get_new_blocks", "BlockPool.touch", "BlockHashToBlockMap.insert"} <= set(found.sites)
    assert all(what <= ALLOWED[name] for name, what in found.sites.items())


def test_the_schedulers_are_known_completely() -> None:
    """Neither scheduler changes a page behind the pool's back."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    core = make_core("gemma3", 64)
    bare = [object.__new__(AsyncScheduler), object.__new__(MambaManager)]
    found = Completeness.of(core.pool, bare)
    assert found.reason is None
    assert found.sites["MambaManager._cache_partial_tail_block"] == {"calls _maybe_evict_cached_block"}


def test_an_unknown_mutating_method_turns_the_feed_off_and_is_named() -> None:
    """A pool class with one more method that writes a count is refused with its name; the pool is untouched."""
    from vllm.v1.core.block_pool import BlockPool

    class PoolWithShortcut(BlockPool):  # type: ignore[misc]
        def drop_quickly(self, number: int) -> None:
            self.blocks[number].ref_cnt -= 1

    pool = PoolWithShortcut(64, enable_caching=True, hash_block_size=16)
    before = dict(vars(pool))
    feed = Feed(VllmPool(pool))
    feed.install()
    assert feed.reason is not None
    assert "PoolWithShortcut.drop_quickly sets ref_cnt" in feed.reason
    assert dict(vars(pool)) == before
    assert not feed.status()["on"]


def test_a_method_planted_into_a_running_pool_is_noticed() -> None:
    """Somebody else's replacement of a method in the instance is read like the class, and named."""
    core = make_core("gemma3", 64)

    def touch(blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 2

    core.pool.touch = touch
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    assert feed.reason is not None
    assert "BlockPool.touch (patched) sets ref_cnt" in feed.reason


def test_a_method_planted_into_the_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class attribute that comes from another file is read too."""
    from vllm.v1.core.block_pool import BlockPool

    def forget(self: Any, number: int) -> None:
        self.blocks[number].reset_hash()

    monkeypatch.setattr(BlockPool, "forget", forget, raising=False)
    core = make_core("gemma3", 64)
    assert "BlockPool.forget (patched) calls reset_hash" in str(Completeness.of(core.pool, core.managers).reason)


def test_every_way_to_write_a_page_is_seen() -> None:
    """Assignment, augmented assignment, unpacking, deletion, setattr and calls are all found in source."""
    source = """
class Manager:
    def unpack(self, block):
        block.ref_cnt, self.count = 0, 1
    def with_setattr(self, block):
        setattr(block, "_block_hash", None)
    def replace_map(self, pool):
        pool.cached_block_hash_to_block = {}
    def reach_into_map(self, pool, key):
        del pool.cached_block_hash_to_block._cache[key]
    def call_inner(self, pool, key, block):
        pool.cached_block_hash_to_block.insert(key, block)
    def harmless(self, block):
        return block.ref_cnt == 0
"""
    found = sites_in(source)
    assert {name.split(".")[1] for name in found} == {
        "unpack",
        "with_setattr",
        "replace_map",
        "reach_into_map",
        "call_inner",
    }


def test_a_pool_with_other_parameters_is_refused() -> None:
    """A hooked function with another signature is named with that signature, and nothing is hooked."""
    core = make_core("gemma3", 64)

    def touch(many: Any, once: bool = False) -> None:
        del many, once

    core.pool.touch = touch
    reason = VllmPool(core.pool, core.managers).refuse()
    assert reason is not None
    assert "BlockPool.touch of this vLLM has other parameters: (many" in reason
