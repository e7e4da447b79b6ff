"""Whose pages are stale after a change of weights: of all, of one adapter, and of what runs; without an engine."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.codec import from_plain, to_plain
from agent.columns import of_older_weights
from agent.engines.vllm.weights import CHANGES_KEPT, WeightsWatch
from agent.errors import InconclusiveError
from agent.feedformat import STEP_SHIFT
from agent.gates.runner import run
from agent.model.evidence import Evidence, Weights
from agent.model.finding import GateName
from agent.model.states import PageId
from agent.probe.adapters import SHARED, Adapters, Identity
from agent.probe.feed import Feed
from agent.probe.guard import Guard
from agent.probe.patches import Patches
from agent.probe.safepoint import SafePoint
from agent.probe.weightwalk import Readings
from tests.support.cases import case_1
from tests.support.fake_pool import FakePool, FakeRequest

ONE, TWO = ("one", "/one"), ("two", "/two")


def followed() -> tuple[FakePool, Feed, dict[str, Identity]]:
    """A feed that keeps owners; requests have the adapters that the dictionary names."""
    pool = FakePool(64)
    feed = Feed(pool, ring_bytes=1 << 16)
    feed.install()
    used: dict[str, Identity] = {}
    feed.stamps.adapters = Adapters(pool.pages, pool.ids, lambda request: used.get(request.name))
    return pool, feed, used


def registered(pool: FakePool, feed: Feed, step: int, *requests: FakeRequest) -> None:
    """Register all pages of requests in one schedule call that schedules them."""
    feed.before_schedule(step)
    for request in requests:
        pool.register(request, 0, len(request.table))
    feed.after_schedule(step, {request.name for request in requests})
    feed.stamps.fold()


def owned(feed: Feed, name: Any) -> dict[int, int]:
    """Return the pages of an adapter."""
    assert feed.stamps.adapters is not None
    return feed.stamps.adapters.pages_of(name, feed.stamps.page_stamps)


def numbers(request: FakeRequest) -> set[int]:
    """Return the ids of a request's pages."""
    return {page.number for page in request.table}


# ------------------------------------------------------------------------ owners


def test_pages_belong_to_the_adapter_of_their_request() -> None:
    """Two adapters and none are told apart; a page registered anew without an adapter is nobody's any more."""
    pool, feed, used = followed()
    used |= {"left": (ONE, 1), "right": (TWO, 2)}
    left, right, plain = (pool.request(name, 3) for name in ("left", "right", "plain"))
    registered(pool, feed, 1, left, right, plain)
    assert owned(feed, ONE).keys() == numbers(left)
    assert owned(feed, TWO).keys() == numbers(right)
    assert set(owned(feed, ONE).values()) == {feed.stamp_of(left.table[0].number)}
    again = pool.request("again", 0)
    again.table, again.hashes = left.table[:1], left.hashes[:1]
    registered(pool, feed, 2, again)
    assert owned(feed, ONE).keys() == numbers(left) - numbers(again)


def test_more_adapters_than_a_byte_can_name_share_their_pages() -> None:
    """From the 255th on nobody tells them apart: a change of one concerns the pages of all of them, and of no other."""
    adapters = Adapters(8, list, lambda _request: None)
    for number in range(300):
        adapters.learn((("adapter", str(number)), number))
    assert len(adapters.known) == 300
    assert ("adapter", "299") in adapters.known
    assert ("adapter", "300") not in adapters.known
    pages = [1, 2, 3]
    some = Adapters(8, list, lambda request: request)
    for number in range(SHARED + 5):
        some.learn(((number,), number))
    stamps = np.zeros(8, np.uint64)
    stamps[pages] = (7, 8, 9)
    entries: list[Any] = [
        ("a", ((0,), 0), [1], None, 0, 1, 0, None, 0),
        ("b", ((SHARED,), SHARED), [2], None, 0, 1, 0, None, 0),
        ("c", ((SHARED + 1,), SHARED + 1), [3], None, 0, 1, 0, None, 0),
    ]
    some.note(entries, stamps)  # type: ignore[arg-type]
    assert some.pages_of((SHARED,), stamps).keys() == {2, 3}  # type: ignore[arg-type]
    assert some.pages_of((0,), stamps).keys() == {1}, "it has a number of its own"  # type: ignore[arg-type]


# ------------------------------------------------------------------------- fence


