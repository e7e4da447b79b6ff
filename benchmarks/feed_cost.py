"""What the feed costs the engine: thread CPU a step on vLLM's real cache manager, interleaved A/B.

Run: ``python benchmarks/feed_cost.py [--steps N]`` in an environment with vLLM. Prints a markdown table.

Every mode has a process and a manager of its own. In blocks of :data:`BLOCK_STEPS` steps the feed is put in and taken
out again *on the same manager*, so that both halves run in the same memory with the same pool (two processes without
any feed differ by some 30 us a step). A row is the trimmed mean of the steps with the feed less that of the steps
without, and its standard error over the pairs of blocks, whose order is drawn by lot; ``control`` switches nothing
and shows what the method can resolve.
*Critical* is what delays the batch (hooks inside the engine's calls), *shadow* what runs while the device computes.

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

BLOCK_STEPS = 100
COLD_STEPS = 40
"""Steps at the start of a block that are not counted: the interpreter specialises anew on what was put in or taken out.
With blocks of 20 steps, 4 of them not counted, two processes differed by 40 us on the critical path, now by 10."""
WARM_BLOCKS = 2
"""Blocks at the start that are not counted: the pool fills, the interpreter specialises."""

STEP_NS = 10_000_000
"""The step that costs are compared with."""
MODES = ("control", "always on", "content", "references", "bootstrap")
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
    """One mode: a manager, a feed that is in or out, and its times in nanoseconds, a list a block."""

    mode: str
    core: Core
    feed: Feed
    live: list[Any] = field(default_factory=list)
    on: bool = False
    critical: list[list[int]] = field(default_factory=list)
    shadow: list[list[int]] = field(default_factory=list)


def make_side(kind: str, mode: str) -> Side:
    """Make a manager and its feed, not yet put in."""
    core = make_core(kind, PAGES[kind], max_tokens=70000)
    return Side(mode=mode, core=core, feed=Feed(VllmPool(core.pool, core.managers)))


def switch(side: Side, *, on: bool) -> None:
    """Put the feed in, at the level that the mode names, or take it out; ``control`` does neither."""
    side.critical.append([])
    side.shadow.append([])
    if side.mode == "control":
        return
    feed = side.feed
    if side.on:
        feed.uninstall()
    side.on = on
    if not on:
        return
    feed.install()
    if feed.reason is not None:
        raise SystemExit(f"the feed is off: {feed.reason}")
    if side.mode in ("content", "bootstrap"):
        feed.join(Level.CONTENT)
    elif side.mode == "references":
        feed.join(Level.REFERENCES)


def run_step(side: Side, step: int, arrivals: Sequence[tuple[str, list[int]]], decoding: int) -> None:
    """One step of one side, timed."""
    core, live = side.core, side.live
    feed = side.feed if side.on else None
    manager = core.manager
    new = [core.request(name, tokens) for name, tokens in arrivals]
    for request in live:
        if request.num_computed_tokens >= request.num_tokens:
            request.append_output_token_ids(5)
    if feed is not None and side.mode == "bootstrap":
        feed.request_bootstrap()
    begin = clock()
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
    middle = clock()
    if feed is not None:
        # As the probe does: only what must be known at once is done before the batch is on its way.
        feed.dispatched(step, scheduled)
        after = clock()
        if feed.stamps.log:
            feed.updated(step)
        else:
            feed.stamps.committed = step
        end = clock()
        side.critical[-1].append(middle - begin + end - after)
        side.shadow[-1].append(after - middle)
    else:
        side.critical[-1].append(middle - begin)
        side.shadow[-1].append(0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What one mode cost in nanoseconds of thread CPU: a list a block, in the order of :func:`turns`."""

    mode: str
    critical: list[list[int]]
    shadow: list[list[int]]
    totals: dict[str, Any]


def serve(kind: str, mix: Mix, mode: str, pairs: int, pipe: Connection) -> None:
    """Run one mode in a process of its own: the interpreter specialises on one pool, as in an engine."""
    import vllm.v1.core.kv_cache_manager  # noqa: F401 - before anything is timed

    side, arrivals = make_side(kind, mode), Arrivals(mix, seed=1)
    gc.collect()
    gc.freeze()
    for block, on in enumerate([False] * WARM_BLOCKS + turns(pairs)):
        switch(side, on=on)
        for step in steps_of(block):
            run_step(side, step, arrivals.of_step(step), mix.decoding)
    found = Times(
        mode=mode,
        critical=side.critical[WARM_BLOCKS:],
        shadow=side.shadow[WARM_BLOCKS:],
        totals=side.feed.status(),
    )
    pipe.send(found)


