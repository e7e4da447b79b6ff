"""The reference engine as a process of its own: traffic, the agent, faults on command.

Invariant: one thread drives the engine; it ends when its standard input ends, so that no engine outlives its parent.
Started by ``kvctl demo`` as ``python -P -m agent.reference.serve``; speaks lines on standard input and output.
"""

import argparse
import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from ..engines.reference.adapter import ReferenceAdapter
from ..probe.lifecycle import Probe
from .config import EngineConfig, ModelConfig
from .engine import Engine
from .faults import EXPECTED, Fault
from .injection import inject
from .workload import Arrival, Workload

IDLE_S = 0.05
QUIET_S = 6.0
"""The engine stands still for so long after a double free: it is gone as soon as the page is handed out."""

QUEUE_LIMIT = 24
"""Waiting requests beyond which no more arrive: the demo shows a cache, not a queue."""


def demo_config(folder: str | None) -> EngineConfig:
    """Return an engine that is a little too small for its traffic, as engines are.

    Windows, tails and checkpoints are kept at the end of a prompt only, which is what vLLM does unless told otherwise.
    """
    return EngineConfig(
        compressed_pages=260,
        tail_pages=220,
        window_pages=64,
        indexer_pages=120,
        host_pages=120,
        store_backlog=64,
        disk_folder=folder,
        retention_interval=0,
        max_tokens=256,
    )


class Loop:
    """Drives an engine with a workload.

    Args:
        engine: The engine.
        workload: Where requests come from.
        rate: Requests a second.
        restart_s: Seconds between two restarts; 0 for none.
    """

    def __init__(self, engine: Engine, workload: Workload, *, rate: float, restart_s: float = 0.0) -> None:
        self.engine, self.workload, self.rate, self._restart_s = engine, workload, rate, restart_s
        self.commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Names of faults to act out; None ends the loop."""
        self._leaving: list[tuple[int, str]] = []
        self._due = self._still = time.monotonic()
        self._restart_due = self._due + restart_s

    def run(self) -> None:
        """Serve until told to stop."""
        while self._obey():
            self._arrive()
            self._leave()
            self._restart()
            if self.engine.idle or time.monotonic() < self._still:
                self.engine.pause(IDLE_S)
            else:
                self.engine.step()
                if not self.engine.scheduler.running:
                    self.engine.pause(0.001)  # everybody waits for a tier

    def _obey(self) -> bool:
        while not self.commands.empty():
            command = self.commands.get()
            if command is None:
                return False
            fault = Fault(command)
            inject(self.engine, fault)
            if fault is Fault.DOUBLE_FREE:
                self._still = time.monotonic() + QUIET_S
        return True

    def _arrive(self) -> None:
        while time.monotonic() >= self._due:
            self._due = max(self._due + 1.0 / self.rate, time.monotonic() - 1.0)
            if len(self.engine.scheduler.waiting) < QUEUE_LIMIT:
                self._submit(self.workload.next())

    def _submit(self, arrival: Arrival) -> None:
        self.engine.submit(arrival.name, arrival.prompt, arrival.max_new, identity=arrival.identity)
        if arrival.interrupt_after is not None:
            self._leaving.append((self.engine.counters.steps + arrival.interrupt_after, arrival.name))

    def _restart(self) -> None:
        if self._restart_s and time.monotonic() >= self._restart_due:
            self._restart_due += self._restart_s
            self.engine.restart()

    def _leave(self) -> None:
        step = self.engine.counters.steps
        for due, name in [left for left in self._leaving if left[0] <= step]:
            self._leaving.remove((due, name))
            self.engine.cancel(name)


def _listen(commands: "queue.SimpleQueue[str | None]") -> None:
    """Pass lines of standard input on; its end is the order to stop."""
    known = {fault.value for fault in EXPECTED}
    for line in sys.stdin:
        if (word := line.strip()) in known:
            commands.put(word)
    commands.put(None)


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends; prints one JSON line when ready."""
    parser = argparse.ArgumentParser(prog="reference engine", description="Serve mixed traffic with the agent in it.")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None, help="folder of the disk tier")
    parser.add_argument("--scratch", default=None, help="folder to remove at the end, whatever became of the parent")
    parser.add_argument("--restart-every", type=float, default=0.0, metavar="S", help="lose device and host memory")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = ModelConfig(dtype="float32")
    config = replace(demo_config(options.folder), device=options.device)
    engine = Engine(model, config, threaded_transfers=True)
    workload = Workload(vocabulary=model.vocabulary, longest=config.max_tokens - 24, seed=options.seed)
    probe = Probe(ReferenceAdapter(engine), log=_log)
    started = probe.start()
    loop = Loop(engine, workload, rate=options.rate, restart_s=options.restart_every)
    threading.Thread(target=_listen, args=(loop.commands,), name="commands", daemon=True).start()
    sys.stdout.write(json.dumps({"ready": started}) + "\n")
    sys.stdout.flush()
    try:
        loop.run()
    finally:
        probe.stop()
        engine.close()
        if options.scratch is not None:
            shutil.rmtree(options.scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
