"""Admission: nobody starves, nobody spins, and one formula says what fits."""

import random
from dataclasses import replace
from typing import Any

import pytest

from agent.errors import RefusedError
from agent.model.states import State
from agent.reference.admission import fits, over_cap, pages_needed, smallest_pools
from agent.reference.config import EngineConfig
from agent.reference.engine import Engine
from agent.reference.faults import Fault
from agent.reference.geometry import group_specs
from agent.reference.pages import NULL
from tests.support.reference import MODEL, Recorder, Truth, check_pages


def _prompt(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(MODEL.vocabulary) for _ in range(count)]


def _tight(max_tokens: int = 120, chunk: int = 16, **changes: Any) -> EngineConfig:
    """Return a configuration whose pools just hold the longest request."""
    config = EngineConfig(max_tokens=max_tokens, chunk=chunk)
    need = smallest_pools(group_specs(MODEL, config), config)
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "chunk": chunk,
        "compressed_pages": need[State.COMPRESSED],
        "tail_pages": need[State.TAIL],
        "window_pages": need[State.SWA],
        "indexer_pages": need[State.INDEXER],
        "poison": True,
        **changes,
    }
    return EngineConfig(**settings)


def _held(engine: Engine, name: str) -> dict[State, int]:
    counts: dict[State, int] = {}
    for page in [p for table in engine.requests[name].tables.values() for p in table if p != NULL]:
        pool = engine.pages.pool_of[page]
        counts[pool] = counts.get(pool, 0) + 1
    return counts


@pytest.mark.parametrize("chunk", [2, 5, 16, 40])
def test_a_request_never_holds_more_than_the_formula(chunk: int) -> None:
    """In every step of a long request its pages stay within what the formula charged, windows included."""
    dice = random.Random(chunk)
    engine = Engine(MODEL, EngineConfig(chunk=chunk, step_tokens=chunk, max_batch=1))
    prompt = _prompt(dice, 150)
    for attempt in ("cold", "warm"):
        request = engine.submit(attempt, prompt, 20)
        while not engine.idle:
            engine.step()
            if attempt in engine.requests:
                need = pages_needed(engine.pools.specs, len(request.tokens), chunk)
                assert all(count <= need[pool] for pool, count in _held(engine, attempt).items())


def test_a_prompt_of_the_size_of_the_pool_is_admitted() -> None:
    """The longest request runs alone in pools of exactly its need, cold, and again on a full cache."""
    truth, dice = Truth(), random.Random(1)
    engine = Engine(MODEL, _tight(), weights=truth.weights)
    recorder = Recorder(engine)
    for number in range(3):
        engine.submit(f"r{number}", _prompt(dice, 110), 10)
        engine.run(500)
    assert recorder.worst(truth) < 1e-9


def test_what_can_never_be_admitted_is_refused_at_once() -> None:
    """A request that the pools can never hold is refused with the pool's name, not queued for ever."""
    config = _tight()
    engine = Engine(MODEL, replace(config, tail_pages=config.tail_pages - 1))
    with pytest.raises(RefusedError) as refusal:
        engine.submit("r", _prompt(random.Random(1), 110), 10)
    assert "tail" in str(refusal.value.why)
    with pytest.raises(RefusedError):
        engine.submit("r", _prompt(random.Random(1), 500), 10)


@pytest.mark.parametrize("host", [0, 60])
def test_nobody_starves_in_a_full_pool(host: int) -> None:
    """With pools that hold little more than one request, sixty mixed requests all finish, in bounded steps, rightly."""
    truth, dice = Truth(), random.Random(7)
    engine = Engine(MODEL, _tight(chunk=24, host_pages=host, step_tokens=48, max_batch=4), weights=truth.weights)
    recorder = Recorder(engine)
    root = _prompt(dice, 100)
    for number in range(60):
        engine.submit(
            f"r{number}", root[: dice.randint(1, 100)] + _prompt(dice, dice.randint(1, 10)), dice.randint(1, 8)
        )
    usage = 0.0
    for _ in range(6_000):
        if engine.idle:
            break
        engine.step()
        pool = State.TAIL
        usage = max(usage, 1 - len(engine.pages.free[pool]) / engine.pages.sizes[pool])
    assert engine.idle, "somebody was starved"
    assert usage >= 0.99
    assert engine.counters.finished == 60
    check_pages(engine)
    assert recorder.worst(truth) < 1e-9


def test_requests_are_admitted_in_order_of_arrival() -> None:
    """A large request that waits for room is not overtaken by small ones behind it."""
    dice = random.Random(2)
    engine = Engine(MODEL, _tight(max_batch=8))
    first = engine.submit("running", _prompt(dice, 60), 20)
    engine.step()
    large = engine.submit("large", _prompt(dice, 110), 2)
    small = [engine.submit(f"small{number}", _prompt(dice, 4), 1) for number in range(4)]
    engine.run(1_000)
    assert first.first_token_step is not None
    assert large.first_token_step is not None
    assert all(request.first_token_step is not None for request in small)
    order = [record.request for record in engine.scheduler.records if record.admitted]
    assert order.index("large") < order.index("small0")


def test_idle_cache_stays_below_its_share_while_requests_wait() -> None:
    """As long as somebody waits, cached pages that nobody holds take at most their share of each pool."""
    dice = random.Random(3)
    engine = Engine(MODEL, _tight(cached_share=0.25, max_batch=2))
    for number in range(12):
        engine.submit(f"r{number}", _prompt(dice, dice.randint(30, 100)), 4)
    while not engine.idle:
        engine.step()
        engine.scheduler.trim()
        if engine.scheduler.waiting:
            assert all(not over_cap(engine.pages.cached_idle(p), n, 0.25) for p, n in engine.pages.sizes.items())
    assert engine.scheduler.trimmed > 0


def test_shared_pages_are_not_charged_twice() -> None:
    """Pages that other requests hold are needed and take nothing from what is available."""
    assert fits({State.SWA: 5}, {State.SWA: 2}, {State.SWA: 3})
    assert not fits({State.SWA: 6}, {State.SWA: 2}, {State.SWA: 3})


def test_a_lost_acknowledgement_does_not_block_anybody() -> None:
    """A request whose load is never acknowledged gives up after a while and is computed."""
    truth, dice = Truth(), random.Random(4)
    engine = Engine(MODEL, _tight(host_pages=200), weights=truth.weights)
    prompt = _prompt(dice, 100)
    engine.submit("first", prompt, 1)
    engine.run()
    for pool in list(engine.pages.evictable.values()):
        for page in list(pool):
            engine.pages.evict(page)
    engine.transfers.pump(1000)
    engine.collect()
    engine.faults.switch(Fault.LOSE_ACKNOWLEDGEMENT)
    recorder = Recorder(engine)
    engine.submit("second", [*prompt, 1], 2)
    engine.run(500)
    assert engine.prefetcher.given_up == 1
    assert recorder.worst(truth) < 1e-9
    check_pages(engine)
