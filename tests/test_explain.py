"""What one decision is explained with: cases in small, on caches that are sets of keys."""

from dataclasses import replace

import pytest

from agent.explain import explain
from agent.model.decision import Decision, Fidelity, Outcome, Phase, Reason
from agent.model.groups import Geometry
from agent.model.states import ResumeKind, State
from agent.resume import evaluate
from tests.support.lookups import Cache, record
from tests.support.pools import chain_of, deepseek_v4, group_of

SWA, MAIN, C4, C128 = 0, 2, 3, 4
A = chain_of("a", 2_000, 4)
EXTENDED = chain_of("b", 2_050, 4, fork=("a", 2_000))
SHARED_1500 = chain_of("c", 1_550, 4, fork=("a", 1_500))


def filled(retention: int | None = 0) -> Cache:
    """Give DeepSeek-V4's groups with 2,000 tokens cached."""
    cache = Cache(deepseek_v4(retention))
    cache.prompt(A, 2_000)
    return cache


def decide(cache: Cache, chain: tuple[bytes, ...], tokens: int, *, complete: bool | None = True) -> Decision:
    """Explain a look-up in which the engine did what our rules say."""
    ghost = None if complete is None else cache.ghost(complete=complete)
    hit = evaluate(cache.geometry, chain, cache, limit=tokens - 1)
    return explain(cache.geometry, cache, ghost, record(chain, tokens, hit.usable or 0))


def lost(decision: Decision) -> dict[tuple[Reason, int | None], int]:
    """Give the losses of a decision by reason and group."""
    return {(reason, group): tokens for reason, group, tokens in decision.lost}


def test_case_1_everything_that_can_be_reused_is() -> None:
    """Logical and usable are 1,792, the outcome is reuse, and the other 258 tokens are cold or below one unit."""
    decision = decide(filled(), EXTENDED, 2_050)
    assert (decision.logical, decision.usable, decision.outcome) == (1_792, 1_792, Outcome.REUSE)
    assert decision.reason is None
    assert decision.limiting_group is None
    assert lost(decision) == {(Reason.ALIGNMENT, None): 2, (Reason.COLD, None): 256}
    assert decision.fidelity is Fidelity.EXACT
    assert decision.per_group == (1_792,) * 5


def test_case_2_an_evicted_window_page_is_a_hole() -> None:
    """Usable 0, limiting group window, reason window_hole, 1,792 tokens lost to that group."""
    cache = filled()
    cache.evict(SWA, A, 1_792)
    decision = decide(cache, EXTENDED, 2_050)
    assert (decision.logical, decision.usable, decision.outcome) == (1_792, 0, Outcome.RECOMPUTE)
    assert (decision.limiting_group, decision.limiting_state, decision.reason) == (SWA, State.SWA, Reason.WINDOW_HOLE)
    assert lost(decision)[Reason.WINDOW_HOLE, SWA] == 1_792


def test_case_2_a_later_page_of_the_run_proves_the_hole() -> None:
    """Without any ghost the later page of the pair proves that the earlier one was there."""
    cache = filled()
    cache.evict(SWA, A, 1_728)
    assert decide(cache, EXTENDED, 2_050, complete=None).reason is Reason.WINDOW_HOLE


def test_an_earlier_page_of_the_run_proves_nothing() -> None:
    """A request that ended in the middle of a run registered its first page and never the second: unknown, not lost."""
    cache = filled()
    cache.evict(SWA, A, 1_792)
    assert decide(cache, EXTENDED, 2_050, complete=None).reason is Reason.UNKNOWN


def test_case_3_a_missing_compressor_state() -> None:
    """Usable 0, limiting state tail, reason tail_missing."""
    cache = filled()
    cache.evict(C4, A, 1_792)
    decision = decide(cache, EXTENDED, 2_050)
    assert (decision.usable, decision.limiting_group, decision.limiting_state) == (0, C4, State.TAIL)
    assert decision.reason is Reason.TAIL_MISSING


def test_case_4_what_was_never_kept_is_no_hole() -> None:
    """Logical 1,280, usable 0, reason not_retained: the engine keeps window and tail pages at the end only."""
    decision = decide(filled(), SHARED_1500, 1_550)
    assert (decision.logical, decision.usable, decision.outcome) == (1_280, 0, Outcome.RECOMPUTE)
    assert decision.reason is Reason.NOT_RETAINED
    assert decision.limiting_group == SWA
    assert lost(decision)[Reason.NOT_RETAINED, SWA] == 1_280


