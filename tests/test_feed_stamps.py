"""Stamps and the commit fence, rule by rule, on a pool without an engine."""

from collections.abc import Iterable
from typing import Any

import pytest

from agent.feedformat import LATE_CALLS, LOADED_CALLS, STEP_SHIFT, UPDATE_CALLS, step_of
from agent.model.snapshot import Level
from agent.probe import fence as fence_module
from agent.probe.feed import Feed
from agent.probe.port import Words
from agent.probe.stamps import LOG_LIMIT, WEIGHTS_LIMIT
from agent.table import RingReader
from tests.support.fake_pool import FakePool, FakeRequest


def _feed(pages: int = 256) -> tuple[FakePool, Feed]:
    pool = FakePool(pages)
    feed = Feed(pool, ring_bytes=1 << 16)
    feed.install()
    return pool, feed


def _stamp(feed: Feed, request: FakeRequest, index: int) -> int:
    return feed.stamp_of(request.table[index].number)


def test_a_page_belongs_to_the_call_that_registers_it() -> None:
    """A page that ends beyond the computed tokens gets the step of the schedule call, calls are counted."""
    pool, feed = _feed()
    one, two = pool.request("one", 4), pool.request("two", 2)
    feed.before_schedule(7)
    pool.register(one, 0, 4)
    pool.register(two, 0, 2)
    feed.after_schedule(7, {"one", "two"})
    assert _stamp(feed, one, 0) == (7 << STEP_SHIFT) + 1 == _stamp(feed, one, 3)
    assert _stamp(feed, two, 0) == (7 << STEP_SHIFT) + 2


def test_pages_computed_before_belong_to_the_step_before() -> None:
    """Of one call the pages within the computed tokens are late, the others are not; none of the late is judged."""
    pool, feed = _feed()
    request = pool.request("one", 4)
    request.computed = 2 * pool.block
    feed.before_schedule(7)
    pool.register(request, 0, 4)
    feed.after_schedule(7, {})
    assert step_of(_stamp(feed, request, 1)) == 6
    assert _stamp(feed, request, 1) & LATE_CALLS
    assert step_of(_stamp(feed, request, 2)) == 7
    assert feed.never_computed() == {_stamp(feed, request, 2)}


def test_pages_registered_while_an_output_is_processed_belong_to_its_step() -> None:
    """With two steps in flight a registration in the update of step 1 has step 1, and is committed with it."""
    pool, feed = _feed()
    request = pool.request("one", 2)
    for step in (1, 2):
        feed.before_schedule(step)
        feed.after_schedule(step, {"one"})
    feed.before_update(1)
    pool.register(request, 0, 2)
    feed.after_update(1)
    assert step_of(_stamp(feed, request, 0)) == 1
    assert _stamp(feed, request, 0) & UPDATE_CALLS
    assert feed.committed_step == 1
    assert not feed.never_computed()


def test_an_update_may_be_told_of_at_its_end() -> None:
    """What was registered in it belongs to its step, what comes later to the schedule call that was begun before."""
    pool, feed = _feed()
    one, two = pool.request("one", 2), pool.request("two", 1)
    feed.before_schedule(1)
    feed.after_schedule(1, {"one"})
    feed.shadow()
    feed.before_schedule(2)
    feed.updated(1)
    assert feed.committed_step == 1
    feed.after_schedule(2, {"one"})
    feed.shadow()
    feed.before_schedule(3)
    pool.register(one, 0, 2)
    feed.updated(2)
    pool.register(two, 0, 1)
    assert step_of(_stamp(feed, one, 1)) == 2 == feed.committed_step
    assert _stamp(feed, one, 1) & UPDATE_CALLS
    assert _stamp(feed, two, 0) == (3 << STEP_SHIFT) + 1
    assert not feed.never_computed()


def test_a_finished_load_is_committed_at_once() -> None:
    """Pages of a request that waited for another tier get the last processed step, whatever is in flight."""
    pool, feed = _feed()
    for step in (1, 2, 3):
        feed.before_schedule(step)
        feed.after_schedule(step, {})
    feed.before_update(1)
    feed.after_update(1)
    request = pool.request("one", 2)
    request.computed, request.status = 2 * pool.block, "loading"
    feed.before_schedule(4)
    pool.register(request, 0, 2)
    feed.after_schedule(4, {})
    assert step_of(_stamp(feed, request, 0)) == 1 == feed.committed_step
    assert _stamp(feed, request, 0) & LOADED_CALLS == LOADED_CALLS
    assert not feed.never_computed()


