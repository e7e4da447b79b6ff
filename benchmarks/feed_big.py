"""The feed at one million pages: cost of chunks, time to a whole table, snapshot copy, memory of a reader.

Run: ``python benchmarks/feed_big.py`` where vLLM is. Prints a markdown table. Goals: a whole table within 15 s
under load at 10 ms a step and 0.5 s idle, a snapshot copy within 10 ms, at most 1 GB for a reader.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.table import RingReader
from tests.support.cache_core import make_core
from tests.support.feed_host import FeedHost

PAGES = 1 << 20
STEP_S = 0.010


def milliseconds(function: Callable[[], Any], times: int) -> float:
    """Return the median wall time of a call."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        kept = function()
        taken.append(time.perf_counter() - begin)
        del kept
    return statistics.median(taken) * 1e3


def make_feed() -> Feed:
    """Make a pool in which every page has a key, and a feed on it."""
    core = make_core("deepseek_v4", PAGES)
    rng = random.Random(1)
    for block in core.pool.blocks[1:]:
        block._block_hash = rng.randbytes(32) + bytes(4)
        block._block_hash_num_tokens = 4
    feed = Feed(VllmPool(core.pool, core.managers, key_bytes=36))
    feed.install()
    if feed.reason is not None:
        raise SystemExit(feed.reason)
    return feed


def join(feed: Feed) -> RingReader:
    """Join in this process."""
    feed.join(Level.CONTENT)
    fd = feed.ring_fd
    assert fd is not None
    reader = RingReader(fd, on_bootstrap=feed.request_bootstrap)
    reader.restart()
    return reader


def main() -> None:
    """Measure everything."""
    feed = make_feed()
    print("| what | measured | goal |\n|---|---|---|")
    reader = join(feed)
    shadows = []
    while feed.status()["bootstrap_pages_left"]:
        begin = time.thread_time_ns()
        feed.shadow()
        shadows.append(time.thread_time_ns() - begin)
        reader.poll()
    per_step = statistics.median(shadows)
    print(f"| steps to a whole table under load | {len(shadows)} = {len(shadows) * STEP_S:.1f} s at 10 ms | 15 s |")
    print(f"| engine CPU of such a step | {per_step / 1e3:.0f} us = {per_step / STEP_S / 1e9:.1%} of 10 ms | 3 % |")
    print(f"| complete | {reader.complete} | |")
    reader.restart()
    started = time.perf_counter()
    engine = 0
    while feed.status()["bootstrap_pages_left"]:
        work = time.thread_time_ns()
        feed.idle()
        engine += time.thread_time_ns() - work
        reader.poll()
    whole = time.perf_counter() - started
    print(f"| idle engine, its CPU for a whole table | {engine / 1e9:.2f} s ({engine / PAGES:.0f} ns a page) | 0.5 s |")
    print(f"| idle engine, with the reader in the same thread | {whole:.2f} s | |")
    print(f"| snapshot copy | {milliseconds(reader.table.to_columns, 15):.1f} ms | 10 ms |")
    started = time.perf_counter()
    index = reader.table.presence()
    print(f"| index of {len(index)} keys, built once | {time.perf_counter() - started:.2f} s | |")
    host = FeedHost(feed)
    remote = host.start()
    host.wait_complete(remote)
    (seen,) = host.finish()
    print(f"| peak of a reader process, index included | {seen['peak_bytes'] / 2**20:.0f} MiB | 1024 MiB |")


if __name__ == "__main__":
    main()