@pytest.mark.parametrize(("retention", "usable"), [(None, 1_280), (512, 1_024)])
def test_case_4_the_remedy_is_the_engines_retention(retention: int | None, usable: int) -> None:
    """Dense retention would give 1,280 tokens, every 512 tokens 1,024."""
    assert decide(filled(retention), SHARED_1500, 1_550).usable == usable


def test_case_4_without_a_ghost_nothing_is_claimed() -> None:
    """Nobody remembers whether the window pages were ever there: the reason is unknown, the numbers are not."""
    decision = decide(filled(), SHARED_1500, 1_550, complete=None)
    assert (decision.logical, decision.usable, decision.reason) == (1_280, 0, Reason.UNKNOWN)


def test_case_4_under_periodic_retention_a_kept_boundary_that_is_gone_is_a_hole() -> None:
    """A multiple of the retention interval was certainly registered: its loss is a hole even without a ghost."""
    cache = filled(512)
    for end in (960, 1_024):
        cache.evict(SWA, A, end)
    decision = decide(cache, chain_of("d", 1_100, 4, fork=("a", 1_024)), 1_100, complete=None)
    assert (decision.logical, decision.usable) == (1_024, 512)
    assert decision.reason is Reason.WINDOW_HOLE


def test_case_6_the_group_that_always_answers_nothing_is_named() -> None:
    """One group of five has nothing for any of 1,000 requests: the waterfall collapses at it every time."""
    geometry = deepseek_v4(None)
    cache = Cache(geometry)
    cache.prompt(A, 2_000)
    cache.held = {pair for pair in cache.held if pair[0] != C128}
    cache.registered = set(cache.held)
    decisions = [decide(cache, EXTENDED[: tokens // 4], tokens) for tokens in range(1_050, 2_050)]
    assert {decision.usable for decision in decisions} == {0}
    assert {decision.limiting_group for decision in decisions} == {C128}
    assert {decision.per_group[C128] for decision in decisions if decision.per_group} == {0}
    steps = [step for step in decisions[-1].waterfall if step.group is not None]
    assert [(step.group, step.from_tokens, step.to_tokens) for step in steps] == [(C128, 1_792, 0)]


def test_case_7_prompts_shorter_than_one_unit() -> None:
    """Groups of block 128, 4,096, 32, 2 and 8: 500 tokens are below the granularity of 4,096."""
    blocks = (128, 4_096, 32, 2, 8)
    groups = tuple(group_of(i, ResumeKind.FULL, block) for i, block in enumerate(blocks))
    cache = Cache(Geometry(groups=groups, hash_unit=2, alignment=4_096))
    decision = decide(cache, chain_of("a", 500, 2), 500)
    assert (decision.logical, decision.usable, decision.outcome) == (0, 0, Outcome.RECOMPUTE)
    assert decision.reason is Reason.BELOW_GRANULARITY
    assert decision.lost == ((Reason.BELOW_GRANULARITY, None, 500),)


def test_case_15_a_request_that_was_looked_up_four_times_and_resumed() -> None:
    """One decision for the admission, one for the resumption: look-ups are kept, admitted tokens count 1 + 1."""
    cache = filled()
    first = explain(cache.geometry, cache, cache.ghost(), record(EXTENDED, 2_050, 1_792, lookups=4))
    again = explain(cache.geometry, cache, cache.ghost(), record(EXTENDED, 2_050, 1_792, phase=Phase.RESUMED))
    assert [(d.phase, d.lookups, d.outcome) for d in (first, again)] == [
        (Phase.FIRST, 4, Outcome.REUSE),
        (Phase.RESUMED, 1, Outcome.REUSE),
    ]
    assert sum(d.lookup_tokens for d in (first, again)) == 2 * 2_050


def test_losses_add_up() -> None:
    """Tokens looked up are tokens reused plus tokens lost, each once."""
    cache = filled(None)
    cache.evict(SWA, A, 1_792)
    cache.evict(C4, A, 1_536)
    decision = decide(cache, EXTENDED, 2_050)
    assert sum(lost(decision).values()) == 2_050 - (decision.usable or 0)
    assert decision.waterfall[0].from_tokens == 2_050
    for before, after in zip(decision.waterfall, decision.waterfall[1:], strict=False):
        assert before.to_tokens == after.from_tokens


def test_partial_reuse() -> None:
    """A hole near the end leaves a shorter prefix: the outcome is partial, and the hole's group is limiting."""
    cache = filled(None)
    cache.evict(C4, A, 1_792)
    decision = decide(cache, EXTENDED, 2_050)
    assert (decision.usable, decision.outcome, decision.reason) == (1_536, Outcome.PARTIAL, Reason.TAIL_MISSING)


def test_evicted_is_told_from_cold() -> None:
    """What was registered once and is in no group any more is evicted; what never was is cold."""
    cache = filled()
    cache.held.clear()
    decision = decide(cache, EXTENDED, 2_050)
    assert (decision.logical, decision.reason, decision.outcome) == (0, Reason.EVICTED, Outcome.RECOMPUTE)
    assert lost(decision) == {(Reason.ALIGNMENT, None): 2, (Reason.COLD, None): 256, (Reason.EVICTED, None): 1_792}


def test_without_a_ghost_a_miss_is_unknown() -> None:
    """Nobody remembers: neither cold nor evicted is claimed."""
    assert decide(Cache(deepseek_v4()), EXTENDED, 2_050, complete=None).reason is Reason.UNKNOWN
    assert decide(Cache(deepseek_v4()), EXTENDED, 2_050, complete=False).reason is Reason.UNKNOWN
    assert decide(Cache(deepseek_v4()), EXTENDED, 2_050).reason is Reason.COLD


def test_an_aligned_prompt_loses_a_unit_to_its_last_token() -> None:
    """The last token is computed in any case, which costs a whole unit where the prompt ends on a boundary."""
    cache = Cache(deepseek_v4(None))
    cache.prompt(chain_of("a", 2_048, 4), 2_048)
    decision = decide(cache, chain_of("a", 2_048, 4), 2_048)
    assert (decision.usable, decision.outcome, decision.reason) == (1_792, Outcome.REUSE, None)
    assert lost(decision) == {(Reason.LAST_TOKEN, None): 256}


def test_a_full_page_that_is_gone_was_evicted() -> None:
    """A later page proves that the prefix was computed, and full groups keep every page: one that is not there left."""
    cache = filled(None)
    cache.evict(MAIN, A, 1_024)
    decision = decide(cache, EXTENDED, 2_050, complete=None)
    assert (decision.usable, decision.limiting_group, decision.reason) == (768, MAIN, Reason.EVICTED)


def test_an_indexer_of_its_own_is_unsynced() -> None:
    """Keys of an indexer that end before the entries they select for are named as such."""
    indexer = group_of(1, ResumeKind.FULL, 64, states=(State.INDEXER,))
    cache = Cache(Geometry(groups=(group_of(0, ResumeKind.FULL, 64), indexer), hash_unit=64, alignment=64))
    chain = chain_of("a", 640, 64)
    cache.register(0, chain, range(64, 641, 64))
    cache.register(1, chain, range(64, 449, 64))
    decision = decide(cache, chain, 700)
    assert (decision.usable, decision.limiting_group, decision.reason) == (448, 1, Reason.INDEXER_UNSYNCED)


@pytest.mark.parametrize(("complete", "reason"), [(True, Reason.ALIGNMENT), (False, Reason.UNKNOWN)])
def test_a_boundary_inside_a_full_page(complete: bool, reason: Reason) -> None:
    """Hits may end inside pages, but this one was only ever registered whole: lost by design, and no degradation."""
    coarse = group_of(1, ResumeKind.FULL, 64, fine_grained=True, lookup_class=1)
    geometry = Geometry(
        groups=(group_of(0, ResumeKind.FULL, 16), coarse), hash_unit=16, alignment=16, partial_hits=True
    )
    cache = Cache(geometry)
    chain = chain_of("a", 224, 16)
    cache.register(0, chain, range(16, 225, 16))
    cache.register(1, chain, range(64, 193, 64))
    decision = decide(cache, chain, 230, complete=complete)
    assert (decision.logical, decision.usable) == (224, 192)
    assert (decision.limiting_group, decision.reason) == (1, reason)
    assert decision.outcome is (Outcome.REUSE if complete else Outcome.PARTIAL)


@pytest.mark.parametrize(
    ("kept", "complete", "reason"),
    [
        (True, True, Reason.CHECKPOINT_MISSING),
        (False, True, Reason.NOT_RETAINED),
        (False, False, Reason.UNKNOWN),
    ],
)
def test_recurrent_checkpoints(kept: bool, complete: bool, reason: Reason) -> None:
    """A checkpoint that was registered is missing, one that never was is not retained, else nobody knows."""
    groups = (group_of(0, ResumeKind.RECURRENT, 64), group_of(1, ResumeKind.FULL, 64))
    cache = Cache(Geometry(groups=groups, hash_unit=64, alignment=64, retention_interval=0))
    chain = chain_of("a", 640, 64)
    cache.register(1, chain, range(64, 641, 64))
    cache.register(0, chain, [640] if kept else [])
    if kept:
        cache.evict(0, chain, 640)
    decision = decide(cache, chain, 700, complete=complete)
    assert (decision.logical, decision.usable, decision.reason) == (640, 0, reason)


def test_a_draft_margin_is_no_degradation() -> None:
    """A speculative group that drops its last block costs one unit by design: outcome reuse, no limiting group."""
    draft = group_of(1, ResumeKind.FULL, 16, draft=True)
    cache = Cache(Geometry(groups=(group_of(0, ResumeKind.FULL, 16), draft), hash_unit=16, alignment=16))
    chain = chain_of("a", 160, 16)
    for group in (0, 1):
        cache.register(group, chain, range(16, 161, 16))
    decision = decide(cache, chain + chain_of("tail", 16, 16), 180)
    assert (decision.logical, decision.usable, decision.outcome) == (160, 144, Outcome.REUSE)
    assert lost(decision)[Reason.DRAFT_MARGIN, None] == 16
    assert decision.limiting_group is None


def test_skipped_reading() -> None:
    """A request that asked not to read the cache lost everything to that, and what was there is shown."""
    cache = filled()
    decision = explain(cache.geometry, cache, cache.ghost(), record(EXTENDED, 2_050, skipped=True))
    assert (decision.outcome, decision.reason) == (Outcome.RECOMPUTE, Reason.SKIPPED)
    assert decision.lost == ((Reason.SKIPPED, None, 2_050),)
    assert decision.usable == 1_792


def test_a_tier_that_is_still_moving() -> None:
    """A decision that waits for another tier is prefetching and not ready, never reuse."""
    cache = filled()
    decision = explain(cache.geometry, cache, None, record(EXTENDED, 2_050, outcome=Outcome.PREFETCHING))
    assert (decision.outcome, decision.reason) == (Outcome.PREFETCHING, Reason.NOT_READY)


def test_without_a_chain_only_the_record_speaks() -> None:
    """No keys: no numbers of ours, the reason is unknown, and nothing is invented."""
    cache = filled()
    decision = explain(cache.geometry, cache, cache.ghost(), record(None, 2_050, 1_792))
    assert (decision.logical, decision.usable, decision.per_group) == (None, None, None)
    assert (decision.outcome, decision.reason) == (Outcome.UNKNOWN, Reason.UNKNOWN)


def test_an_unknown_group_makes_usable_unknown() -> None:
    """A manager that nobody knows is shown, and neither usable nor the limiting group is guessed."""
    geometry = deepseek_v4()
    geometry = replace(geometry, groups=(*geometry.groups, group_of(5, ResumeKind.UNKNOWN, 64)))
    cache = Cache(geometry)
    cache.prompt(A, 2_000)
    decision = decide(cache, EXTENDED, 2_050)
    assert (decision.logical, decision.usable, decision.reason) == (1_792, None, Reason.UNKNOWN)
    assert decision.per_group == (1_792, 1_792, 1_792, 1_792, 1_792, None)


def test_what_the_engine_did_not_use_is_not_hidden() -> None:
    """The engine reused less than our rules allow: the difference is a loss of unknown reason."""
    cache = filled()
    decision = explain(cache.geometry, cache, cache.ghost(), record(EXTENDED, 2_050, 1_536))
    assert (Reason.UNKNOWN, None, 256) in decision.lost


def test_an_engine_without_prefix_caching() -> None:
    """Every look-up is a recomputation, and no number is made up."""
    cache = Cache(replace(deepseek_v4(), caching=False))
    decision = explain(cache.geometry, cache, None, record(EXTENDED, 2_050))
    assert decision.outcome is Outcome.RECOMPUTE