def test_a_change_of_one_adapter_leaves_other_pages_alone() -> None:
    """Its pages are stale and taint who reuses them; a page that was registered anew is good again."""
    pool, feed, used = followed()
    used |= {"left": (ONE, 1), "heir": (ONE, 1)}
    left, plain = pool.request("left", 3), pool.request("plain", 3)
    registered(pool, feed, 1, left, plain)
    told: list[object] = []
    feed.on_weights_change = told.append
    pool.requests_by_name.pop("left")
    feed.note_adapter_change(owned(feed, ONE), [])
    assert set(feed.stale_pages(0, pool.pages)) == numbers(left) == feed.adapter_pages().keys()
    assert told == [[]]
    heir, other = pool.request("heir", 2), pool.request("other", 2)
    heir.table[0] = left.table[0]
    feed.before_schedule(2)
    pool.register(heir, 1, 2)
    pool.register(other, 0, 2)
    feed.after_schedule(2, {"heir", "other"})
    assert set(feed.tainted()) == {heir.table[1].number}
    pool.evict(left.table)
    fresh = pool.request("fresh", 0)
    fresh.table, fresh.hashes = left.table, left.hashes
    registered(pool, feed, 3, fresh)
    assert set(feed.stale_pages(0, pool.pages)) == {heir.table[1].number}
    feed.fence.prune()
    assert not feed.adapter_pages()


@pytest.mark.parametrize("of_one", [False, True], ids=["all weights", "one adapter"])
def test_what_runs_without_a_page_that_has_a_key_carries_old_weights_on(*, of_one: bool) -> None:
    """A page that was half filled when the weights changed is registered later, and is as bad as one from before."""
    pool, feed, _ = followed()
    runs = pool.request("runs", 2)
    feed.before_schedule(1)
    feed.after_schedule(1, {"runs"})
    if of_one:
        feed.note_adapter_change({}, ["runs"])
    else:
        feed.note_weights_change(1)
    later = pool.request("later", 2)
    registered(pool, feed, 2, runs, later)
    assert set(feed.tainted()) == numbers(runs)
    assert set(feed.stale_pages(0, pool.pages)) == numbers(runs)


def test_pages_of_a_batch_that_was_on_its_way_are_old_not_tainted() -> None:
    """What is registered when its output comes, after the change, has the stamp of its own step: that says it."""
    pool, feed, _ = followed()
    runs = pool.request("runs", 2)
    feed.before_schedule(1)
    feed.after_schedule(1, {"runs"})
    feed.note_weights_change(1)
    feed.before_update(1)
    pool.register(runs, 0, 2)
    feed.after_update(1)
    assert set(feed.stale_pages(0, pool.pages)) == numbers(runs)
    assert not feed.tainted()


# ------------------------------------------------------------------------- watch


class Executor:
    """What the watch hooks of an executor."""

    def __init__(self) -> None:
        self.sleeping_tags: set[str] = set()
        self.fails = False

    def sleep(self, level: int = 1) -> None:
        """Sleep, or fail on the way."""
        if self.fails:
            raise RuntimeError(level)
        self.sleeping_tags |= {"weights", "kv_cache"}

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake some memory, or all."""
        self.sleeping_tags -= set(tags or self.sleeping_tags)


class Core:
    """What the watch hooks of an engine core."""

    def __init__(self) -> None:
        self.model_executor = Executor()
        self.vllm_config = SimpleNamespace(lora_config=None)

    def collective_rpc(self, method: str, timeout: float | None = None, args: Any = (), kwargs: Any = None) -> None:
        """Call the workers."""
        if method.startswith("failing"):
            raise RuntimeError(method)


def hooked() -> tuple[Core, WeightsWatch]:
    """A core with the watch in it, at step 7."""
    feed = SimpleNamespace(note_weights_change=lambda _step: None, adapter_pages=dict, on_weights_change=None)
    probe = SimpleNamespace(feed=feed, recorder=SimpleNamespace(step=7), guard=Guard())
    core, watch = Core(), WeightsWatch(probe)
    watch.install(core, Patches())
    return core, watch


def causes(watch: WeightsWatch) -> tuple[str, ...]:
    """Return the causes of the changes that were seen."""
    weights = watch.evidence()
    assert weights is not None
    return weights.causes


def test_the_epoch_rises_when_the_weights_wake() -> None:
    """Not with the cache, not when nothing slept, once however the tags are named."""
    core, watch = hooked()
    core.model_executor.wake_up()
    core.model_executor.sleep(2)
    core.model_executor.wake_up(["kv_cache"])
    assert causes(watch) == ()
    core.model_executor.wake_up(["weights"])
    core.model_executor.wake_up()
    assert causes(watch) == ("wake",)
    core.model_executor.sleep()
    core.model_executor.wake_up()
    assert causes(watch) == ("wake", "wake")


def test_a_sleep_that_failed_may_have_moved_weights() -> None:
    """Some workers may sleep although the engine does not count as asleep."""
    core, watch = hooked()
    core.model_executor.fails = True
    with pytest.raises(RuntimeError):
        core.model_executor.sleep()
    assert causes(watch) == ("wake",)


def test_weights_that_are_out_of_memory_are_not_touched() -> None:
    """A worker that sleeps beside the executor, or only perhaps, is not read until its weights woke."""
    core, watch = hooked()
    away = []
    for method, args, kwargs in (
        ("discard", (), {"tags": ["kv_cache"]}),
        ("sleep", (1,), None),
        ("wake_up", (["kv_cache"],), None),
        ("wake_up", (), {"tags": ["weights"]}),
    ):
        core.collective_rpc(method, args=args, kwargs=kwargs)
        away.append(watch.away)
    assert away == [False, True, True, False]
    core.model_executor.fails = True
    with pytest.raises(RuntimeError):
        core.model_executor.sleep()
    away.append(watch.away)
    core.model_executor.fails = False
    core.model_executor.sleep()
    core.model_executor.wake_up()
    assert (away[-1], watch.away) == (True, False)


def test_a_call_that_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that failed half way is one; an unknown call that failed is unknown still."""
    core, watch = hooked()
    with pytest.raises(RuntimeError):
        core.collective_rpc("failing somehow")
    weights = watch.evidence()
    assert weights is not None
    assert not weights.watched
    monkeypatch.setitem(__import__("agent.engines.vllm.weights", fromlist=["CHANGING"]).CHANGING, "failing", "update")
    with pytest.raises(RuntimeError):
        core.collective_rpc("failing")
    assert causes(watch) == ("update",)