def trimmed(values: Sequence[float]) -> float:
    """Return the mean without the lowest and highest tenth."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return statistics.mean(ordered[cut : len(ordered) - cut])


def turns(pairs: int) -> list[bool]:
    """Return for each block whether it is one with the feed: one of each pair, drawn by lot."""
    rng = random.Random(7)
    order = []
    for _ in range(pairs):
        first = rng.random() < 0.5
        order += [first, not first]
    return order


def steps_of(block: int) -> range:
    """Return the steps of a block; steps count from 1."""
    return range(1 + block * BLOCK_STEPS, 1 + (block + 1) * BLOCK_STEPS)


def means_of(blocks: Sequence[Sequence[int]], *, on: bool) -> list[float]:
    """Return one trimmed mean a block with (or without) the feed, the cold steps at its start left out."""
    order = turns(len(blocks) // 2)
    return [trimmed(block[COLD_STEPS:]) for block, now in zip(blocks, order, strict=True) if now is on]


def compared(blocks: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return (mean, its standard error) of the difference within the pairs, the largest tenth at both ends left out."""
    pairs = zip(means_of(blocks, on=True), means_of(blocks, on=False), strict=True)
    ordered = sorted(with_it - without for with_it, without in pairs)
    cut = len(ordered) // 10
    kept = ordered[cut : len(ordered) - cut]
    return statistics.mean(kept), statistics.stdev(kept) / len(kept) ** 0.5


def table(kind: str, mix: Mix, modes: Sequence[Times], whose: str, write: Callable[[str], object]) -> None:
    """Write one markdown table; ``whose`` CPU the costs are compared with."""
    own = statistics.median(value for times in modes for value in means_of(times.critical, on=False))
    write(f"\n### {kind}, {mix.name} ({whose}'s own CPU a step: {own / 1e3:.0f} us)\n")
    write(f"| mode | critical us | % of 10 ms | shadow us | % of 10 ms | all, % of the {whose}'s CPU |")
    write("|---|---|---|---|---|---|")
    for times in modes:
        critical, error = compared(times.critical)
        shadow, shadow_error = compared(times.shadow)
        whole = (critical + shadow) / own
        write(
            f"| {times.mode} | {critical / 1e3:.1f} ± {error / 1e3:.1f} | {critical / STEP_NS:.2%} "
            f"| {shadow / 1e3:.1f} ± {shadow_error / 1e3:.1f} | {shadow / STEP_NS:.2%} | {whole:.1%} |"
        )


def report(kind: str, mix: Mix, modes: Sequence[Times], write: Callable[[str], object]) -> None:
    """Write one table, and what the joined modes had to do."""
    table(kind, mix, modes, "manager", write)
    for times in modes:
        totals, steps = times.totals, len(times.critical) // 2 * BLOCK_STEPS
        if times.mode not in ("control", "always on"):
            write(
                f"\n{times.mode}, a step: {totals['cleared'] / steps:.0f} pages allocated, "
                f"{totals['references'] / steps:.0f} reference events, {totals['rows'] / steps:.0f} registered, "
                f"{totals['chunk_pages'] / steps:.0f} pages of chunks"
            )


Serve = Callable[[str, Mix, str, int, Connection], None]
"""Run one mode of one mix on one kind of groups, so many pairs of blocks, and send its :class:`Times`."""
Write = Callable[[str], object]


def drive(serve: Serve, report: Callable[[str, Mix, Sequence[Times], Write], None], about: str | None) -> None:
    """Read the command line and run everything, each mode in a process of its own."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--kinds", nargs="*", default=list(PAGES))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--mixes", nargs="*", type=int, default=list(range(len(MIXES))))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for kind in options.kinds:
        for mix in (MIXES[number] for number in options.mixes):
            steps = options.steps if mix.prompt < 10_000 else max(options.steps // 2, 1200)
            found = []
            for mode in options.modes:
                ours, theirs = context.Pipe()
                worker = context.Process(target=serve, args=(kind, mix, mode, steps // BLOCK_STEPS // 2, theirs))
                worker.start()
                theirs.close()
                found.append(ours.recv())
                worker.join()
            report(kind, mix, found, print)


if __name__ == "__main__":
    drive(serve, report, __doc__)
