"""Random schedules for the reference engine, its ground truth, and its invariants, written without its look-up code.

Invariant: imports the reference engine's parts and the domain model only; nothing here decides what may be reused.
"""

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from agent.reference.config import EngineConfig, ModelConfig
from agent.reference.dense import DenseResult, dense_forward
from agent.reference.engine import Engine
from agent.reference.keys import Identity
from agent.reference.pages import NULL, PageState
from agent.reference.request import Request
from agent.reference.weights import Weights, build_weights

NIGHTLY = os.environ.get("KVCTL_NIGHTLY") == "1"
"""The long profile: every count as the issue states it."""

MODEL = ModelConfig()


class Truth:
    """Full recomputation of sequences, each computed once.

    Args:
        model: Shapes.
    """

    def __init__(self, model: ModelConfig = MODEL) -> None:
        self.weights: Weights = build_weights(model)
        self._known: dict[tuple[int, ...], DenseResult] = {}

    def of(self, tokens: Sequence[int]) -> DenseResult:
        """Return the dense result of a sequence."""
        key = tuple(tokens)
        if key not in self._known:
            if len(self._known) > 512:
                self._known.clear()
            self._known[key] = dense_forward(self.weights, list(tokens))
        return self._known[key]


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the largest difference relative to the largest magnitude of the truth."""
    return float((value - truth).abs().max() / truth.abs().max())


class Recorder:
    """Keeps everything that an engine computes, to compare it with the truth afterwards."""

    def __init__(self, engine: Engine) -> None:
        self.seen: dict[str, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}
        self.requests: dict[str, Request] = {}
        engine.observer = self._see

    def _see(self, request: Request, start: int, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        self.requests[request.id] = request
        self.seen.setdefault(request.id, []).append((start, hidden, logits))

    def worst(self, truth: Truth, names: Iterable[str] | None = None) -> float:
        """Return the largest relative difference of any hidden state or logit from a full recomputation."""
        worst = 0.0
        for name in self.seen if names is None else names:
            whole = truth.of(self.requests[name].tokens)
            for start, hidden, logits in self.seen[name]:
                end = start + hidden.shape[0]
                worst = max(worst, relative(hidden, whole.hidden[start:end]), relative(logits, whole.logits[start:end]))
        return worst


def holders(engine: Engine) -> Counter[int]:
    """Count who holds each page: tables of living requests, and transfers."""
    count: Counter[int] = Counter(engine.prefetcher.holders())
    for request in engine.scheduler.running:
        for table in request.tables.values():
            count.update(page for page in table if page != NULL)
    return count


def check_pages(engine: Engine) -> None:
    """Assert what gate 1 asserts: counts, free list, hash table and ownership agree, page by page."""
    pages, held = engine.pages, holders(engine)
    free = [page for pool in pages.free.values() for page in pool]
    idle = [page for pool in pages.evictable.values() for page in pool]
    assert len(free) == len(set(free)), "a page stands twice in a free list"
    assert not set(free) & set(idle), "a page is free and evictable"
    for page in range(1, pages.count):
        state = pages.state(page)
        assert pages.references[page] == held[page], (
            f"page {page}: {pages.references[page]} references, {held[page]} holders"
        )
        assert (pages.references[page] > 0) == (state in {PageState.ALLOCATED, PageState.FILLED, PageState.CACHED})
        assert (pages.key[page] is not None) == (state in {PageState.CACHED, PageState.EVICTABLE})
    assert len(free) == sum(pages.state(page) is PageState.FREE for page in range(1, pages.count))
    assert len(idle) == sum(pages.state(page) is PageState.EVICTABLE for page in range(1, pages.count))
    named = [(name, page) for name, found in pages.index.items() for page in found]
    assert all((pages.group[page], pages.key[page]) == name for name, page in named)
    assert len(named) == sum(key is not None for key in pages.key)
    assert pages.references[NULL] == 0
    assert NULL not in free


@dataclass(slots=True)
class Outcome:
    """What a schedule did."""

    worst: float
    records: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    cancelled: int = 0
    loaded: int = 0


def _config(dice: random.Random, folder: str | None) -> EngineConfig:
    return EngineConfig(
        chunk=dice.randint(2, 40),
        step_tokens=dice.randint(8, 80),
        max_batch=dice.randint(1, 8),
        max_tokens=160,
        compressed_pages=dice.randint(60, 120),
        window_pages=dice.randint(30, 64),
        tail_pages=dice.randint(120, 200),
        indexer_pages=dice.randint(24, 40),
        host_pages=dice.choice([0, 0, 40, 80]),
        disk_folder=folder,
        retention_interval=dice.choice([None, None, 0, 32]),
        cached_share=dice.choice([0.3, 0.75, 1.0]),
        poison=True,
    )


def _disturb(engine: Engine, dice: random.Random) -> None:
    """Let one of the things happen that happen to a cache in production."""
    chance = dice.random()
    if chance < 0.12:
        idle = [page for pool in engine.pages.evictable.values() for page in pool]
        for page in dice.sample(idle, min(len(idle), dice.randint(1, 12))):
            engine.pages.evict(page)
    elif chance < 0.15:
        cached = [page for found in engine.pages.index.values() for page in found]
        for page in dice.sample(cached, min(len(cached), 3)):
            engine.pages.invalidate(page)
    elif chance < 0.19 and engine.requests:
        engine.cancel(dice.choice(list(engine.requests)))
    elif chance < 0.25 and engine.scheduler.running:
        engine.scheduler.preempt(engine.scheduler.running[-1])
    elif chance < 0.27:
        engine.tiers.forget_host()
    elif chance < 0.28:
        engine.restart()


def run_schedule(seed: int, truth: Truth, *, folder: str | None = None) -> Outcome:
    """Run one random schedule and compare everything it computed with a full recomputation.

    Shared prefixes are cut anywhere, prompts are prefilled in chunks of any size, states of any kind are evicted,
    requests are preempted, cancelled and resumed, and pages come back from other tiers.
    """
    dice = random.Random(seed)
    engine = Engine(MODEL, _config(dice, folder), weights=truth.weights)
    recorder = Recorder(engine)
    roots = [[dice.randrange(MODEL.vocabulary) for _ in range(120)] for _ in range(2)]
    for number in range(dice.randint(4, 9)):
        prompt = dice.choice(roots)[: dice.randint(1, 110)]
        prompt = prompt + [dice.randrange(MODEL.vocabulary) for _ in range(dice.randint(0, 20))]
        identity = Identity(salt=dice.choice(["", "", "", "other"]))
        engine.submit(f"r{number}", prompt, dice.randint(1, 12), identity=identity, skip_cache=dice.random() < 0.05)
        for _ in range(dice.randint(0, 12)):
            engine.step()
            _disturb(engine, dice)
        check_pages(engine)
    engine.run(5_000)
    check_pages(engine)
    assert not engine.violations
    result = Outcome(worst=recorder.worst(truth), preemptions=engine.scheduler.preemptions)
    result.cancelled, result.loaded = engine.counters.cancelled, engine.prefetcher.loaded
    for record in engine.scheduler.records:
        result.records[record.outcome] += 1
        result.records.update(record.routes)
        result.records["degraded"] += record.degraded
    engine.close()
    return result


def swap_out(engine: Engine) -> None:
    """Evict everything and wait for the copies to be acknowledged."""
    for pool in engine.pages.evictable.values():
        for page in list(pool):
            engine.pages.evict(page)
    while engine.transfers.pending:
        engine.transfers.pump(100)
        engine.collect()
