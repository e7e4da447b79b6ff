"""What goes wrong between a capture and its publication: readers are told, and nothing is compared with it."""

from typing import Any

import pytest

from agent.model.snapshot import Level
from agent.probe.counters import Counters
from agent.probe.decisions import Recorder
from agent.probe.feed import Feed
from agent.probe.options import Options
from agent.probe.ring import Ring
from agent.table import RingReader
from tests.support.fake_pool import FakePool, Page


def joined(pages: int = 200) -> tuple[FakePool, Feed, RingReader]:
    """A pool, its feed, and a reader with the whole table."""
    pool = FakePool(pages)
    feed = Feed(pool, ring_bytes=1 << 18)
    feed.install()
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, level=Level.CONTENT, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    while feed.idle():
        reader.poll()
    reader.poll()
    assert reader.complete
    return pool, feed, reader


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next record cannot be written."""
    put = Ring.put

    def fail(*_args: Any, **_kwargs: Any) -> None:
        monkeypatch.setattr(Ring, "put", put)
        raise MemoryError

    monkeypatch.setattr(Ring, "put", fail)


def recorder_of(feed: Feed) -> Recorder:
    """A recorder whose decisions somebody compares."""
    recorder = Recorder(Options(), Counters())
    recorder.feed, recorder.explaining = feed, 1
    return recorder


def decided(recorder: Recorder, name: str) -> bool:
    """Admit a request that was looked up, and return whether its decision names its table."""
    recorder.looked_up(name, 1_000)
    recorder.admitted(name, tokens=10, usable=0, resumed=False, skipped=False, hashes=[], trace=None)
    return recorder.since(0, 100)[-1].exact


def test_a_record_that_is_lost_makes_readers_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta that cannot be written is no gap that nobody sees: the table is incomplete until it is whole again."""
    pool, feed, reader = joined()
    recorder = recorder_of(feed)
    pool.register(pool.request("one", 4), 0, 4)
    failing(monkeypatch)
    with pytest.raises(MemoryError):
        feed.cut()
    assert not decided(recorder, "before")
    pool.register(pool.request("two", 4), 0, 4)
    feed.shadow()
    reader.poll()
    assert reader.resyncs == 1
    while feed.idle():
        reader.poll()
    feed.audit()
    reader.poll()
    assert reader.complete
    assert (reader.audits, reader.failed_audits) == (1, 0)
    recorder.before_lookup()
    assert decided(recorder, "after")


def test_a_table_that_could_not_be_captured_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up after a capture that failed does not take the table of the look-up before for its own."""
    pool, feed, _ = joined()
    recorder = recorder_of(feed)
    recorder.before_lookup()
    assert decided(recorder, "first")
    pool.register(pool.request("one", 4), 0, 4)

    def fail() -> int:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(feed, "cut", fail)
        with pytest.raises(MemoryError):
            recorder.before_lookup()
        assert not decided(recorder, "second")
    recorder.before_lookup()
    assert decided(recorder, "third")


def keyed(reader: RingReader) -> int:
    """Pages that carry a key in a reader's table."""
    return sum(1 for tokens in reader.table.to_columns().tokens if tokens)


def test_tables_of_points_are_published_in_order() -> None:
    """A decision stands in the ring behind the table of its look-up, and before whatever happened after it."""
    pool, feed, reader = joined()
    seen: list[tuple[str, int, int]] = []
    pool.register(pool.request("one", 2), 0, 2)
    first = feed.point()
    pool.register(pool.request("two", 2), 0, 2)
    second = feed.point()
    pool.register(pool.request("three", 2), 0, 2)
    epochs = []
    for name, point in ((b"1", first), (b"2", second)):
        epochs.append(feed.cut_at(point))
        assert feed.published == epochs[-1]
        feed.put_decision(name)
    feed.shadow()
    feed.audit()
    reader.poll(lambda body: seen.append((body.decode(), reader.epoch, keyed(reader))))
    assert epochs[0] < epochs[1] < feed.published
    assert seen == [("1", epochs[0], 2), ("2", epochs[1], 4)]
    assert (keyed(reader), reader.audits, reader.failed_audits) == (6, 1, 0)