def test_registered_and_not_scheduled_is_never_computed_and_what_reuses_it_is_tainted() -> None:
    """The victim's stamp is named; a request that holds its page taints what it registers later, and so on."""
    pool, feed = _feed()
    victim, good = pool.request("victim", 2), pool.request("good", 2)
    feed.before_schedule(1)
    pool.register(victim, 0, 2)
    pool.register(good, 0, 2)
    feed.after_schedule(1, {"good"})
    assert feed.never_computed() == {_stamp(feed, victim, 0)}
    heir, second = pool.request("heir", 2), pool.request("second", 2)
    heir.table[0] = victim.table[1]
    feed.before_schedule(2)
    pool.register(heir, 1, 2)
    feed.after_schedule(2, {"heir"})
    assert set(feed.tainted()) == {heir.table[1].number}
    second.table[0] = heir.table[1]
    feed.before_schedule(3)
    pool.register(second, 1, 2)
    pool.register(good, 0, 2)
    feed.after_schedule(3, {"second", "good"})
    assert set(feed.tainted()) == {heir.table[1].number, second.table[1].number}


def test_a_bad_page_that_was_handed_out_again_taints_nothing() -> None:
    """Without its key, or registered anew, a page says nothing about whoever holds it now."""
    pool, feed = _feed()
    victim = pool.request("victim", 1)
    feed.before_schedule(1)
    pool.register(victim, 0, 1)
    feed.after_schedule(1, {})
    pool.evict(victim.table)
    heir = pool.request("heir", 1)
    heir.table.insert(0, victim.table[0])
    heir.hashes.insert(0, bytes(32))
    feed.before_schedule(2)
    pool.register(heir, 1, 2)
    feed.after_schedule(2, {"heir"})
    assert not feed.tainted()
    feed.fence.prune()
    assert not feed.never_computed()


def test_dead_ones_are_looked_for_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many bad pages there are, a step looks at a bounded number; in the end exactly the live ones are left."""
    monkeypatch.setattr(fence_module, "PRUNE_PAGES", 4)
    monkeypatch.setattr(fence_module, "PRUNE_STEPS", 1)
    pool, feed = _feed(64)
    victim = pool.request("victim", 30)
    feed.before_schedule(1)
    pool.register(victim, 0, 30)
    feed.after_schedule(1, {})
    pool.evict(victim.table[:20])
    looked: list[int] = []
    tokens = pool.tokens

    def counted(pages: Iterable[Any]) -> Words:
        looked.append(len(listed := list(pages)))
        return tokens(listed)

    monkeypatch.setattr(pool, "tokens", counted)
    step = 2
    while len(feed.fence._bad) > 10:
        before = sum(looked)
        feed.before_schedule(step)
        feed.after_schedule(step, {"another"})
        assert sum(looked) - before <= 4
        step += 1
        assert step < 50
    assert set(feed.fence._bad) == {page.number for page in victim.table[20:]}
    assert len(feed.never_computed()) == 1


def test_readers_learn_that_a_step_was_processed_although_no_page_changed() -> None:
    """The last step of an engine that then idles becomes known by a cut of its own."""
    pool, feed = _feed()
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    while feed.idle():
        reader.poll()
    feed.before_schedule(1)
    pool.register(pool.request("one", 1), 0, 1)
    feed.after_schedule(1, {"one"})
    feed.shadow()
    feed.before_update(1)
    feed.after_update(1)
    assert feed.idle() is False
    reader.poll()
    assert reader.committed_step == 1
    position = feed.status()["ring_position"]
    feed.idle()
    assert feed.status()["ring_position"] == position
    feed.uninstall()


def test_memory_is_bounded_when_nobody_folds() -> None:
    """The log keeps a fixed number of calls; losing some makes readers resynchronise."""
    pool, feed = _feed()
    feed.join(Level.CONTENT)
    request = pool.request("one", 1)
    for _ in range(LOG_LIMIT + 5):
        pool.register(request, 0, 1)
    assert len(feed.stamps.log) == LOG_LIMIT
    feed.cut()
    assert feed.status()["resyncs"] == 1
    feed.uninstall()


def test_changes_of_weights_are_a_short_list() -> None:
    """A change is a stamp that later registrations are above of; only the last ones are kept."""
    _, feed = _feed()
    for step in range(1, 2 * WEIGHTS_LIMIT):
        feed.note_weights_change(step)
    changes = feed.weights_changes
    assert len(changes) == WEIGHTS_LIMIT
    assert changes[-1] == (2 * WEIGHTS_LIMIT) << STEP_SHIFT
    assert list(changes) == sorted(changes)


def test_a_refused_pool_is_off_with_the_reason() -> None:
    """The reason reaches the owner and the status; nothing is hooked and joining says it again."""
    told: list[Any] = []
    pool = FakePool(16, refusal="the planted method touches pages")
    feed = Feed(pool, on_off=told.append)
    feed.install()
    assert told == ["the planted method touches pages"]
    assert feed.status()["reason"] == told[0]
    assert pool.log is None
