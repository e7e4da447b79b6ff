"""What the whole probe costs the engine: thread CPU a step on vLLM's real scheduler, interleaved A/B.

Run: ``python benchmarks/probe_cost.py [--steps N]`` in an environment with vLLM. Prints markdown tables.

Unlike ``feed_cost.py``, which drives the cache manager and the feed alone, everything is in: hooks of the scheduler,
the guard, decisions, the ghost set, the feed, safe points. A step is what the engine core does around a forward pass
that takes no time. In blocks of :data:`BLOCK_STEPS` steps the probe is attached and taken out again on the same
scheduler, in pairs whose order is drawn by lot; a number is the mean difference within the pairs with its standard
error, and ``control``, which attaches nothing, shows what the method can resolve. *Critical* is what delays the batch,
*shadow* runs while the device computes.

Goals (at 10 ms a step, 64 decoding and one admission of 2k): always-on at most 0.2 % of the step and at most 4 % of the
scheduler's own CPU; joined at most 1 % on the critical path; at most 3 % while a reader waits for the whole table.
"""

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from feed_cost import WARM_BLOCKS, Arrivals, Mix, Times, Write, drive, steps_of, table, turns

from agent.engines.vllm.adapter import VllmAdapter
from agent.model.snapshot import Level
from agent.probe.lifecycle import Probe
from tests.support.bare_engine import bare_core, made_up_results
from tests.support.cache_core import group_specs
from tests.support.models import write_model
from tests.support.step_engine import Setting, Shape, make_scheduler

PAGES = 65536

clock = time.thread_time_ns


@dataclass(slots=True)
class Side:
    """One mode: a scheduler, its probe while it is attached, and times in nanoseconds, a list a block."""

    mode: str
    core: Any
    runtime: Path
    decoding: int
    probe: Probe | None = None
    critical: list[list[int]] = field(default_factory=list)
    shadow: list[list[int]] = field(default_factory=list)


def make_side(kind: str, mode: str, decoding: int, folder: Path) -> Side:
    """Make a scheduler with the groups of ``kind``."""
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    specs, block, hash_block = group_specs(kind)
    setting = Setting(policy="fcfs", asynchronous=False, in_flight=0, pages=PAGES, chunk=0)
    shape = Shape(
        specs=specs, block=block, hash_block=hash_block, max_tokens=70000, sequences=256, batched_tokens=16384
    )
    scheduler = make_scheduler(write_model(folder, "llama"), setting, shape)
    return Side(mode=mode, core=bare_core(scheduler, hash_block), runtime=folder, decoding=decoding)


def switch(side: Side, *, on: bool) -> None:
    """Attach the probe, at the level that the mode names, or take it out; ``control`` does neither."""
    side.critical.append([])
    side.shadow.append([])
    if side.mode == "control":
        return
    if side.probe is not None:
        side.probe.stop()
        side.probe = None
    if not on:
        return
    environ = {"KVCTL_RUNTIME_DIR": str(side.runtime)}
    turn = threading.RLock()
    turn.acquire()  # this engine is busy, also while requests are made here: the probe's thread takes no turn
    probe = side.probe = Probe(VllmAdapter(side.core, served=False), turn=turn, environ=environ)
    if not probe.start() or probe.feed is None:
        raise SystemExit(f"the feed is off: {probe.standing.off}")
    if side.mode != "always on":
        probe.join(Level.REFERENCES if side.mode == "references" else Level.CONTENT, explain=True)


def run_step(side: Side, arrivals: Sequence[tuple[str, list[int]]]) -> None:
    """One step of the engine, timed: schedule, dispatch, process results that are made up."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    scheduler, probe = side.core.scheduler, side.probe
    for name, tokens in arrivals:
        sampling = SamplingParams(max_tokens=side.decoding, ignore_eos=True)
        scheduler.add_request(Request(name, tokens, sampling, None, block_hasher=side.core.request_block_hasher))
    if probe is not None and side.mode == "bootstrap":
        probe.bootstrap()
    begin = clock()
    output = scheduler.schedule()
    scheduled = clock()
    scheduler.get_grammar_bitmask(output)
    dispatched = clock()
    results = made_up_results(scheduler, output)
    computed = clock()
    scheduler.update_from_output(output, results)
    if probe is not None:
        probe.between_steps(idle=False)
    side.critical[-1].append(scheduled - begin + clock() - computed)
    side.shadow[-1].append(dispatched - scheduled)


def serve(kind: str, mix: Mix, mode: str, pairs: int, pipe: Connection) -> None:
    """Run one mode in a process of its own: the interpreter specialises on one pool, as in an engine."""
    with tempfile.TemporaryDirectory(prefix="kvctl") as folder:
        side, arrivals = make_side(kind, mode, mix.decoding, Path(folder)), Arrivals(mix, seed=1)
        gc.collect()
        gc.freeze()
        for block, on in enumerate([False] * WARM_BLOCKS + turns(pairs)):
            switch(side, on=on)
            for step in steps_of(block):
                run_step(side, arrivals.of_step(step))
        if side.probe is not None:
            side.probe.stop()
        pipe.send(Times(mode=mode, critical=side.critical[WARM_BLOCKS:], shadow=side.shadow[WARM_BLOCKS:], totals={}))


def report(kind: str, mix: Mix, modes: Sequence[Times], write: Write) -> None:
    """Write one table."""
    table(kind, mix, modes, "scheduler", write)


if __name__ == "__main__":
    drive(serve, report, __doc__)
