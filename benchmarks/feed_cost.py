"""What the feed costs the engine: thread CPU a step on vLLM's real cache manager, interleaved A/B.

Run: ``python benchmarks/feed_cost.py [--steps N]`` in an environment with vLLM. Prints a markdown table.

Every mode drives its own manager in its own process through the same arrivals; in random order the modes take turns
in blocks of :data:`BLOCK_STEPS`, so that caches are as warm as in an engine that runs alone, and a mode is compared
with ``off`` step by step (trimmed mean of the differences). *Critical* is what delays the batch (hooks inside the
engine's calls), *shadow* what runs while the device computes.

Goals: always-on at most 0.2 % of a 10 ms step at 64 decoding and one admission of 2k, at most 4 % of the manager's own
CPU anywhere; joined at most 1 % on the critical path; at most 3 % while bootstrapping.
"""

import argparse
import gc
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.engines.vllm.pool import VllmPool
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from tests.support.cache_core import Core, make_core

BLOCK_STEPS = 20
COLD_STEPS = 3
"""Steps at the start of a block that are not counted."""

STEP_NS = 10_000_000
"""The step that costs are compared with."""
MODES = ("off", "always on", "content", "references", "bootstrap")
CHUNK_TOKENS = 8192
PAGES = {"gemma3": 65536, "deepseek_v4": 65536}

clock = time.thread_time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One load: how many requests decode, how many are admitted a step, how long their prompts are."""

    name: str
    decoding: int
    admissions: float
    prompt: int
    reuse: float = 0.5


MIXES = (
    Mix(name="64 decoding + 1 x 2k", decoding=64, admissions=1, prompt=2048),
    Mix(name="64 decoding + 2 x 2k", decoding=64, admissions=2, prompt=2048),
    Mix(name="8 decoding, 32k every 8th step", decoding=8, admissions=1 / 8, prompt=32768),
)


@dataclass(slots=True)
class Side:
    """One mode: a manager, perhaps a feed, and its times in nanoseconds."""

    mode: str
    core: Core
    feed: Feed | None
    live: list[Any] = field(default_factory=list)
    critical: list[int] = field(default_factory=list)
    shadow: list[int] = field(default_factory=list)


def make_side(kind: str, mode: str) -> Side:
    """Make a manager and a feed in the state that ``mode`` names."""
    core = make_core(kind, PAGES[kind], max_tokens=70000)
    if mode == "off":
        return Side(mode=mode, core=core, feed=None)
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    if feed.reason is not None:
        raise SystemExit(f"the feed is off: {feed.reason}")
    if mode in ("content", "bootstrap"):
        feed.join(Level.CONTENT)
    elif mode == "references":
        feed.join(Level.REFERENCES)
    return Side(mode=mode, core=core, feed=feed)


def run_step(side: Side, step: int, arrivals: Sequence[tuple[str, list[int]]], decoding: int) -> None:
    """One step of one side, timed."""
    core, feed, live = side.core, side.feed, side.live
    manager = core.manager
    new = [core.request(name, tokens) for name, tokens in arrivals]
    for request in live:
        if request.num_computed_tokens >= request.num_tokens:
            request.append_output_token_ids(5)
    if feed is not None and side.mode == "bootstrap":
        feed.request_bootstrap()
    begin = clock()
    if feed is not None:
        feed.before_schedule(step)
    scheduled = {}
    manager.new_step_starts()
    for request in live:
        count = min(request.num_tokens - request.num_computed_tokens, CHUNK_TOKENS)
        manager.allocate_slots(request, count)
        request.num_computed_tokens += count
        scheduled[request.request_id] = count
    for request in new:
        blocks, hit, boundary = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        count = min(request.num_tokens - hit, CHUNK_TOKENS)
        if manager.allocate_slots(request, count, hit, blocks) is not None:
            request.num_computed_tokens = hit + count
            live.append(request)
            scheduled[request.request_id] = count
    while len(live) > decoding:
        manager.free(live.pop(0))
    if feed is not None:
        feed.after_schedule(step, scheduled)
    middle = clock()
    if feed is not None:
        feed.shadow()
        after = clock()
        feed.before_update(step)
        feed.after_update(step)
        end = clock()
        side.critical.append(middle - begin + end - after)
        side.shadow.append(after - middle)
    else:
        side.critical.append(middle - begin)
        side.shadow.append(0)


class Arrivals:
    """The same prompts for every mode."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix = mix
        self._rng = random.Random(seed)
        self._texts = [[self._rng.randint(1, 1000) for _ in range(mix.prompt)] for _ in range(6)]
        self._number = 0

    def of_step(self, step: int) -> list[tuple[str, list[int]]]:
        """Return (name, tokens) of the requests that arrive in ``step``."""
        mix = self.mix
        every = max(1, round(1 / mix.admissions))
        arrivals = []
        for _ in range(int(mix.admissions) if mix.admissions >= 1 else int(step % every == 0)):
            self._number += 1
            cut = int(mix.prompt * mix.reuse) // 256 * 256
            tail = [self._rng.randint(1, 1000) for _ in range(mix.prompt - cut)]
            arrivals.append((str(self._number), self._rng.choice(self._texts)[:cut] + tail))
        return arrivals


