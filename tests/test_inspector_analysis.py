"""Analyses of a snapshot: what is stranded, what a prefix is worth, where the pages are."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.decision import Hit, Outcome, Reason
from agent.model.evidence import Evidence, Weights
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Capture, Consistency, EngineInfo, Level, PoolInfo, Snapshot
from agent.model.states import GroupId, PageId, ResumeKind, State, Status
from agent.resume import evaluate
from inspector.explain import OUTCOMES, REASONS, STATES
from inspector.nodes import build
from inspector.occupancy import occupancy
from inspector.prefixes import Prefixes
from inspector.reuse import sum_up
from inspector.stranded import reach
from inspector.views.prefix import _why
from tests.support.snapshots import NOON_NS, OTHER, SIBLING, SYSTEM, Pool, chain_of, deepseek, gemma

UNIT = 4


@st.composite
def group_of(draw: st.DrawFn, number: int) -> Group:
    """Draw one group of any kind that the vectorised rules cover."""
    kind = draw(st.sampled_from([ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED, ResumeKind.RECURRENT]))
    block = UNIT * draw(st.sampled_from([1, 2, 3, 4]))
    return Group(
        id=GroupId(number),
        name=f"group#{number}",
        states=(State.COMPRESSED if kind in {ResumeKind.FULL, ResumeKind.RECURRENT} else State.SWA,),
        kind=kind,
        block_size=block,
        window_past_tokens=draw(st.integers(1, 40)) if kind is ResumeKind.WINDOW else None,
        chunk_tokens=block * draw(st.integers(1, 4)) if kind is ResumeKind.CHUNKED else None,
        lookup_class=number,
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[Pool, int]:
    """Draw groups and a table with pages of one prompt missing at random; return it with the prompt's tokens."""
    number = draw(st.integers(1, 4))
    groups = tuple(draw(group_of(at)) for at in range(number))
    alignment = math.lcm(*(group.block_size for group in groups))
    tokens = alignment * draw(st.integers(1, 4))
    pool = Pool(Geometry(groups=groups, hash_unit=UNIT, alignment=alignment), 4_096)
    prompt = (("only", tokens),)
    for group in groups:
        ends = range(group.block_size, tokens + 1, group.block_size)
        gone = draw(st.sets(st.sampled_from(list(ends)), max_size=2)) if draw(st.booleans()) else set()
        pool.keep(prompt, group.id, [end for end in ends if end not in gone])
    return pool, tokens


def snapshot_of(pool: Pool) -> Snapshot:
    """Wrap a table."""
    engine = EngineInfo(pid=1, start_ticks=1, engine="reference", version="0", model="m")
    capture = Capture(consistency=Consistency.ATOMIC, level=Level.CONTENT, epoch=1, taken_ns=NOON_NS)
    return Snapshot(engine=engine, capture=capture, geometry=pool.geometry, pages=pool.columns(references=False))


