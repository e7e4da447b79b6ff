"""The serving loop of the demo: requests that come and go, restarts, faults on command.

Invariant: one thread drives the engine. Made by :mod:`agent.reference.serve`.
"""

import time
from typing import TYPE_CHECKING

from .config import EngineConfig
from .engine import Engine
from .faults import Fault
from .injection import inject
from .workload import Arrival, Workload

if TYPE_CHECKING:
    import queue

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
        commands: Names of faults to act out; None ends the loop.
        restart_s: Seconds between two restarts; 0 for none.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        *,
        rate: float,
        commands: "queue.SimpleQueue[str | None]",
        restart_s: float = 0.0,
    ) -> None:
        self.engine, self.workload, self.rate, self._restart_s = engine, workload, rate, restart_s
        self.commands = commands
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