def serve(mode: str, pipe: Connection) -> None:
    """Run one mode in a process of its own: the interpreter specialises on one pool, as in an engine."""
    import vllm.v1.core.kv_cache_manager  # noqa: F401 - before anything is timed

    side: Side | None = None
    arrivals: Arrivals | None = None
    gc.collect()
    gc.freeze()
    while (order := pipe.recv()) is not None:
        if isinstance(order, range):
            assert side is not None
            assert arrivals is not None
            for step in order:
                run_step(side, step, arrivals.of_step(step), arrivals.mix.decoding)
            pipe.send("done")
        elif order == "times":
            assert side is not None
            pipe.send((side.critical, side.shadow, side.feed.status() if side.feed is not None else {}))
        else:
            kind, mix, seed = order
            side, arrivals = make_side(kind, mode), Arrivals(mix, seed)
            pipe.send("ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What one mode cost, step by step, in nanoseconds of thread CPU."""

    mode: str
    critical: list[int]
    shadow: list[int]
    totals: dict[str, Any]


def measure(pipes: dict[str, Connection], kind: str, mix: Mix, steps: int, seed: int = 1) -> list[Times]:
    """Run all modes through the same load, step by step in turn."""
    rng = random.Random(seed)
    for pipe in pipes.values():
        pipe.send((kind, mix, seed))
        pipe.recv()
    order = list(pipes.values())
    for start in range(1, steps + 1, BLOCK_STEPS):
        rng.shuffle(order)
        for pipe in order:
            pipe.send(range(start, start + BLOCK_STEPS))
            pipe.recv()
    found = []
    for mode, pipe in pipes.items():
        pipe.send("times")
        critical, shadow, totals = pipe.recv()
        found.append(Times(mode=mode, critical=critical, shadow=shadow, totals=totals))
    return found


def trimmed(values: Sequence[int]) -> float:
    """Return the mean without the lowest and highest tenth."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.mean(ordered[cut : len(ordered) - cut])


def counted(values: Sequence[int]) -> list[int]:
    """Return the steps that count: the last two thirds, without the cold start of each block."""
    warm = len(values) // 3 // BLOCK_STEPS * BLOCK_STEPS
    return [value for step, value in enumerate(values) if step >= warm and step % BLOCK_STEPS >= COLD_STEPS]


def report(kind: str, mix: Mix, sides: Sequence[Times], write: Callable[[str], object]) -> None:
    """Write one markdown table."""
    base = counted(sides[0].critical)
    own = trimmed(base)
    write(f"\n### {kind}, {mix.name}\n")
    write(f"manager's own CPU a step: {own / 1e3:.0f} us (trimmed mean over {len(base)} steps)\n")
    write("| mode | critical us | % of 10 ms | shadow us | % of 10 ms | all, % of the manager's CPU | p99 shadow us |")
    write("|---|---|---|---|---|---|---|")
    for side in sides[1:]:
        critical = trimmed([mine - theirs for mine, theirs in zip(counted(side.critical), base, strict=True)])
        shadows = sorted(counted(side.shadow))
        shadow = trimmed(shadows)
        write(
            f"| {side.mode} | {critical / 1e3:.1f} | {critical / STEP_NS:.2%} | {shadow / 1e3:.1f} "
            f"| {shadow / STEP_NS:.2%} | {(critical + shadow) / own:.1%} "
            f"| {shadows[len(shadows) * 99 // 100] / 1e3:.0f} |"
        )
    for side in sides[1:]:
        if side.mode != "always on":
            totals, steps = side.totals, len(side.critical)
            write(
                f"\n{side.mode}, a step: {totals['cleared'] / steps:.0f} pages allocated, "
                f"{totals['references'] / steps:.0f} reference events, {totals['rows'] / steps:.0f} registered, "
                f"{totals['chunk_pages'] / steps:.0f} pages of chunks"
            )


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--kinds", nargs="*", default=list(PAGES))
    parser.add_argument("--modes", nargs="*", default=list(MODES[1:]))
    parser.add_argument("--mixes", nargs="*", type=int, default=list(range(len(MIXES))))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    workers = []
    for mode in ("off", *options.modes):
        ours, theirs = context.Pipe()
        workers.append(context.Process(target=serve, args=(mode, theirs), daemon=True))
        workers[-1].start()
        pipes[mode] = ours
    for kind in options.kinds:
        for mix in (MIXES[number] for number in options.mixes):
            steps = options.steps if mix.prompt < 10_000 else max(options.steps // 3, 120)
            report(kind, mix, measure(pipes, kind, mix, steps), print)
    for pipe in pipes.values():
        pipe.send(None)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
