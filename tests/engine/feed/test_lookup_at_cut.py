"""A table cut before a look-up answers that look-up exactly as the engine does."""

import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.model.states import KEY_BYTES
from agent.probe.decisions import UNKNOWN_TABLE
from agent.probe.feed import Feed
from agent.probe.points import Point
from agent.resume import evaluate
from agent.table import RingReader
from tests.support.cache_core import Workload, make_core

pytestmark = pytest.mark.engine

LOOKUPS = 100_000 if os.environ.get("KVCTL_NIGHTLY") else 10_000
"""In all, over the two kinds."""


@dataclass
class Lookups:
    """Look-ups of one load, each published at once (odd steps) or after its step (even ones)."""

    core: Any
    feed: Feed
    step: int = 0
    waiting: dict[int, Any] = field(default_factory=dict)
    later: list[tuple[Point, int]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """What the engine answered."""
    answers: list[int | None] = field(default_factory=list)
    """What the reader's table says."""
    kept: int = 0
    unknown: set[int] = field(default_factory=set)
    """Look-ups whose table could not be told any more."""

    def look_up(self, request: Any) -> None:
        """Cut, ask the engine, and publish the look-up: the order in the ring is what is tested."""
        number, at_once = len(self.seen), self.step % 2
        self.waiting[number] = request
        if at_once:
            self.feed.cut()
        else:
            self.later.append((self.feed.point(), number))
        _, usable, _ = self.core.manager.get_computed_blocks(request)
        if at_once:
            self.feed.put_decision(b"%d" % number)
        self.seen.append(usable)

    def publish(self) -> None:
        """Publish what the step only noted."""
        for point, number in self.later:
            epoch = self.feed.cut_at(point)
            if epoch == UNKNOWN_TABLE:
                self.unknown.add(number)
                continue
            assert self.feed.published == epoch
            self.feed.put_decision(b"%d" % number)
            self.kept += 1
        self.later.clear()


@pytest.mark.parametrize(("kind", "retention"), [("gemma3", None), ("deepseek_v4", 0)])
def test_no_lookup_differs_at_a_cut(kind: str, retention: int | None) -> None:
    """Inside running steps, our rule on the reader's table and the engine's own look-up agree every single time."""
    core = make_core(kind, 3000, retention=retention)
    feed = Feed(VllmPool(core.pool, core.managers), ring_bytes=4 << 20)
    feed.install()
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    while feed.idle():
        reader.poll()
    geometry = geometry_of(core.manager)
    lookups = Lookups(core, feed)

    def ours(body: bytes) -> None:
        request = lookups.waiting[int(body)]
        assert reader.complete
        chain = [key[:KEY_BYTES] for key in request.block_hashes]
        hit = evaluate(geometry, chain, reader.table.presence(), limit=request.num_tokens - 1)
        lookups.answers.append(hit.usable)

    load = Workload(core, random.Random(7), before_lookup=lookups.look_up, prompt_tokens=700)
    while len(lookups.seen) < LOOKUPS // 2:
        lookups.step += 1
        feed.before_schedule(lookups.step)
        scheduled = load.schedule()
        lookups.publish()
        feed.after_schedule(lookups.step, scheduled)
        feed.shadow()
        feed.before_update(lookups.step)
        feed.after_update(lookups.step)
        reader.poll(ours)
        lookups.waiting.clear()
    assert reader.overruns == reader.resyncs == reader.garbled == 0
    assert lookups.answers == [usable for number, usable in enumerate(lookups.seen) if number not in lookups.unknown]
    assert len(lookups.unknown) < len(lookups.seen) // 50, "a page that changes twice in a step is rare"
    assert lookups.kept > len(lookups.seen) // 3, "look-ups that are published later have to be among them"
    assert sum(usable > 0 for usable in lookups.seen) > len(lookups.seen) // 10, "the load has to hit the cache"
