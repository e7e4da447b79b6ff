"""Parts of vLLM's adapter that need no vLLM: what they hold on to, what they read, and which groups they count."""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

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

    request_id: str


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


def test_a_look_up_that_comes_to_nothing_is_let_go_with_its_step() -> None:
    """A request that was looked up, not admitted and aborted is not kept alive by an engine that then idles."""
    manager = Manager()
    probe = SimpleNamespace(
        recorder=Recorder(Options(), Counters()), guard=Guard(), before_shadow=None, unsettled=False, feed=None
    )
    adapter = SimpleNamespace(quarantine=SimpleNamespace(held={}), bound=None)
    steps._hook_lookups(adapter, probe, Patches(), manager)
    request = Request()
    request.request_id = "one"
    gone = weakref.ref(request)
    manager.get_computed_blocks(request)
    probe.before_shadow()
    del request
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("work", "sent"), [(False, 1), (True, 0)])
def test_a_rank_that_only_steps_along_serves_its_readers(work: bool, sent: int) -> None:
    """Without requests there is no batch and no shadow, and it is not idle while others run: readers get a part."""
    told: list[str] = []
    engine = SimpleNamespace(
        _handle_client_request=lambda *_: None,
        post_step=lambda *_: None,
        scheduler=SimpleNamespace(has_requests=lambda: work),
    )
    probe = SimpleNamespace(
        guard=Guard(),
        safe_point=SimpleNamespace(jobs=[], idle_work=print),
        feed=SimpleNamespace(shadow=lambda: told.append("shadow")),
        between_steps=lambda *, idle: told.append(f"idle {idle}"),
    )
    adapter = SimpleNamespace(core=engine, idle=lambda: False)
    steps._hook_safe_points(adapter, probe, Patches(), served=True)
    engine.post_step(None)
    assert told == ["idle False", *["shadow"] * sent]
    probe.safe_point.idle_work = None
    engine.post_step(None)
    assert len(told) == 1 + sent


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
