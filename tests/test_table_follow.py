"""The reader's table, on a pool without an engine: equal to the pool after any sequence of changes."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import columns
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.probe.scan import FLOOR_PAGES
from agent.table import RingReader
from tests.support.fake_pool import FakePool

PAGES = 200


def _joined(level: Level = Level.CONTENT, pages: int = PAGES) -> tuple[FakePool, Feed, RingReader]:
    pool = FakePool(pages)
    feed = Feed(pool, ring_bytes=1 << 18)
    feed.install()
    feed.join(level)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, level=level, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    return pool, feed, reader


def _finish(feed: Feed, reader: RingReader) -> None:
    while feed.idle():
        reader.poll()
    reader.poll()


ACTIONS = ["start", "start", "start", "finish", "finish", "evict", "extra", "extra", "reset", "cut", "step", "poll"]


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(st.sampled_from(ACTIONS), max_size=60), seed=st.integers(0, 1 << 16), level=st.sampled_from(Level)
)
def test_any_sequence_of_changes_arrives_exactly(actions: list[str], seed: int, level: Level) -> None:
    """Joined at any moment, at either level, table, index and checksum equal the pool's."""
    rng = random.Random(seed)
    pool, feed, reader = _joined(level)
    reader.table.presence()
    for number, action in enumerate(actions):
        if action == "cut":
            feed.cut()
        elif action == "step":
            feed.before_schedule(number + 1)
            feed.after_schedule(number + 1, set(pool.requests_by_name))
            feed.shadow()
        elif action == "poll":
            reader.poll()
        else:
            pool.act(rng, str(number), action)
    _finish(feed, reader)
    feed.audit()
    reader.poll()
    assert reader.complete
    assert (reader.audits, reader.failed_audits) == (1, 0)
    assert reader.table.mismatches == reader.garbled == 0
    index = reader.table.presence()
    keys = {(page.key[35], page.key[:16]) for page in pool.all if page.key is not None}
    keys |= {(0, key[:16]) for found in pool.extra_keys.values() for key in found}
    assert len(index) == len(keys)
    assert all(index.has(group, key) for group, key in keys)
    reader.close()
    feed.uninstall()


def test_columns_are_the_pool_row_by_row() -> None:
    """Keys, groups, positions, parents, references and free list of a snapshot are the pages' own."""
    pool, feed, reader = _joined(Level.REFERENCES)
    _finish(feed, reader)
    request = pool.request("one", 5)
    pool.register(request, 0, 5, group=3)
    pool.register_more(request.table[2], bytes(range(32)) + (3).to_bytes(4, "big"))
    feed.cut()
    reader.poll()
    pages = reader.table.to_columns()
    ids = [page.number for page in request.table]
    assert columns.keys(pages)[ids].tobytes() == b"".join(key[:16] for key in request.hashes)
    assert columns.groups(pages)[ids].tolist() == [3] * 5
    assert columns.tokens(pages)[ids].tolist() == [16, 32, 48, 64, 80]
    parents = columns.parents(pages)
    assert parents is not None
    assert parents[ids].tobytes() == bytes(8) + b"".join(key[:8] for key in request.hashes[:4])
    assert columns.references(pages) is not None
    assert pages.references is not None
    assert np.frombuffer(pages.references, "<i4")[ids].tolist() == [1] * 5
    assert pages.free is not None
    assert np.frombuffer(pages.free, "u1")[ids].tolist() == [0] * 5
    assert pages.extra_keys == {ids[2]: (bytes(range(16)) + (3).to_bytes(4, "big") + bytes(4),)}
    assert pages.key.readonly
    assert columns.cached(pages).sum() == 5


def test_a_snapshot_does_not_change_afterwards() -> None:
    """Columns that were handed out stay as they were while the table goes on."""
    pool, feed, reader = _joined()
    _finish(feed, reader)
    before = reader.table.to_columns()
    request = pool.request("one", 3)
    pool.register(request, 0, 3)
    feed.cut()
    reader.poll()
    assert columns.cached(before).sum() == 0
    assert columns.cached(reader.table.to_columns()).sum() == 3


def test_memory_of_a_snapshot_is_used_again_only_when_nobody_has_it() -> None:
    """Of many snapshots the kept ones keep their content, also where only an array over one column is left."""
    pool, feed, reader = _joined()
    _finish(feed, reader)
    kept = []
    for number in range(8):
        pool.register(pool.request(str(number), 1), 0, 1)
        feed.cut()
        reader.poll()
        snapshot = reader.table.to_columns()
        if number % 2:
            kept.append((number + 1, columns.tokens(snapshot)))
        del snapshot
    assert [(count, int((tokens > 0).sum())) for count, tokens in kept] == [(2, 2), (4, 4), (6, 6), (8, 8)]


