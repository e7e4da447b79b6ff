"""Check to use: nobody gets in between, and if somebody does, it is seen before a page is read."""

import random
import threading
import time
from typing import Any, Self

import pytest

from agent.reference.config import EngineConfig
from agent.reference.engine import Engine
from agent.reference.faults import Fault
from agent.reference.pages import Pages
from tests.support.reference import MODEL, NIGHTLY, Recorder, Truth, check_pages

ROOTS = [random.Random(seed).choices(range(MODEL.vocabulary), k=80) for seed in range(2)]


class Evictors:
    """Threads that evict and swap out whatever nobody holds, as fast as they can."""

    def __init__(self, pages: Pages, count: int = 2) -> None:
        self.pages, self.stop, self.evicted = pages, threading.Event(), 0
        self.threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(count)]

    def _run(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self.stop.is_set():
            with self.pages.lock:
                idle = [page for pool in self.pages.evictable.values() for page in pool]
                for page in dice.sample(idle, min(len(idle), dice.randint(1, 4))):
                    self.pages.evict(page)
                    self.evicted += 1
            self.stop.wait(dice.random() * 0.002)

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def _traffic(engine: Engine, requests: int, seconds: float) -> None:
    """Run shared-prefix requests, at least so many and at least so long."""
    dice, end, number = random.Random(1), time.monotonic() + seconds, 0
    while number < requests or time.monotonic() < end:
        if len(engine.scheduler.waiting) < 3:
            prompt = dice.choice(ROOTS)[: dice.randint(17, 80)]
            engine.submit(f"r{number}", [*prompt, *dice.choices(range(MODEL.vocabulary), k=3)], 3)
            number += 1
        engine.step()
    engine.run()


def test_two_threads_evict_against_reuse() -> None:
    """While two threads evict and swap out, every answer is that of a full recomputation and no page moves in use."""
    truth = Truth()
    config = EngineConfig(host_pages=60, poison=True, tail_pages=120, window_pages=40, cached_share=1.0)
    engine = Engine(MODEL, config, weights=truth.weights, threaded_transfers=True)
    recorder = Recorder(engine)
    with Evictors(engine.pages) as evictors:
        _traffic(engine, 60, 60.0 if NIGHTLY else 3.0)
    assert evictors.evicted > 100
    assert not engine.violations
    assert engine.reuser.moved == 0
    reused = [record for record in engine.scheduler.records if record.reused]
    assert len(reused) > 5
    assert recorder.worst(truth) < 1e-9
    check_pages(engine)
    engine.close()


def _steal(engine: Engine) -> None:
    """Evict every idle page and give it to another prefix: what happens between check and bind without a guard."""
    pages = engine.pages
    for pool, idle in pages.evictable.items():
        for page in list(idle):
            pages.evict(page)
        group = next(spec.id for spec in engine.pools.specs if spec.state is pool)
        for taken in pages.take(group, pool, len(pages.free[pool])):
            pages.fill(taken)
            pages.register(taken, random.randbytes(16), 16)
            pages.release(taken)


def _unguarded(engine: Engine) -> None:
    """Cache a prefix, then look it up while another thread gets in between check and bind."""
    engine.submit("first", ROOTS[0], 1)
    engine.run()
    engine.faults.switch(Fault.UNGUARDED_BIND)

    def between() -> None:
        engine.reuser.between = None
        thread = threading.Thread(target=_steal, args=(engine,))
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive(), "the lock is held although the guard is off"

    engine.reuser.between = between


def _full(**changes: Any) -> EngineConfig:
    # Pools of just the cached prefix: what is evicted is taken again at once.
    settings: dict[str, Any] = {
        "poison": True,
        "compressed_pages": 24,
        "tail_pages": 60,
        "window_pages": 20,
        **changes,
    }
    return EngineConfig(**settings)


def test_without_the_guard_use_is_refused() -> None:
    """With the guard switched off the moved pages are noticed before they are read, and the answer stays right."""
    truth = Truth()
    engine = Engine(MODEL, _full(), weights=truth.weights)
    _unguarded(engine)
    recorder = Recorder(engine)
    request = engine.submit("second", [*ROOTS[0], 5], 3)
    engine.run()
    assert engine.violations, "nobody noticed"
    assert all(violation.moved for violation in engine.violations)
    assert {violation.request for violation in engine.violations} <= {request.id}
    assert recorder.worst(truth) < 1e-9


def test_keys_notice_what_generations_do_not() -> None:
    """If pages that change their owner keep their generation, their keys still give the theft away before any use."""
    truth = Truth()
    engine = Engine(MODEL, _full(), weights=truth.weights)
    _unguarded(engine)
    engine.faults.switch(Fault.SKIP_GENERATION)
    recorder = Recorder(engine)
    engine.submit("second", [*ROOTS[0], 5], 3)
    engine.run()
    assert engine.violations
    assert all(violation.exchanged and not violation.moved for violation in engine.violations)
    assert recorder.worst(truth) < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_unguarded_threads_are_noticed(seed: int) -> None:
    """With the guard off and threads that evict, answers stay right: what moved is seen at bind or before use."""
    truth = Truth()
    engine = Engine(MODEL, EngineConfig(poison=True, tail_pages=120, window_pages=40), weights=truth.weights)
    engine.faults.switch(Fault.UNGUARDED_BIND)
    recorder = Recorder(engine)
    with Evictors(engine.pages):
        _traffic(engine, 15, 0.0)
    assert recorder.worst(truth) < 1e-9