def test_the_last_change_of_all_weights_is_never_forgotten() -> None:
    """Many changes of adapters push older ones out of the list, but not the one that older pages are measured by."""
    _, watch = hooked()
    watch.changed("reload")
    for _ in range(2 * CHANGES_KEPT):
        watch._note("lora", 1)
    weights = watch.evidence()
    assert weights is not None
    assert len(weights.changes) == CHANGES_KEPT
    assert (weights.causes[0], weights.last_of_all) == ("reload", 0)


def test_a_reading_begins_anew_when_the_weights_change_meanwhile() -> None:
    """One reading at a time; asked for during one, another follows; the baseline is never of two weights."""
    begun: list[int] = []

    class Workers:
        points = 0

        def weights_points(self) -> int:
            return self.points

        def weights_slice(self, **_: Any) -> list[Any]:
            begun.append(self.points)
            raise InconclusiveError("the weights changed while they were read")

    workers, guard = Workers(), Guard()
    safe_point = SafePoint(guard, lambda: True)
    readings = Readings(safe_point, workers)
    readings.ask()
    workers.points = 1
    readings.ask()
    readings.ask()
    while safe_point.waiting:
        safe_point.drain(idle=True)
    assert begun == [1, 1]


# ------------------------------------------------------------------------ reading


def test_pages_of_a_changed_adapter_are_found_by_their_stamp() -> None:
    """Gate 2 counts them and no other; a page that has another stamp by now is good; the file keeps it all."""
    snapshot = case_1()
    assert snapshot.pages is not None
    stamps = np.frombuffer(snapshot.pages.stamp, "<u8")
    keyed = np.flatnonzero(np.frombuffer(snapshot.pages.tokens, "<u4"))[:4]
    changed = Weights(
        changes=(5 << 40,),
        causes=("lora",),
        adapters=(3,),
        adapter_pages={PageId(int(page)): int(stamps[page]) + (place == 3) for place, page in enumerate(keyed)},
    )
    weights = from_plain(Weights, to_plain(changed))
    assert weights == changed
    assert np.flatnonzero(of_older_weights(snapshot.pages, weights)).tolist() == keyed[:3].tolist()
    (result,) = run(replace(snapshot, evidence=Evidence(weights=weights)), [GateName.CONTRACT])
    (finding,) = [item for item in result.findings if item.code == "KV201"]
    assert (finding.pages, finding.values["cause"]) == (tuple(keyed[:3].tolist()), "lora")


def test_a_change_of_all_weights_counts_beside_one_of_an_adapter() -> None:
    """Pages below the last change of all are stale; the cause that is named is the one that concerns them."""
    snapshot = case_1()
    weights = Weights(changes=(1 << 40, 2 << 40), causes=("reload", "lora"), adapters=(None, 1))
    (result,) = run(replace(snapshot, evidence=Evidence(weights=weights)), [GateName.CONTRACT])
    (finding,) = [item for item in result.findings if item.code == "KV201"]
    assert finding.values["cause"] == "reload"
    assert Weights(changes=(1 << STEP_SHIFT,)).last_of_all == 0
    assert Weights(changes=()).last_of_all is None
