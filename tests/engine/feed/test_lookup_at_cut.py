"""A table cut before a look-up answers that look-up exactly as the engine does."""

import os
import random
from typing import Any

import pytest

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.model.states import KEY_BYTES
from agent.probe.feed import Feed
from agent.resume import evaluate
from agent.table import RingReader
from tests.support.cache_core import Workload, make_core

pytestmark = pytest.mark.engine

LOOKUPS = 100_000 if os.environ.get("KVCTL_NIGHTLY") else 10_000
"""In all, over the two kinds."""


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
    seen: list[tuple[bytes, int, int]] = []
    answers: list[int | None] = []

    def ours(body: bytes) -> None:
        request = waiting[int(body)]
        assert reader.complete
        chain = [key[:KEY_BYTES] for key in request.block_hashes]
        hit = evaluate(geometry, chain, reader.table.presence(), limit=request.num_tokens - 1)
        answers.append(hit.usable)

    waiting: dict[int, Any] = {}

    def look_up(request: Any) -> None:
        """Cut, ask the engine, and publish the look-up: the order in the ring is what is tested."""
        number = len(seen)
        waiting[number] = request
        feed.cut()
        _, usable, _ = core.manager.get_computed_blocks(request)
        feed.put_decision(b"%d" % number)
        seen.append((b"", number, usable))

    load = Workload(core, random.Random(7), before_lookup=look_up, prompt_tokens=700)
    step = 0
    while len(seen) < LOOKUPS // 2:
        step += 1
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.shadow()
        feed.before_update(step)
        feed.after_update(step)
        reader.poll(ours)
        waiting.clear()
    assert reader.overruns == reader.resyncs == reader.garbled == 0
    assert len(answers) == len(seen)
    differing = [(usable, answer) for (_, _, usable), answer in zip(seen, answers, strict=True) if usable != answer]
    assert differing == []
    reused = sum(usable > 0 for _, _, usable in seen)
    assert reused > len(seen) // 10, "the load has to hit the cache"
