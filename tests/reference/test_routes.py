"""Each recovery route is needed by some loss, and wins back exactly what was lost."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.model.decision import Fidelity, Outcome, Reason
from agent.model.states import State
from agent.reference.config import ALL_ROUTES, EngineConfig, LayerKind, ModelConfig, Recovery
from agent.reference.engine import Engine
from agent.reference.geometry import GroupName
from tests.support.reference import MODEL, NIGHTLY, Recorder, Truth, check_pages

PROMPT = random.Random(3).choices(range(MODEL.vocabulary), k=99)
BOUNDARY = 96


def evict(engine: Engine, *names: GroupName) -> int:
    """Evict every idle page of some groups; returns how many."""
    groups = {engine.pools.by_name[name].id for name in names}
    pages = [page for pool in engine.pages.evictable.values() for page in pool if engine.pages.group[page] in groups]
    for page in pages:
        engine.pages.evict(page)
    return len(pages)


def everything(engine: Engine) -> None:
    """Evict all that is cached."""
    evict(engine, *engine.pools.by_name)
    for _ in range(8):
        engine.transfers.pump(1000)
        engine.collect()


LOSSES: dict[Recovery, Callable[[Engine], object]] = {
    Recovery.MAP: lambda _: None,
    Recovery.TAIL: lambda engine: evict(engine, GroupName.CSA_TAIL),
    Recovery.WINDOW: lambda engine: evict(engine, GroupName.WINDOW),
    Recovery.INDEXER: lambda engine: evict(engine, GroupName.INDEXER),
    Recovery.TRANSFER: everything,
}


def second_request(
    loss: Callable[[Engine], object], truth: Truth, *, model: ModelConfig = MODEL, **changes: Any
) -> Engine:
    """Cache a prompt, lose something, ask again; returns the engine after both, compared with the truth."""
    settings: dict[str, Any] = {"host_pages": 200, "degrade": False, "poison": True, **changes}
    engine = Engine(model, EngineConfig(**settings), weights=truth.weights)
    engine.submit("first", PROMPT, 1)
    engine.run()
    loss(engine)
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 1, 2, 3], 6)
    engine.run()
    check_pages(engine)
    if not engine.config.bounded_replay:
        assert recorder.worst(truth) < 1e-9
    return engine


@pytest.mark.parametrize("route", list(Recovery))
def test_each_route_is_needed(route: Recovery) -> None:
    """With the route the whole prefix is reused after its loss; without it the request computes more."""
    truth = Truth()
    allowed = ALL_ROUTES if route is Recovery.TRANSFER else ALL_ROUTES - {Recovery.TRANSFER}
    record = second_request(LOSSES[route], truth, routes=allowed).scheduler.records[-1]
    assert record.reused == BOUNDARY
    without = frozenset() if route is Recovery.MAP else allowed - {route}
    broken = second_request(LOSSES[route], truth, routes=without).scheduler.records[-1]
    assert broken.reused < BOUNDARY
    assert route not in broken.routes


@pytest.mark.parametrize(
    ("route", "reason", "state"),
    [
        (Recovery.TAIL, Reason.TAIL_MISSING, GroupName.CSA_TAIL),
        (Recovery.WINDOW, Reason.WINDOW_HOLE, GroupName.WINDOW),
        (Recovery.INDEXER, Reason.INDEXER_UNSYNCED, GroupName.INDEXER),
    ],
)
def test_a_recovered_reuse_says_what_was_missing(route: Recovery, reason: Reason, state: GroupName) -> None:
    """The record names outcome, reason, limiting group and route, and that usable was 0."""
    engine = second_request(LOSSES[route], Truth(), routes=ALL_ROUTES - {Recovery.TRANSFER})
    record = engine.scheduler.records[-1]
    assert (record.outcome, record.reason, record.limiting) == (Outcome.PARTIAL, reason, state)
    assert (record.logical, record.usable, record.reused) == (BOUNDARY, 0, BOUNDARY)
    assert record.routes == (Recovery.MAP, route)
    assert record.fidelity is Fidelity.REPLAY_EXACT


def test_a_whole_reuse_loses_nothing() -> None:
    """With everything there the outcome is reuse, exact, without a reason."""
    record = second_request(LOSSES[Recovery.MAP], Truth()).scheduler.records[-1]
    assert (record.outcome, record.reason, record.fidelity) == (Outcome.REUSE, None, Fidelity.EXACT)
    assert record.logical == record.usable == record.reused == BOUNDARY


@pytest.mark.parametrize(
    "lost",
    [
        (GroupName.CSA_TAIL, GroupName.HCA_TAIL),
        (GroupName.WINDOW, GroupName.CSA_TAIL),
        (GroupName.WINDOW, GroupName.INDEXER),
        (GroupName.WINDOW, GroupName.INDEXER, GroupName.CSA_TAIL, GroupName.HCA_TAIL),
    ],
    ids="+".join,
)
def test_several_losses_take_several_routes(lost: tuple[GroupName, ...]) -> None:
    """Losses of several states are recovered each by its own route, exactly."""
    routes = ALL_ROUTES - {Recovery.TRANSFER}
    engine = second_request(lambda engine: evict(engine, *lost), Truth(), routes=routes)
    record = engine.scheduler.records[-1]
    wanted = {Recovery.MAP}
    wanted |= {Recovery.TAIL} if {GroupName.CSA_TAIL, GroupName.HCA_TAIL} & set(lost) else set()
    wanted |= {Recovery.WINDOW} if GroupName.WINDOW in lost else set()
    wanted |= {Recovery.INDEXER} if GroupName.INDEXER in lost else set()
    assert record.reused == BOUNDARY
    assert set(record.routes) == wanted


def _contents(engine: Engine) -> dict[tuple[int, bytes], torch.Tensor]:
    """Return what every registered page holds."""
    return {name: engine.pools.content(found[0]) for name, found in engine.pages.index.items()}


@pytest.mark.parametrize(
    "lost",
    [
        (GroupName.CSA_TAIL,),
        (GroupName.HCA_TAIL,),
        (GroupName.WINDOW,),
        (GroupName.INDEXER,),
        (GroupName.WINDOW, GroupName.CSA_TAIL, GroupName.HCA_TAIL),
        (GroupName.FULL,),
        (GroupName.COMPRESSED, GroupName.INDEXER, GroupName.WINDOW, GroupName.CSA_TAIL),
    ],
    ids="+".join,
)
def test_recovered_pages_hold_what_was_lost(lost: tuple[GroupName, ...]) -> None:
    """Every page that is registered again after its loss holds what it held before, also where nobody reads it yet."""
    truth = Truth()
    config = EngineConfig(poison=True, routes=ALL_ROUTES - {Recovery.TRANSFER})
    engine = Engine(MODEL, config, weights=truth.weights)
    engine.submit("first", PROMPT, 1)
    engine.run()
    before = _contents(engine)
    evict(engine, *lost)
    gone = set(before) - set(_contents(engine))
    engine.submit("second", [*PROMPT, 1, 2, 3], 1)
    engine.run()
    after = _contents(engine)
    back = gone & set(after)
    assert {engine.pools.specs[group].name for group, _ in back} == set(lost)
    for name in set(before) & set(after):
        assert torch.allclose(before[name], after[name], rtol=1e-9, atol=1e-9), engine.pools.specs[name[0]].name


def test_the_degradation_chain_keeps_the_good_layers() -> None:
    """With a lost full history the layers above it are reused, those up to it recomputed, and that is cheaper."""
    truth = Truth()
    kept = second_request(lambda engine: evict(engine, GroupName.FULL), truth, degrade=True, host_pages=0)
    record = kept.scheduler.records[-1]
    assert (record.outcome, record.degraded, record.reused) == (Outcome.PARTIAL, True, BOUNDARY)
    assert record.fidelity is Fidelity.RECOMPUTE
    assert kept.counters.replayed_tokens == BOUNDARY
    full = second_request(lambda engine: evict(engine, GroupName.FULL), truth, degrade=False, host_pages=0)
    assert full.scheduler.records[-1].outcome is Outcome.RECOMPUTE


def test_a_shorter_prefix_is_part_of_the_chain() -> None:
    """Where the last block of a full history is gone, the shorter prefix is mapped rather than layers recomputed."""

    def lose_last(engine: Engine) -> None:
        group = engine.pools.by_name[GroupName.COMPRESSED].id
        idle = engine.pages.evictable[State.COMPRESSED]
        mine = [page for page in idle if engine.pages.group[page] == group]
        engine.pages.evict(max(mine, key=engine.pages.tokens.__getitem__))

    record = second_request(lose_last, Truth(), degrade=True, host_pages=0).scheduler.records[-1]
    assert (record.outcome, record.reused, record.usable) == (Outcome.PARTIAL, BOUNDARY - 16, BOUNDARY - 16)


def test_a_recurrent_layer_below_rules_a_replay_out() -> None:
    """A window above a recurrent layer cannot be realigned by replay: its state at the start of the replay is gone."""
    model = ModelConfig(layers=(LayerKind.RECURRENT, LayerKind.WINDOW, LayerKind.FULL))
    truth = Truth(model)
    engine = second_request(lambda engine: evict(engine, GroupName.WINDOW), truth, model=model, host_pages=0)
    assert Recovery.WINDOW not in engine.scheduler.records[-1].routes


def test_a_prompt_of_one_repeated_token_is_reused_rightly() -> None:
    """Equal entries tie in the indexer; the choice between them does not depend on how the work was cut."""
    truth = Truth()
    engine = Engine(MODEL, EngineConfig(poison=True, chunk=23), weights=truth.weights)
    recorder = Recorder(engine)
    for number in range(3):
        engine.submit(f"r{number}", [7] * 100 + [number], 12)
        engine.run()
    assert engine.scheduler.records[-1].reused == BOUNDARY
    assert recorder.worst(truth) < 1e-9


def test_a_bounded_replay_is_approximate_and_never_cached() -> None:
    """W tokens replayed give other hidden states; the record says so and nothing of the request is registered."""
    truth = Truth()
    routes = ALL_ROUTES - {Recovery.TRANSFER}
    settings: dict[str, Any] = {
        "host_pages": 0,
        "degrade": False,
        "poison": True,
        "routes": routes,
        "bounded_replay": True,
    }
    engine = Engine(MODEL, EngineConfig(**settings), weights=truth.weights)
    engine.submit("first", PROMPT, 1)
    engine.run()
    evict(engine, GroupName.WINDOW)
    keys, recorder = len(engine.pages.index), Recorder(engine)
    engine.submit("second", [*PROMPT, *PROMPT[:40]], 6)
    engine.run()
    record = engine.scheduler.records[-1]
    assert record.fidelity is Fidelity.REPLAY_APPROXIMATE
    assert len(engine.pages.index) == keys
    assert 1e-9 < recorder.worst(truth) < 2.0


@pytest.mark.parametrize("seed", range(40 if NIGHTLY else 8))
def test_any_single_loss_is_survived(seed: int) -> None:
    """Whatever single page is evicted, the next request's answer is that of a full recomputation."""

    def lose_one(engine: Engine) -> None:
        idle = [page for pool in engine.pages.evictable.values() for page in pool]
        engine.pages.evict(random.Random(seed).choice(idle))

    second_request(lose_one, Truth(), degrade=True, host_pages=0)
