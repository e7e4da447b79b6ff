"""Cases 1-4, 6, 7 and 15 on vLLM's own cache manager."""

from dataclasses import dataclass, field
from random import Random

import pytest
from vllm.v1.request import Request

from agent.engines.vllm.groups import geometry_of
from agent.explain import explain
from agent.model.decision import Decision, Outcome, Phase, Reason
from agent.model.states import KEY_BYTES, State
from agent.resume import evaluate, recoverable
from tests.support import vllm_groups as make
from tests.support.lookups import record
from tests.support.vllm_worlds import KeySet, Traffic, World, drop, keys_of
from tests.support.watched_pool import WatchedPool

SWA, MAIN, C4, C128 = 0, 2, 3, 4
A = list(range(1_000, 3_000))


@dataclass(slots=True)
class Watched:
    """A manager and the memory of everything that its pool ever registered."""

    world: World
    traffic: Traffic = field(init=False)
    ghost: WatchedPool = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.world)
        self.ghost = WatchedPool(self.world.manager.block_pool)

    def run(self, tokens: list[int]) -> Request:
        """Prefill a request and end it."""
        request = self.traffic.request(tokens)
        self.traffic.run(request)
        for live in self.traffic.live:
            self.world.manager.free(live)
        self.traffic.live.clear()
        return request

    def decide(self, tokens: list[int], *, lookups: int = 1, phase: Phase = Phase.FIRST) -> Decision:
        """Look a request up as the scheduler does, and explain what came out."""
        request = self.traffic.request(tokens)
        manager = self.world.manager
        for _ in range(lookups):
            _, engine, _ = manager.get_computed_blocks(request)
        chain = [digest[:KEY_BYTES] for digest in request.block_hashes]
        raw = record(chain, len(tokens), engine, lookups=lookups, phase=phase)
        decision = explain(geometry_of(manager), KeySet(keys_of(manager)), self.ghost, raw)
        assert decision.usable == engine
        return decision


class Straight(Random):
    """Requests are prefilled at once and not decoded: the first choice always."""

    def choice(self, seq: object) -> object:  # type: ignore[override]
        """Take the first."""
        return seq[0]  # type: ignore[index]

    def randint(self, a: int, b: int) -> int:
        """Keep nothing live."""
        return a


def watched(setup: make.Setup) -> Watched:
    """Make a manager with 2,000 tokens of request A computed."""
    found = Watched(World(setup, Straight(1)))
    found.run(A)
    return found