@settings(max_examples=300, deadline=None)
@given(tables())
def test_vectorised_rules_agree_with_the_resume_rules(drawn: tuple[Pool, int]) -> None:
    """At every boundary of a random table the vectorised rules resume exactly where agent.resume does."""
    pool, tokens = drawn
    nodes = build(snapshot_of(pool))
    assert nodes is not None
    found = reach(nodes)
    assert found is not None
    chain = chain_of((("only", tokens),), UNIT)
    for at in range(pool.geometry.alignment, tokens + 1, pool.geometry.alignment):
        node = nodes.find(chain[at // UNIT - 1])
        ours = node is not None and bool(found.resumes[node])
        theirs = evaluate(pool.geometry, chain[: at // UNIT], nodes, limit=at).usable == at
        if node is None:
            # No group holds a page there: only a group that needs nothing could resume, and there is no node to mark.
            assert not any(nodes.has(group.id, chain[at // UNIT - 1]) for group in pool.geometry.groups)
        else:
            assert ours == theirs, (at, pool.geometry)


@settings(max_examples=100, deadline=None)
@given(tables())
def test_a_stranded_page_lies_beyond_every_usable_hit(drawn: tuple[Pool, int]) -> None:
    """On one chain exactly the pages beyond the longest usable boundary are stranded."""
    pool, tokens = drawn
    nodes = build(snapshot_of(pool))
    assert nodes is not None
    found = reach(nodes)
    assert found is not None
    linked = {at for node in range(nodes.count) for at in nodes.ancestors(node)}
    longest = max((int(nodes.tokens[node]) for node in range(nodes.count) if found.resumes[node]), default=0)
    for node in range(nodes.count):
        if int(nodes.tokens[node]) > longest:
            assert not found.covered[node]
    assert linked == set(nodes.tokens.tolist())
    assert tokens >= longest


@settings(max_examples=300, deadline=None)
@given(tables(), st.data())
def test_what_nobody_knows_is_never_claimed(drawn: tuple[Pool, int], data: st.DataObject) -> None:
    """With parents hidden at random, what is said to resume does, and what is said to be stranded is."""
    pool, _ = drawn
    whole = snapshot_of(pool)
    assert whole.pages is not None
    cached = sorted(pool.rows)
    hidden = data.draw(st.sets(st.sampled_from(cached))) if cached else set()
    parent, stamp = bytearray(whole.pages.parent or b""), bytearray(whole.pages.stamp)
    for page in hidden:
        parent[page * 8 : page * 8 + 8] = bytes(8)
        if data.draw(st.booleans()):
            stamp[page * 8 : page * 8 + 8] = bytes(8)
    pages = replace(whole.pages, parent=memoryview(bytes(parent)), stamp=memoryview(bytes(stamp)))
    true_nodes, nodes = build(whole), build(replace(whole, pages=pages))
    assert true_nodes is not None
    assert nodes is not None
    truth, found = reach(true_nodes), reach(nodes)
    assert truth is not None
    assert found is not None
    for node in range(nodes.count):
        same = true_nodes.find(nodes.key[node].tobytes())
        assert same is not None
        if found.resumes[node]:
            assert truth.resumes[same]
        elif not found.maybe[node]:
            assert not truth.resumes[same]
        if not found.covered[node] and not found.doubtful[node]:
            assert not truth.covered[same]
        if found.covered[node]:
            assert truth.covered[same]


@pytest.mark.parametrize("prompt", [SYSTEM, OTHER])
def test_a_late_reader_knows_what_one_call_registered(prompt: tuple[tuple[str, int], ...]) -> None:
    """Without a single parent, prefixes that one call registered are told as well as by a reader that was there."""
    pool = Pool(gemma().geometry, 1_025)
    end = prompt[-1][1]
    pool.keep_all(prompt, 2, end)
    for group in (0, 1):
        pool.keep_tail(prompt, group, end)
    pages = pool.columns(late=True)
    prefixes = Prefixes(replace(snapshot_of(pool), pages=pages))
    assert [(row.tokens, row.usable) for row in prefixes.rows()] == [(end, end)]
    assert prefixes.stranded == (0, 0, 0)


def test_a_late_reader_does_not_guess_across_calls() -> None:
    """A prefix that several calls registered has an unknown beginning for a late reader: not missing, not stranded."""
    pool = Pool(gemma().geometry, 1_025)
    pool.keep(SYSTEM, 2, range(16, 1_025, 16))
    pool.keep(SYSTEM, 2, range(1_040, 2_049, 16), step=11)
    for group in (0, 1):
        pool.keep_tail(SYSTEM, group, 2_048, step=11)
    prefixes = Prefixes(replace(snapshot_of(pool), pages=pool.columns(late=True)))
    row = next(row for row in prefixes.rows() if row.tokens == 2_048)
    assert (row.usable, row.stranded, row.limiting) == (None, None, None)
    assert row.states[State.COMPRESSED] is Status.UNKNOWN
    assert row.states[State.SWA] is Status.READY
    assert prefixes.stranded[2] is None
    assert prefixes.stranded_bounds == ((0, 64), (0, 64), (0, 128))
    assert prefixes.unlinked == 3


def test_no_reason_is_named_for_what_nobody_can_place() -> None:
    """The rules call a page gone that nobody can place: the group that surely lacks one is named."""
    snapshot = deepseek()
    row = next(row for row in Prefixes(snapshot).rows() if row.usable == 0)
    doubtful = replace(row, groups={**row.groups, GroupId(2): Status.UNKNOWN})
    hit = Hit(
        logical=1_792,
        usable=0,
        per_group=(),
        limiting_group=GroupId(2),
        limiting_state=State.COMPRESSED,
        reason=Reason.EVICTED,
    )
    facts = _why(snapshot, doubtful, hit, [], None)
    said = " ".join(str(line) for _, lines in facts for line in lines)
    assert "tail4/w8#3 limits" in said
    assert "evicted:" not in said


def test_case_1_whole_prefix_is_usable() -> None:
    """DeepSeek-V4's groups with everything there: logical 1,792 is usable 1,792 and nothing of it is stranded."""
    row = next(row for row in Prefixes(deepseek()).rows() if row.usable)
    assert (row.logical, row.usable, row.stranded, row.limiting) == (1_792, 1_792, 0, None)
    assert {row.states[state] for state in (State.COMPRESSED, State.TAIL, State.SWA, State.INDEXER)} == {Status.READY}


def test_case_3_tail_page_gone() -> None:
    """One page of the compressor's state gone: usable 0, the tail limits, all its pages are stranded."""
    row = next(row for row in Prefixes(deepseek()).rows() if row.usable == 0)
    assert (row.logical, row.limiting) == (1_792, 3)
    assert row.states[State.TAIL] is Status.PARTIAL
    assert row.states[State.COMPRESSED] is Status.READY
    assert row.stranded == row.pages


def test_case_2_window_page_gone() -> None:
    """One window page gone: usable 0, the window limits, 1,792 tokens of compressed state are stranded."""
    snapshot = deepseek()
    pool = Pool(snapshot.geometry, 513)
    prompt = (("p", 2_000),)
    pool.keep_all(prompt, 2, 1_792)
    for group in (0, 1, 3, 4):
        pool.keep_tail(prompt, group, 1_792)
    pool.evict(prompt, 0, 1_792)
    prefixes = Prefixes(snapshot_of(pool))
    row = prefixes.rows()[0]
    assert (row.usable, row.limiting, row.states[State.SWA]) == (0, 0, Status.PARTIAL)
    assert prefixes.stranded is not None
    assert prefixes.stranded[2] == 7


def test_siblings_stand_together() -> None:
    """A prefix that shares a beginning stands below the one it branches off, with the shared tokens."""
    rows = Prefixes(gemma()).rows()
    assert [(row.tokens, row.shared) for row in rows] == [(2_048, 0), (1_792, 1_280), (768, 0)]


def test_pages_in_transit_are_not_ready() -> None:
    """Pages registered by a step that was not processed yet are in transit, and nothing resumes on them."""
    pool = Pool(gemma().geometry, 513)
    for group in (0, 1, 2):
        pool.keep_all(OTHER, group, 768, step=2_000)
    snapshot = snapshot_of(pool)
    row = Prefixes(snapshot).rows()[0]
    assert row.usable == 0
    assert set(row.groups.values()) == {Status.IN_TRANSIT}
    found = occupancy(snapshot)
    assert found is not None
    assert found.groups[GroupId(2)].in_transit == 48


@pytest.mark.parametrize("how", ["weights", "never_computed", "tainted"])
def test_stale_pages_are_shown_as_stale(how: str) -> None:
    """Pages of older weights, never computed ones and tainted ones are stale, whatever made them so."""
    snapshot = gemma()
    assert snapshot.pages is not None
    stamp = (10 << 20) | 1
    table = snapshot.pages
    if how == "weights":
        evidence = Evidence(weights=Weights(changes=(11 << 20,)))
        snapshot = replace(snapshot, evidence=evidence)
    elif how == "never_computed":
        snapshot = replace(snapshot, pages=replace(table, never_computed=frozenset({stamp})))
    else:
        snapshot = replace(snapshot, pages=replace(table, tainted=frozenset(map(PageId, range(1, 129)))))
    row = Prefixes(snapshot).rows()[0]
    assert row.states[State.COMPRESSED] is Status.STALE
    assert row.usable == 0


@pytest.mark.parametrize("snapshot", [gemma(), deepseek()], ids=["gemma", "deepseek"])
def test_the_breakdown_adds_up(snapshot: Snapshot) -> None:
    """The four parts of the pool are the pool, and groups add up to the cached pages."""
    found = occupancy(snapshot)
    assert found is not None
    parts = (found.working, found.cached_held, found.cached_idle, found.empty)
    assert sum(part or 0 for part in parts) == found.pages
    assert sum(group.cached for group in found.groups.values()) == found.cached
    for group in found.groups.values():
        assert group.ready + group.in_transit + group.stale == group.cached


def test_without_references_the_breakdown_is_unknown() -> None:
    """At content level nobody knows who holds a page: None, not 0."""
    snapshot = gemma()
    assert snapshot.pages is not None
    found = occupancy(replace(snapshot, pages=replace(snapshot.pages, references=None, free=None)))
    assert found is not None
    assert (found.cached_held, found.cached_idle, found.working, found.empty) == (None, None, None, None)


def test_partial_hits_are_not_guessed() -> None:
    """For hits inside a block the vectorised rules do not answer: unknown."""
    snapshot = gemma()
    groups = tuple(replace(group, fine_grained=True) for group in snapshot.geometry.groups)
    geometry = replace(snapshot.geometry, groups=groups, partial_hits=True)
    prefixes = Prefixes(replace(snapshot, geometry=geometry))
    assert prefixes.stranded == (None, None, None)
    assert prefixes.rows()[0].usable is None


def test_secondary_keys_are_nodes_of_their_own() -> None:
    """A partly filled page that carries a second key is found under both."""
    snapshot = gemma()
    assert snapshot.pages is not None
    key = bytes(range(16))
    raw = key + (2).to_bytes(4, "big") + (8).to_bytes(4, "little")
    pages = replace(snapshot.pages, extra_keys={PageId(5): (raw,)})
    nodes = build(replace(snapshot, pages=pages))
    assert nodes is not None
    assert nodes.has(2, key)
    assert not nodes.has(1, key)


def test_an_empty_table_has_no_prefixes() -> None:
    """A pool without a single key is fine and has nothing in it."""
    pool = Pool(gemma().geometry, 16)
    prefixes = Prefixes(replace(snapshot_of(pool), pool=PoolInfo(pages=16, null_page=PageId(0), free=15, keys=0)))
    assert prefixes.rows() == []
    assert prefixes.stranded == (0, 0, 0)


def test_sums_leave_out_what_was_not_explained() -> None:
    """A decision without a table counts as a decision and is in no ratio."""
    decisions = gemma().decisions
    assert decisions is not None
    found = sum_up(decisions)
    assert (found.decisions, found.explained) == (6, 5)
    assert (found.lookup, found.logical, found.usable) == (9_118, 7_168, 2_816)
    assert sum(found.lost.values()) == found.logical - found.usable
    assert sum_up([]).usable_ratio is None


def test_every_reason_outcome_and_state_is_explained() -> None:
    """The closed lists and their texts are complete, and every text says cause, confirmation and action."""
    assert set(REASONS) == set(Reason)
    assert set(OUTCOMES) == set(Outcome)
    assert set(STATES) == set(State)
    for reason, entry in REASONS.items():
        for text in (entry.title, entry.cause, entry.confirm, entry.action):
            assert text.strip() == text, reason
            assert len(text) > 8, reason
        assert entry.cause.endswith("."), reason


def test_every_cached_page_belongs_to_a_node() -> None:
    """The graph covers the whole table: a page with a key has a node, a page without has none."""
    pool = Pool(gemma().geometry, 2_049)
    for prompt in (SYSTEM, SIBLING, OTHER):
        pool.keep_all(prompt, 2, prompt[-1][1])
    nodes = build(snapshot_of(pool))
    assert nodes is not None
    assert nodes.of_page.shape == (2_049,)
    assert int(np.count_nonzero(nodes.of_page >= 0)) == len(pool.rows)
