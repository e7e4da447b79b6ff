"""Healthy snapshots of all group mixes raise nothing; one fault in them is found by its own code and no other."""

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.gates.presence import KeyPresence
from agent.gates.runner import run
from agent.gates.selftest import PLANTS, selftest, untested
from agent.gates.view import View
from agent.model.evidence import EngineLookup, Evidence
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, ResumeKind, State
from agent.resume import evaluate
from tests.support import cases
from tests.support.pools import PoolBuilder, chain_of, deepseek_v4, group_of, plain

EXAMPLES = 10_000 if os.environ.get("KVCTL_NIGHTLY") else 500
KINDS = (ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED, ResumeKind.RECURRENT, ResumeKind.NONE)
LIMITS = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Draw up to five groups; block sizes are powers of two of one unit, as engines make them."""
    unit = draw(st.sampled_from([2, 4, 16]))
    groups: list[Group] = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(KINDS))
        block = unit * draw(st.sampled_from([1, 2, 4]))
        group = group_of(number, kind, block)
        if kind is ResumeKind.WINDOW:
            past = draw(st.integers(1, 4 * block))
            state = draw(st.sampled_from([State.SWA, State.TAIL]))
            group = group_of(number, kind, block, window_past_tokens=past, states=(state,))
        elif kind is ResumeKind.CHUNKED:
            group = group_of(number, kind, block, chunk_tokens=block * draw(st.integers(1, 4)))
        groups.append(group)
    groups = [_special(draw, group) for group in groups]
    fine = draw(st.booleans()) and all(group.kind in {ResumeKind.FULL, ResumeKind.RECURRENT} for group in groups)
    if fine:
        groups = [replace(group, fine_grained=True) for group in groups]
    alignment = unit if fine else max(group.block_size for group in groups)
    return Geometry(groups=tuple(groups), hash_unit=unit, alignment=alignment, partial_hits=fine)


def _special(draw: st.DrawFn, group: Group) -> Group:
    """Make some groups speculative: their range is extended by a margin."""
    if group.kind in {ResumeKind.FULL, ResumeKind.WINDOW} and draw(st.integers(0, 5)) == 0:
        return replace(group, draft=True)
    return group


@st.composite
def healthy(draw: st.DrawFn) -> Snapshot:
    """Draw a pool with cached and running prompts that share prefixes, evictions, duplicates and look-ups."""
    geometry = draw(geometries())
    dice = random.Random(draw(st.integers(0, 1 << 32)))
    pool = PoolBuilder(geometry=geometry, pages=1_024, parents=dice.random() < 0.5)
    most = 6 * geometry.alignment
    chains = []
    for number in range(dice.randint(1, 4)):
        fork = (f"prompt {dice.randrange(number)}", dice.randrange(most)) if number and dice.random() < 0.6 else None
        tokens = dice.randint(geometry.alignment + 1, most)
        chain = chain_of(f"prompt {number}", tokens, geometry.hash_unit, fork=fork)
        running = f"runs {number}" if dice.random() < 0.5 else None
        pool.prompt(chain, tokens, dense=dice.random() < 0.3, request=running)
        chains.append((chain, tokens))
    for page in dice.sample(sorted(pool.rows), dice.randint(0, min(5, len(pool.rows)))):
        if not pool.counts.get(page) and dice.random() < 0.5:
            del pool.rows[page]
        else:
            pool.rows[pool.take()] = pool.rows[page]
    return _looked_up(pool, chains)


def _looked_up(pool: PoolBuilder, chains: list[tuple[tuple[bytes, ...], int]]) -> Snapshot:
    """Let the engine answer each chain as our rules do; a cold prompt keeps decisions free of real losses."""
    snapshot = pool.build()
    lookups = []
    for chain, tokens in chains:
        hit = evaluate(pool.geometry, chain, KeyPresence(View(snapshot), chain), limit=tokens - 1)
        look = EngineLookup(request="sample", chain=chain, limit=tokens - 1, answer=hit.usable or 0, epoch=7)
        lookups.append(look)
    pool.evidence = Evidence(lookups=tuple(lookups))
    fresh = chain_of("never seen", 2 * pool.geometry.alignment, pool.geometry.hash_unit)
    pool.look_up(fresh, 2 * pool.geometry.alignment)
    return pool.build()


@LIMITS
@given(healthy())
def test_a_healthy_snapshot_has_no_finding(snapshot: Snapshot) -> None:
    """Whatever the groups, prompts, evictions and duplicates: no finding."""
    found = [finding.sentence for result in run(snapshot) for finding in result.findings]
    assert found == []


@settings(LIMITS, max_examples=EXAMPLES // 5)
@given(healthy(), st.sampled_from(sorted(PLANTS)))
def test_one_fault_is_found_by_its_own_code(snapshot: Snapshot, code: str) -> None:
    """A single perturbation of a healthy snapshot raises its own code, and no other."""
    results = {result.code: result for result in selftest(snapshot, codes=[code])}
    result = results[code]
    assert not result.broken, (code, result.also)


MIXES = {
    "plain": plain(),
    "deepseek": deepseek_v4(),
    "recurrent": Geometry(
        groups=(group_of(0, ResumeKind.FULL, 16), group_of(1, ResumeKind.RECURRENT, 16)), hash_unit=16, alignment=16
    ),
    "draft": Geometry(
        groups=(group_of(0, ResumeKind.FULL, 16), group_of(1, ResumeKind.FULL, 16, draft=True)),
        hash_unit=16,
        alignment=16,
    ),
}


@pytest.mark.parametrize("mix", MIXES)
def test_the_self_test_passes_on_a_healthy_pool(mix: str) -> None:
    """No gate is broken, and a fault that was not planted says why."""
    geometry = MIXES[mix]
    pool = PoolBuilder(geometry=geometry, pages=512)
    pool.prompt(chain_of("a", 4 * geometry.alignment, geometry.hash_unit), 4 * geometry.alignment, request="runs")
    results = selftest(pool.build())
    assert [(result.code, result.found, result.also) for result in results if result.broken] == []
    assert all(result.reason for result in results if not result.planted)


def test_every_code_can_be_planted_somewhere() -> None:
    """The mixes together carry every fault, but for those that tests plant by hand and the one of event streams."""
    planted = set()
    for geometry in MIXES.values():
        pool = PoolBuilder(geometry=geometry, pages=512)
        pool.prompt(chain_of("a", 2 * geometry.alignment, geometry.hash_unit), 2 * geometry.alignment)
        planted |= {result.code for result in selftest(pool.build()) if result.planted and not result.broken}
    assert set(PLANTS) - planted <= {"KV210", "KV405"}
    assert set(untested()) == {"KV307", "KV310", "KV541"}


WINDOWED = Geometry(
    groups=(group_of(0, ResumeKind.FULL, 16), group_of(1, ResumeKind.WINDOW, 16, window_past_tokens=31)),
    hash_unit=16,
    alignment=16,
)


def test_a_stranded_pool_is_found() -> None:
    """Full history without any window is stranded; with its windows it is not."""
    geometry, chain = WINDOWED, chain_of("a", 1_600, 16)
    whole = PoolBuilder(geometry=geometry, pages=512)
    whole.prompt(chain, 1_600)
    assert "KV310" not in {finding.code for result in run(whole.build()) for finding in result.findings}
    bare = PoolBuilder(geometry=geometry, pages=512)
    bare.cache(chain, geometry.groups[0], range(16, 1_601, 16))
    found = [finding for result in run(bare.build()) for finding in result.findings]
    assert [(finding.code, finding.group, len(finding.pages)) for finding in found] == [("KV310", GroupId(0), 100)]


def test_pages_above_an_unknown_parent_may_be_usable() -> None:
    """Where a reader joined late, a chain ends before its root: what may lie above is not called stranded."""
    geometry, chain = WINDOWED, chain_of("a", 1_600, 16)
    pool = PoolBuilder(geometry=geometry, pages=512)
    pool.prompt(chain, 1_600)
    snapshot = pool.build()
    pages = snapshot.pages
    assert pages is not None
    assert pages.parent is not None
    parents = np.frombuffer(pages.parent, "<u8").copy()
    own = (np.frombuffer(pages.group, np.uint8) == 0) & (np.frombuffer(pages.tokens, "<u4") == 1_600)
    parents[own] = 0
    late = replace(snapshot, pages=replace(pages, parent=memoryview(parents.tobytes())))
    # The last boundary is the only one left that every group holds.
    windows = (np.frombuffer(pages.group, np.uint8) == 1) & (np.frombuffer(pages.tokens, "<u4") < 1_600)
    tokens = np.frombuffer(pages.tokens, "<u4").copy()
    tokens[windows] = 0
    late = replace(late, pages=replace(late.pages or pages, tokens=memoryview(tokens.tobytes())))
    assert "KV310" not in {finding.code for result in run(late) for finding in result.findings}


def test_what_was_there_before_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pool with a loss, a gate that does not see the planted one as well is broken."""
    assert [result.broken for result in selftest(cases.case_2(), codes=["KV301"])] == [False]
    monkeypatch.setitem(PLANTS, "KV301", lambda _editor: None)
    assert [result.broken for result in selftest(cases.case_2(), codes=["KV301"])] == [True]
