"""Parts of vLLM's adapter that need no vLLM: what they hold on to, what they read, and which groups they count."""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from agent.engines.vllm import admission, offload, steps
from agent.probe.counters import Counters
from agent.probe.decisions import Recorder
from agent.probe.guard import Guard
from agent.probe.options import Options
from agent.probe.patches import Patches


class Manager:
    """What the look-up hooks need of a cache manager."""

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        """Nothing is cached."""
        return request, 0

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count nothing."""


class Request:
    """Something that can be watched."""


def test_a_probe_that_is_switched_off_holds_no_request() -> None:
    """Look-ups that were noted and not settled yet are let go with the hooks."""
    guard, manager = Guard(), Manager()
    recorder = Recorder(Options(), Counters())
    probe = SimpleNamespace(recorder=recorder, guard=guard, before_shadow=None, unsettled=False, feed=None)
    adapter = SimpleNamespace(quarantine=SimpleNamespace(held={}), bound=None)
    steps._hook_lookups(adapter, probe, Patches(), manager)
    request = Request()
    gone = weakref.ref(request)
    manager.get_computed_blocks(request)
    del request
    guard.open("switched off")
    gc.collect()
    assert gone() is None


def test_the_newest_entries_of_a_large_tier_are_found_without_copying_it() -> None:
    """Only as many entries are looked at as are listed, newest first, table after table."""
    seen: list[int] = []

    class Table(OrderedDict[int, str]):
        def items(self) -> Any:
            table = self

            class Items:
                def __iter__(self) -> Iterator[tuple[int, str]]:
                    raise AssertionError("the whole table was copied")

                def __reversed__(self) -> Iterator[tuple[int, str]]:
                    for key in reversed(table):
                        seen.append(key)
                        yield key, table[key]

            return Items()

    policy = SimpleNamespace(t2=Table.fromkeys(range(1000), "b"), t1=Table.fromkeys(range(1000, 1002), "a"))
    found = offload._newest(policy)
    assert [next(found) for _ in range(3)] == [(999, "b"), (998, "b"), (997, "b")]
    assert seen == [999, 998, 997]


def test_a_group_with_a_pool_of_its_own_needs_no_page_of_this_one() -> None:
    """Its sentinel for a host pool that is full at the moment is not taken for a request that can never be admitted."""
    pool = SimpleNamespace(blocks=[None] * 100)

    def group(needed: int, own: Any) -> Any:
        return SimpleNamespace(
            block_pool=own, req_to_blocks={}, get_num_blocks_to_allocate=lambda *_args, **_kwargs: needed
        )

    managers = [group(7, pool), group(len(pool.blocks) + 1, SimpleNamespace())]
    scheduler = SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=pool, enable_caching=True),
        max_model_len=4096,
        max_num_scheduled_tokens=512,
        scheduler_config=SimpleNamespace(),
        scheduler_reserve_full_isl=True,
    )
    request = SimpleNamespace(request_id="r", num_tokens=64, num_prompt_tokens=64)
    assert admission._need(scheduler, managers, request) == 7