def test_a_table_that_cannot_be_told_any_more_is_unknown() -> None:
    """A page that changes before a look-up and after it, or a cut in between: nothing is compared, nothing lost."""
    pool, feed, reader = joined()
    recorder = recorder_of(feed)
    request = pool.request("one", 3)
    pool.register(request, 0, 3)
    point = feed.point()
    pool.evict(request.table[1:2])
    recorder.saw(point)
    assert not decided(recorder, "changed twice")
    point = feed.point()
    pool.register(pool.request("two", 1), 0, 1)
    feed.cut()
    recorder.saw(point)
    assert not decided(recorder, "published together")
    recorder.saw(feed.point())
    assert decided(recorder, "nothing happened since")
    point = feed.point()
    pool.reset()
    pool.register(pool.request("three", 3), 0, 3)
    recorder.saw(point)
    assert not decided(recorder, "emptied since")
    feed.audit()
    reader.poll()
    assert (keyed(reader), reader.audits, reader.failed_audits) == (3, 1, 0)


def test_a_page_of_an_update_that_is_lost_after_a_look_up_is_not_taken_for_what_it_is_now() -> None:
    """Registered while results were processed, not cut yet, gone in the next schedule call: that table is unknown."""
    pool, feed, reader = joined()
    recorder = recorder_of(feed)
    request = pool.request("one", 2)
    feed.before_schedule(1)
    feed.dispatched(1, {"one"})
    pool.register(request, 0, 2)
    feed.updated(1)
    point = feed.point()
    pool.evict(request.table[:1])
    recorder.saw(point)
    assert not decided(recorder, "changed since")
    feed.dispatched(2, {"one"})
    feed.audit()
    reader.poll()
    assert (keyed(reader), reader.audits, reader.failed_audits) == (1, 1, 0)


def test_a_fold_that_fails_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours in the middle loses no registration: stamps are those of the call, and readers get every row."""
    pool, feed, reader = joined()
    request = pool.request("one", 3)
    feed.before_schedule(4)
    pool.register(request, 0, 3)
    stamp = pool.stamp

    def fail(*_args: Any) -> None:
        monkeypatch.setattr(pool, "stamp", stamp)
        raise MemoryError

    monkeypatch.setattr(pool, "stamp", fail)
    with pytest.raises(MemoryError):
        feed.dispatched(4, {"one"})
    feed.before_schedule(5)
    feed.dispatched(5, {"one"})
    assert {feed.stamp_of(page.number) for page in request.table} == {(4 << 20) + 1}
    feed.audit()
    reader.poll()
    assert (keyed(reader), reader.audits, reader.failed_audits) == (3, 1, 0)


def test_keys_of_pages_that_are_lost_before_the_fold_are_remembered() -> None:
    """Also of a call whose pages were computed before: what is remembered is what was registered, not what is left."""
    pool, feed, _ = joined()
    heard: list[tuple[Any, ...]] = []
    feed.stamps.remember = lambda *columns: heard.append(columns)
    late, plain = pool.request("late", 2), pool.request("plain", 2)
    late.computed = 2 * pool.block
    feed.before_schedule(3)
    for request in (late, plain):
        pool.register(request, 0, 2)
        pool.evict(request.table[1:])
    feed.stamps.fold()
    assert {hashes for *_, hashes in heard} == {b"".join(late.hashes), b"".join(plain.hashes)}


def move(pool: FakePool, source: Page, target: Page) -> None:
    """Give a page's key to another page, as a copy on write does."""
    target.key, target.tokens = source.key, source.tokens
    source.key, source.tokens = None, 0
    assert pool.log is not None
    pool.log((None, None, (source, target), None, 0, 0, 0, None, 0))


def test_what_is_wrong_with_a_page_moves_along_with_its_key() -> None:
    """A tainted page and a never-computed one stay so under another id, for readers, removals and heirs."""
    pool, feed, _ = joined(64)
    runs, never = pool.request("runs", 2), pool.request("never", 1)
    feed.before_schedule(1)
    feed.after_schedule(1, {"runs"})
    feed.updated(1)
    feed.note_weights_change(1)
    feed.before_schedule(2)
    pool.register(runs, 0, 2)
    pool.register(never, 0, 1)
    feed.after_schedule(2, {"runs"})
    tainted, branded = pool.allocate(2)
    feed.before_schedule(3)
    move(pool, runs.table[1], tainted)
    move(pool, never.table[0], branded)
    feed.after_schedule(3, {"runs"})
    assert tainted.number in feed.tainted()
    feed.fence.prune()
    assert set(feed.tainted()) == {runs.table[0].number, tainted.number}
    assert feed.stamp_of(branded.number) in feed.never_computed()
    assert tainted.number in feed.stale_pages(0, pool.pages)
