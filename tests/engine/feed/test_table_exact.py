"""A reader's table equals the engine's at every audited epoch, whatever happens to pool, ring and readers."""

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from agent.engines.vllm.pool import VllmPool
from agent.feedformat import HEADER_CLOSED
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.table import RingReader
from tests.support.cache_core import KINDS, Totals, Workload, make_core
from tests.support.feed_host import FeedHost

pytestmark = pytest.mark.engine

AUDITS = 3400 if os.environ.get("KVCTL_NIGHTLY") else 340
"""Audited epochs for each of the three kinds."""
PAGES = 1200
BEHIND = 4
"""Audits that a quick reader may be behind before the load waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of readers ended with."""

    audits: int
    readers: list[dict[str, Any]]
    totals: Totals
    status: dict[str, Any]
    killed_was_counted_out: bool


def run(kind: str, seed: int = 1) -> Outcome:
    """Three readers join a random load at random moments, a fourth is killed while it reads."""
    core = make_core(kind, PAGES)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=1 << 17)
    feed.install()
    assert feed.reason is None
    rng = random.Random(seed)
    load = Workload(core, rng, before_lookup=lambda _: feed.cut() if rng.random() < 0.3 else 0)
    host = FeedHost(feed)
    joins = sorted(rng.sample(range(1, 150), 3))
    plans = [(Level.CONTENT, 0), (Level.REFERENCES, 0), (Level.CONTENT, 60)]
    victim = None
    audits = step = 0
    while audits < AUDITS:
        step += 1
        if joins and step >= joins[0]:
            joins.pop(0)
            level, work = plans.pop(0)
            remote = host.start(level, work=work)
            if not work:
                host.wait_complete(remote)
        if victim is None and audits > AUDITS // 3:
            victim = host.start()
            host.wait_complete(victim)
            host.kill(victim)
        host.serve()
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.shadow()
        feed.before_update(step)
        feed.after_update(step)
        if host.remotes and rng.random() < 0.5:
            feed.audit()
            audits += 1
            if audits % BEHIND == 0:
                host.wait_for_audit(max(0, min(remote.compared for remote in host.remotes if not remote.slow) - BEHIND))
    host.serve()
    status = feed.status()
    for remote in host.remotes:
        if not remote.gone:
            host.wait_complete(remote)
    return Outcome(
        audits=audits,
        readers=host.finish(),
        totals=load.totals,
        status=status,
        killed_was_counted_out=victim is not None and victim.gone,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal_the_engine_at_every_audit(kind: str) -> None:
    """Over a random load no checksum and no row differs, in three processes that joined at random moments."""
    outcome = run(kind)
    assert len(outcome.readers) == 3
    for reader in outcome.readers:
        assert reader["failed"] == 0
        assert reader["mismatches"] == 0
        assert reader["garbled"] == 0
        assert reader["index_equal"]
        assert reader["complete"]
    assert max(reader["audits"] for reader in outcome.readers) >= AUDITS // 2
    assert outcome.killed_was_counted_out
    assert outcome.totals.resets > 0
    assert outcome.totals.evictions > 0
    if kind == "mamba_partial":
        assert outcome.totals.copies > 0, "copy-on-write has to happen in this load"


def _follow(pages: int, ring: int, kind: str = "deepseek_v4") -> tuple[Any, Feed, RingReader]:
    core = make_core(kind, pages, retention=None)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=ring)
    feed.install()
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    return core, feed, reader


def _known(reader: RingReader) -> bool:
    return reader.complete


def _closed(reader: RingReader) -> bool:
    return reader.closed


def _catch_up(feed: Feed, reader: RingReader) -> None:
    while feed.idle():
        reader.poll()
    reader.poll()


def test_a_delta_that_the_ring_cannot_take_becomes_a_resync() -> None:
    """A 32k prompt registered densely in a small ring is one RESYNC; the reader is incomplete, then exact again."""
    core, feed, reader = _follow(30_000, 1 << 16)
    _catch_up(feed, reader)
    assert _known(reader)
    request = core.request("long", [random.Random(1).randint(1, 900) for _ in range(8192)])
    blocks, hit, _ = core.manager.get_computed_blocks(request)
    core.manager.allocate_slots(request, 8192, hit, blocks)
    feed.cut()
    reader.poll()
    assert reader.resyncs == 1
    assert not _known(reader)
    _catch_up(feed, reader)
    feed.audit()
    reader.poll()
    assert _known(reader)
    assert (reader.audits, reader.failed_audits) == (1, 0)


def test_an_overrun_is_noticed_and_repaired() -> None:
    """A reader that sleeps through more than the ring holds counts an overrun, bootstraps, and is exact again."""
    core, feed, reader = _follow(4_000, 1 << 16, "gemma3")
    _catch_up(feed, reader)
    load = Workload(core, random.Random(2))
    for step in range(1, 200):
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.shadow()
    reader.poll()
    assert reader.overruns == 1
    assert not _known(reader)
    _catch_up(feed, reader)
    feed.audit()
    reader.poll()
    assert _known(reader)
    assert reader.failed_audits == 0
    assert reader.table.mismatches == 0


def test_leaving_closes_the_ring_and_the_reader_sees_it() -> None:
    """When the last reader leaves or the feed is removed, a mapped ring says that it is closed; the table stays."""
    _, feed, reader = _follow(512, 1 << 16, "gemma3")
    _catch_up(feed, reader)
    assert not _closed(reader)
    feed.leave(Level.CONTENT)
    assert _closed(reader)
    assert reader._header[HEADER_CLOSED] == 1
    assert _known(reader)
    assert reader.poll() == 0
