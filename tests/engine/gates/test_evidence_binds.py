"""Check and use, and what keys separate, on a live engine: quiet under load, and each planted fault is found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.engines.vllm.binds import Bound
from agent.gates.runner import run
from agent.model.finding import Finding
from agent.session import Session
from exporters.readings import of_counters
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.cache_core import KINDS, Workload, make_core
from tests.support.prompts import prompt, sibling

FULL = 2
"""Group of full attention in the Gemma-3-like model; 0 and 1 are windows."""


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine with a small pool."""
    with engine_in_process(model("gemma3", seed=1), pages=96) as running:
        yield running


def look(session: Session) -> tuple[dict[str, int], dict[str, Finding]]:
    """Run all gates: what was looked at, and what was found. Losses of a small pool are no faults: left out."""
    session.poll()
    results = run(replace(session.snapshot(tables=True, free_list=True), decisions=()))
    looked = {code: count for result in results for code, count in result.looked.items()}
    return looked, {finding.code: finding for result in results for finding in result.findings}


def manager_of(engine: Engine) -> Any:
    """The cache manager."""
    return engine.core.scheduler.kv_cache_manager


def test_clean_under_load(engine: Engine, session: Session) -> None:
    """Shared prefixes in a pool that is full: hundreds of pages are compared, and all are what was checked."""
    dice = Random(1)
    fullest = 0.0
    for turn in range(30):
        for number in range(3):
            stem = prompt(f"stem {dice.randrange(3)}", 320)
            ids = sibling(stem, dice.randrange(64, 320), f"{turn}/{number}", dice.randrange(1, 160))
            engine.add(f"load {turn} {number}", ids, tokens=12)
        engine.step(4)
        fullest = max(fullest, manager_of(engine).usage)
        assert look(session)[1] == {}
    engine.finish()
    looked, found = look(session)
    assert found == {}
    assert looked["KV113"] == looked["KV522"] > 300
    assert looked["KV207"] == 9
    assert fullest > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_clean_on_the_managers_alone(kind: str) -> None:
    """Group mixes with windows, compressors and copies on write: every page that was found is the one that is bound."""
    core = make_core(kind, {"gemma3": 1_500, "deepseek_v4": 4_000, "mamba_partial": 250}[kind])
    manager, bound = core.manager, Bound(core.manager)
    look_up, allocate = manager.get_computed_blocks, manager.allocate_slots
    found: list[Any] = []

    def get_computed_blocks(request: Any) -> Any:
        answer = look_up(request)
        found[:] = answer[0].blocks
        return answer

    def allocate_slots(request: Any, count: int, hit: int = 0, blocks: Any = None) -> Any:
        answer = allocate(request, count, hit, blocks)
        if answer is not None and blocks is not None:
            bound.admitted(request, hit, found, 0)
        return answer

    manager.get_computed_blocks, manager.allocate_slots = get_computed_blocks, allocate_slots
    load = Workload(core, Random(kind))
    steps = 0
    while bound.compared < 500:
        steps += 1
        assert steps < 2_000, f"only {bound.compared} pages were bound"
        load.schedule()
    assert bound.evidence().conflicts == ()
    assert load.totals.hits > 0


def with_allocation(engine: Engine, change: Callable[[Any], None], run_one: Callable[[], object]) -> None:
    """Run something while ``change`` gets the pages of each hit between their check and their use."""
    manager = manager_of(engine)
    original = manager.allocate_slots

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        found = kwargs.get("new_computed_blocks")
        if found is not None and any(found.blocks):
            groups = tuple(list(pages) for pages in found.blocks)
            change(groups)
            kwargs["new_computed_blocks"] = type(found)(groups)
        return original(request, *args, **kwargs)

    manager.allocate_slots = allocate_slots
    try:
        run_one()
    finally:
        del manager.allocate_slots