def evict(cache: Watched, group: int, end: int) -> None:
    """Evict the page of A that ends at a boundary."""
    request = cache.traffic.request(A)
    assert drop(cache.world.manager, group, request.block_hashes[end // cache.world.setup.unit - 1])


def test_case_1() -> None:
    """Extended by 50 tokens: logical 1,792 = usable 1,792, outcome reuse."""
    decision = watched(make.deepseek_v4()).decide([*A, *range(50)])
    assert (decision.logical, decision.usable, decision.outcome, decision.reason) == (1_792, 1_792, Outcome.REUSE, None)
    assert decision.lost == ((Reason.ALIGNMENT, None, 2), (Reason.COLD, None, 256))


@pytest.mark.parametrize(
    ("group", "reason", "state"),
    [(SWA, Reason.WINDOW_HOLE, State.SWA), (C4, Reason.TAIL_MISSING, State.TAIL)],
    ids=["case 2", "case 3"],
)
def test_cases_2_and_3(group: int, reason: Reason, state: State) -> None:
    """One page that ends at 1,792 is evicted: usable 0, with the group, its state and the reason."""
    cache = watched(make.deepseek_v4())
    evict(cache, group, 1_792)
    decision = cache.decide([*A, *range(50)])
    assert (decision.logical, decision.usable, decision.outcome) == (1_792, 0, Outcome.RECOMPUTE)
    assert (decision.limiting_group, decision.limiting_state, decision.reason) == (group, state, reason)
    assert decision.per_group is not None
    assert decision.per_group[MAIN] == 1_792


@pytest.mark.parametrize(
    ("retention", "logical", "usable", "reason"),
    [
        (0, 1_280, 0, Reason.NOT_RETAINED),
        (512, 1_496, 1_024, Reason.NOT_RETAINED),
        (None, 1_496, 1_280, None),
    ],
)
def test_case_4(retention: int | None, logical: int, usable: int, reason: Reason | None) -> None:
    """1,500 tokens shared: nothing is usable by default; periodic and dense retention give 1,024 and 1,280.

    With them a tail page at 1,496 proves more of the prefix; the part above 1,280 is lost to the alignment, by design.
    """
    decision = watched(make.deepseek_v4(retention)).decide([*A[:1_500], *range(50)])
    assert (decision.logical, decision.usable, decision.reason) == (logical, usable, reason)


def test_case_4_then_the_engine_keeps_the_junction() -> None:
    """The sibling that missed makes vLLM keep that boundary: the next one reuses it."""
    cache = watched(make.deepseek_v4())
    cache.run([*A[:1_500], *range(50)])
    decision = cache.decide([*A[:1_500], *range(100, 150)])
    assert (decision.usable, decision.outcome, decision.reason) == (1_280, Outcome.REUSE, None)


def test_case_6() -> None:
    """A group whose pages are always gone is named by every decision, and the waterfall collapses there."""
    cache = watched(make.deepseek_v4(None))
    for end in range(8, 2_000, 8):
        drop(cache.world.manager, C128, cache.traffic.request(A).block_hashes[end // 4 - 1])
    for tokens in range(300, 2_000, 100):
        decision = cache.decide(A[:tokens])
        assert (decision.usable, decision.limiting_group, decision.reason) == (0, C128, Reason.TAIL_MISSING)
        assert [step.to_tokens for step in decision.waterfall if step.group is not None] == [0]


def test_case_7() -> None:
    """500 tokens on groups of block 128, 4,096, 32, 2 and 8 can never hit."""
    groups = tuple(make.full(block, heads) for block, heads in ((128, 2), (4_096, 4), (32, 8), (2, 16), (8, 32)))
    cache = Watched(World(make.Setup(name="coarse", groups=groups, unit=2), Straight(1)))
    cache.run(A[:500])
    decision = cache.decide(A[:500])
    assert (decision.usable, decision.outcome, decision.reason) == (0, Outcome.RECOMPUTE, Reason.BELOW_GRANULARITY)
    assert decision.lost == ((Reason.BELOW_GRANULARITY, None, 500),)


def test_case_15() -> None:
    """Looked up four times and once more after a preemption: two decisions, the same explanation."""
    cache = watched(make.deepseek_v4())
    first = cache.decide([*A, *range(50)], lookups=4)
    again = cache.decide([*A, *range(50)], phase=Phase.RESUMED)
    assert (first.lookups, first.phase, again.lookups, again.phase) == (4, Phase.FIRST, 1, Phase.RESUMED)
    assert first.usable == again.usable == 1_792


def test_what_a_replay_would_win() -> None:
    """Case 4: replaying 128 tokens would give 1,280 approximately; an exact replay costs 128 for each window layer."""
    cache = watched(make.deepseek_v4())
    request = cache.traffic.request([*A[:1_500], *range(50)])
    chain = [digest[:KEY_BYTES] for digest in request.block_hashes]
    geometry, presence = geometry_of(cache.world.manager), KeySet(keys_of(cache.world.manager))
    hit = evaluate(geometry, chain, presence, limit=1_549)
    ways = recoverable(geometry, chain, presence, limit=1_549, usable=hit.usable or 0)
    assert [(way.fidelity, way.tokens, way.replay_tokens, way.gained) for way in ways] == [
        ("replay_exact", 1_280, 4 * 128, 1_280 - 4 * 128),
        ("replay_approximate", 1_280, 128, 1_152),
    ]