def test_readiness_follows_the_fence() -> None:
    """A page is ready once its step was processed; a never-computed or tainted one never is."""
    pool, feed, reader = _joined()
    _finish(feed, reader)
    good, victim, heir = pool.request("good", 1), pool.request("victim", 1), pool.request("heir", 2)
    feed.before_schedule(1)
    pool.register(good, 0, 1)
    pool.register(victim, 0, 1)
    feed.after_schedule(1, {"good"})
    heir.table[0] = victim.table[0]
    feed.before_schedule(2)
    pool.register(heir, 1, 2)
    feed.after_schedule(2, {"heir"})
    feed.cut()
    reader.poll()
    ids = [good.table[0].number, victim.table[0].number, heir.table[1].number]
    pages = reader.table.to_columns()
    assert columns.ready(pages)[ids].tolist() == [False, False, False]
    assert pages.never_computed == feed.never_computed()
    assert pages.tainted == {ids[2]}
    for step in (1, 2):
        feed.before_update(step)
        feed.after_update(step)
    pool.register(pool.request("more", 1), 0, 1)
    feed.cut()
    reader.poll()
    assert columns.ready(reader.table.to_columns())[ids].tolist() == [True, False, False]


def test_a_late_reader_gets_the_whole_fence() -> None:
    """What was branded before anybody joined reaches a reader with its bootstrap."""
    pool = FakePool(PAGES)
    feed = Feed(pool, ring_bytes=1 << 18)
    feed.install()
    victim = pool.request("victim", 1)
    feed.before_schedule(1)
    pool.register(victim, 0, 1)
    feed.after_schedule(1, {})
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    _finish(feed, reader)
    assert reader.table.never == set(feed.never_computed()) != set()


def test_parents_of_running_requests_reach_a_reader_that_joins_later() -> None:
    """Pages that were registered before a reader came get their parents from the requests that hold them."""
    pool = FakePool(PAGES)
    feed = Feed(pool, ring_bytes=1 << 18)
    feed.install()
    request = pool.request("one", 4)
    pool.register(request, 0, 4)
    feed.shadow()
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    _finish(feed, reader)
    parents = columns.parents(reader.table.to_columns())
    assert parents is not None
    ids = [page.number for page in request.table[1:]]
    assert parents[ids].tobytes() == b"".join(key[:8] for key in request.hashes[:3])


def test_progress_is_what_is_known() -> None:
    """While a busy engine sends its table progress rises step by step, and only a whole table is complete."""
    _, feed, reader = _joined(pages=5000)
    seen = []
    while not reader.complete:
        feed.shadow()
        reader.poll()
        seen.append(reader.progress)
        assert len(seen) < 100
    assert seen == sorted(seen)
    assert seen[0] >= FLOOR_PAGES / 5000
    assert seen[-1] == 1.0


def test_references_are_unknown_until_they_were_sent() -> None:
    """A content reader that meets records with references does not show them before all of them are known."""
    pool, feed, reader = _joined(Level.CONTENT)
    _finish(feed, reader)
    assert reader.table.to_columns().references is None
    feed.join(Level.REFERENCES)
    pool.request("one", 2)
    feed.cut()
    reader.poll()
    assert reader.table.to_columns().references is None
    feed.request_bootstrap()
    _finish(feed, reader)
    assert reader.table.to_columns().references is not None
    feed.leave(Level.REFERENCES)
    pool.request("two", 2)
    feed.cut()
    reader.poll()
    assert reader.table.to_columns().references is None


def test_decisions_see_the_table_of_their_moment() -> None:
    """A look-up between two cuts is handed out when the table is what it was then, not what it is at the end."""
    pool, feed, reader = _joined()
    _finish(feed, reader)
    expected = []
    for number in range(20):
        pool.register(pool.request(str(number), 2), 0, 2)
        feed.cut()
        feed.put_decision(b"%d" % number)
        expected.append(2 * (number + 1))
    got: list[int] = []
    reader.poll(lambda _: got.append(int(columns.cached(reader.table.to_columns()).sum())))
    assert got == expected


def test_a_wrong_row_is_noticed_by_the_slow_audit() -> None:
    """A change that no hook saw is found when the scan comes round, and counted."""
    pool, feed, reader = _joined()
    request = pool.request("one", 3)
    pool.register(request, 0, 3)
    _finish(feed, reader)
    request.table[1].key = bytes(36)
    for _ in range(20):
        feed.shadow()
    reader.poll()
    assert reader.table.mismatches == 1


@pytest.mark.parametrize("readers", [1, 3])
def test_readers_share_one_scan(readers: int) -> None:
    """Several readers that join while a scan runs are all complete one round after the last asked."""
    pool = FakePool(20_000)
    feed = Feed(pool, ring_bytes=1 << 20)
    feed.install()
    joined = []
    for _ in range(readers):
        feed.join(Level.CONTENT)
        fd = feed.ring_fd
        assert fd is not None
        joined.append(RingReader(fd, on_bootstrap=feed.request_bootstrap))
        joined[-1].restart()
        feed.shadow()
    _finish(feed, joined[0])
    for reader in joined:
        reader.poll()
    assert all(reader.complete for reader in joined)
    assert feed.status()["chunk_pages"] <= 20_000 + readers * 4096