def test_another_page_is_bound(engine: Engine, session: Session) -> None:
    """The request gets a page of somebody else in the place of one that was checked."""
    ids = prompt("exchanged", 10 * BLOCK + 5)
    engine.run("exchanged0", ids)
    engine.run("other", prompt("other", 4 * BLOCK))
    pool = manager_of(engine).block_pool
    planted: list[tuple[int, int]] = []

    def exchange(groups: Any) -> None:
        pages = groups[FULL]
        held = {id(page) for page in pages}
        foreign = next(page for page in reversed(pool.blocks) if page._block_hash and id(page) not in held)
        planted.append((pages[3].block_id, foreign.block_id))
        pages[3] = foreign

    with_allocation(engine, exchange, lambda: engine.run("exchanged1", ids))
    _, found = look(session)
    assert found.keys() == {"KV522"}
    assert (found["KV522"].values["checked"], found["KV522"].pages) == (planted[0][0], (planted[0][1],))
    assert str(found["KV522"].values["request"]).startswith("exchanged1")
    samples = {item.metric.prometheus_name: item.value for item in of_counters(session.call("counters")["counters"])}
    assert samples["kvctl_toctou_conflicts_total"] == 1
    engine.probe.adapter.bound._conflicts.clear()
    assert look(session)[1] == {}


def test_a_page_is_given_away_before_it_is_bound(engine: Engine, session: Session) -> None:
    """Somebody takes the end of the prefix out of the free list between the look-up and the allocation."""
    ids = prompt("given away", 10 * BLOCK + 5)
    engine.run("away0", ids)
    pool = manager_of(engine).block_pool
    taken: list[int] = []

    def give_away(groups: Any) -> None:
        last = groups[FULL][-1]
        pages = []
        while last._block_hash is not None:
            pages += pool.get_new_blocks(1)
        taken.append(last.block_id)
        pool.free_blocks(reversed(pages))

    with_allocation(engine, give_away, lambda: engine.run("away1", ids))
    _, found = look(session)
    assert found.keys() == {"KV113"}
    assert taken[0] in found["KV113"].pages
    assert str(found["KV113"].values["request"]).startswith("away1")
    assert "was gone when it was bound, still under generation " in found["KV113"].sentence
    engine.probe.adapter.bound._conflicts.clear()
    assert look(session)[1] == {}


def test_pages_get_another_owner_before_they_are_bound(engine: Engine, session: Session) -> None:
    """Somebody else registers the pages between check and use: each is named, with the generation that it has now."""
    ids = prompt("other owner", 10 * BLOCK + 5)
    engine.run("owned0", ids)
    engine.add("thief", prompt("thief", 10 * BLOCK + 5), tokens=40)
    engine.step(3)
    pool, requests = manager_of(engine).block_pool, engine.core.scheduler.requests
    thief = next(request for name, request in requests.items() if name.startswith("thief"))

    def give_away(groups: Any) -> None:
        pages, held = groups[FULL], []
        while any(page._block_hash is not None for page in pages[-3:]):
            held += pool.get_new_blocks(1)
        pool.cache_full_blocks(thief, pages[-3:], 0, 3, BLOCK, FULL)
        pool.free_blocks(reversed(held))

    with_allocation(engine, give_away, lambda: engine.run_beside("owned1", ids))
    engine.finish()
    bound = engine.probe.adapter.bound
    moved = [item for item in bound.evidence().conflicts if item.checked == item.bound]
    stolen = [item for item in moved if item.stamp_checked != item.stamp_bound]
    assert len(stolen) >= 3
    stamps = engine.probe.feed.stamps.page_stamps
    assert all(item.stamp_checked is None and item.stamp_bound == stamps[item.bound] for item in stolen)
    looked, found = look(session)
    assert {"KV113", "KV521"} <= found.keys()
    assert looked["KV521"] == looked["KV522"] > 0
    assert {item.bound for item in stolen} == set(found["KV521"].pages)
    if moved[0] in stolen:
        first = moved[0]
        how = f"generation unknown when checked, {first.stamp_bound} when bound"
        assert found["KV113"].sentence.endswith(how)
    bound._conflicts.clear()


def test_a_hasher_that_forgets_the_salt(engine: Engine, session: Session) -> None:
    """Two requests that differ in their salt share a key: found with the name of what differs."""
    core = engine.core
    original = core.request_block_hasher

    def forgetful(request: Any) -> Any:
        salt, request.cache_salt = request.cache_salt, None
        try:
            return original(request)
        finally:
            request.cache_salt = salt

    core.request_block_hasher = forgetful
    try:
        _, found = look(session)
    finally:
        core.request_block_hasher = original
    assert found.keys() == {"KV207"}
    assert look(session)[1] == {}
