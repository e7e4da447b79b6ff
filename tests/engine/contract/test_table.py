"""The page table outside equals this version's own, and its hooks come out without a trace."""

import random
from types import FunctionType
from typing import Any

import pytest

from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.table import RingReader
from tests.support.cache_core import KINDS, Core, Workload, make_core

pytestmark = pytest.mark.engine

STEPS = 160
PAGES = 1200


def own_functions(core: Core) -> list[dict[str, Any]]:
    """Return the functions in the objects that the feed hooks: a plain instance has none."""
    return [
        {name: value for name, value in vars(one).items() if isinstance(value, FunctionType)}
        for one in (core.pool, *core.managers)
    ]


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_equals_the_engine(kind: str, level: Level) -> None:
    """Under a random load with evictions, resets and copies every audited checksum agrees; then no hook is left."""
    core = make_core(kind, PAGES)
    before = own_functions(core)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=1 << 20)
    feed.install()
    assert feed.reason is None
    load = Workload(core, random.Random(7))
    for _ in range(20):
        load.schedule()
    feed.join(level)
    assert feed.ring_fd is not None
    reader = RingReader(feed.ring_fd, level=level, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    audits = 0
    for step in range(1, STEPS + 1):
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.shadow()
        feed.before_update(step)
        feed.after_update(step)
        if reader.complete:
            feed.audit()
            audits += 1
        reader.poll()
    assert (reader.audits, reader.failed_audits, reader.table.mismatches) == (audits, 0, 0)
    assert audits > STEPS // 2
    assert load.totals.hits > 0
    assert feed.reason is None
    reader.close()
    feed.leave(level)
    feed.uninstall()
    assert own_functions(core) == before
