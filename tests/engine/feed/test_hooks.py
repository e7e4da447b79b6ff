"""The hooks on the pool: exactly removable, and harmless when something in them breaks."""

import random
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from tests.support.cache_core import KINDS, Core, Workload, make_core

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]


def _attributes(core: Core) -> list[dict[str, Any]]:
    """Own functions of everything that is hooked: a plain instance has none."""
    return [
        {name: value for name, value in vars(one).items() if isinstance(value, FunctionType)}
        for one in (core.pool, *core.managers)
    ]


def _same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    return all(
        one.keys() == two.keys() and all(one[name] is two[name] for name in one)
        for one, two in zip(before, after, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_uninstalling_restores_every_attribute(kind: str) -> None:
    """After joins at both levels and an uninstall the pool and the managers have the very attributes they had."""
    core = make_core(kind, 256)
    before = _attributes(core)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=1 << 16)
    feed.install()
    feed.join(Level.CONTENT)
    feed.join(Level.REFERENCES)
    assert not _same(before, _attributes(core))
    feed.leave(Level.REFERENCES)
    feed.leave(Level.CONTENT)
    assert feed.ring_fd is None
    feed.uninstall()
    assert _same(before, _attributes(core))


QUICK_ATTRIBUTES = """
import gc
from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from tests.support.cache_core import make_core

core = make_core("gemma3", 256)
engine = (core.pool, *core.managers, core.manager, core.manager.coordinator)

def with_real_dict():
    own = {"block_pool", "hash_block_size"}
    parts = {one: gc.get_referents(one) for one in engine}
    return [type(one).__name__ for one in engine if any(isinstance(p, dict) and p.keys() & own for p in parts[one])]

before = with_real_dict()
feed = Feed(VllmPool(core.pool, core.managers, owners=engine[-2:]))
feed.install()
feed.join(Level.REFERENCES)
feed.leave(Level.REFERENCES)
feed.uninstall()
print("BlockPool" in before, before == with_real_dict(), feed.reason)
"""


def test_hooks_do_not_cost_the_engine_its_quick_attributes() -> None:
    """Checking and hooking never asks for an instance's ``__dict__``: that alone slowed a scheduling step by 8 %.

    In a fresh interpreter, because other tests do ask.
    """
    done = subprocess.run(
        [sys.executable, "-c", QUICK_ATTRIBUTES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True", "None"], done.stderr


@pytest.mark.parametrize("level", list(Level))
def test_a_hook_that_breaks_turns_the_feed_off_and_the_engine_goes_on(level: Level) -> None:
    """With targets that raise, every call of the pool still does its work, and the feed is off with the reason."""
    core = make_core("gemma3", 512)
    before = _attributes(core)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=1 << 16)
    feed.install()
    feed.join(level)

    def broken(*args: Any) -> None:
        raise RuntimeError("planted")

    port: Any = feed._port
    port._joined.remove()
    events = feed._pending.events()
    events.cleared = events.changed = events.touched = broken
    port.follow(events, references=level is Level.REFERENCES)
    load = Workload(core, random.Random(1), prompt_tokens=400)
    for _ in range(20):
        load.schedule()
    assert load.totals.requests > 0
    assert feed.reason is not None
    assert "planted" in feed.reason
    assert _same(before, _attributes(core))


def test_a_foreign_wrapper_on_top_stays_and_ours_becomes_a_passage() -> None:
    """Somebody who wrapped our hook keeps it; below it the pool still works after our uninstall."""
    core = make_core("gemma3", 256)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=1 << 16)
    feed.install()
    ours = core.pool.cache_full_blocks
    calls = []

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(*args, **kwargs)

    core.pool.cache_full_blocks = theirs
    feed.uninstall()
    assert core.pool.cache_full_blocks is theirs
    load = Workload(core, random.Random(1), prompt_tokens=400)
    for _ in range(20):
        load.schedule()
    assert calls


def test_a_version_without_masks_is_followed_too() -> None:
    """Where registration has no mask, every block of the slice but null ones gets the call's stamp."""
    core = make_core("gemma3", 256)
    original = core.pool.cache_full_blocks

    def cache_full_blocks(
        request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, block_size: int, kv_cache_group_id: int
    ) -> None:
        original(request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id)

    core.pool.cache_full_blocks = cache_full_blocks
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    assert feed.reason is None
    feed.before_schedule(3)
    request = core.request("one", list(range(1, 65)))
    blocks = [core.pool.null_block, *core.pool.get_new_blocks(3)]
    core.pool.cache_full_blocks(
        request=request,
        blocks=blocks,
        num_cached_blocks=0,
        num_full_blocks=4,
        block_size=16,
        kv_cache_group_id=0,
    )
    feed.after_schedule(3, {"one"})
    assert [feed.stamp_of(block.block_id) for block in blocks] == [0] + [(3 << 20) + 1] * 3


def test_nobody_joined_means_no_ring_and_no_record() -> None:
    """Without readers there is no ring, cuts and decisions are no-ops, and stamps are kept all the same."""
    core = make_core("gemma3", 512)
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    load = Workload(core, random.Random(1), prompt_tokens=400)
    for step in range(1, 11):
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.put_decision(b"x")
        feed.shadow()
    assert feed.cut() == 0
    assert feed.ring_fd is None
    stamps = [feed.stamp_of(block.block_id) for block in core.pool.blocks if block.block_hash is not None]
    assert stamps
    assert all(stamps)


def _registered(feed: Feed, core: Core, blocks: list[Any], mask: list[bool] | None = None) -> None:
    """Have a request that nobody schedules register its first blocks, in schedule call 3."""
    request = core.request("one", list(range(1, 65)))
    feed.before_schedule(3)
    core.pool.cache_full_blocks(request, blocks, 0, 4, 16, 1, mask)


def test_a_table_that_changes_before_it_is_judged_hides_no_page() -> None:
    """The log keeps the pages of a call, whatever becomes of the request's table until the call is looked at."""
    core = make_core("gemma3", 256)
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    blocks = core.pool.get_new_blocks(4)
    ids = [block.block_id for block in blocks]
    _registered(feed, core, blocks)
    blocks[1] = core.pool.null_block
    feed.after_schedule(3, {"another"})
    assert feed.never_computed() == {(3 << 20) + 1}
    assert sorted(feed.fence.never[(3 << 20) + 1]) == sorted(ids)


@pytest.mark.parametrize("mask", [None, [False, True, False, True]])
def test_keys_that_are_remembered_are_those_that_were_registered(mask: list[bool] | None) -> None:
    """Null pages and masked ones were given no key: the ghost set hears of none; of the others it hears the hash."""
    core = make_core("gemma3", 256)
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    heard: list[Any] = []
    feed.stamps.remember = lambda *columns: heard.append(columns)
    blocks = [core.pool.null_block, *core.pool.get_new_blocks(3)]
    _registered(feed, core, blocks, mask)
    feed.stamps.fold()
    keys = [block._block_hash for block in blocks if block._block_hash is not None]
    assert len(keys) == (3 if mask is None else 2)
    assert all(key[-4:] == (1).to_bytes(4, "big") for key in keys)
    size = len(keys[0]) - 4
    ((marks, lengths, groups, hashes),) = heard
    assert (list(marks), lengths, groups) == ([(3 << 20) + 1], [size * len(keys)], [1])
    assert hashes == b"".join(key[:-4] for key in keys)
