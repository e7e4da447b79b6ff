"""Asynchronous copies between tiers: submitted, worked off in the background, and finished only when acknowledged.

Loads go first: a request waits for each of them, and nobody for a store.

Invariant: a job never touches a device page; what it brings is put there by the engine thread when the
acknowledgement is collected, so that an abandoned transfer cannot write into a page that has another owner by then.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .disk import UnusableFileError
from .faults import Fault, Faults

Job = Callable[[], list[torch.Tensor]]

_LOAD, _STORE, _END = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A finished job."""

    number: int
    content: list[torch.Tensor]
    error: str | None
    """Reason in one word where it failed."""


class Transfers:
    """A queue of copies.

    Args:
        faults: Faults to act out.
        threaded: Work in a thread of its own; otherwise ``pump`` works in the caller's.
    """

    def __init__(self, faults: Faults, *, threaded: bool = False) -> None:
        self._faults = faults
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        self._finished: queue.SimpleQueue[Acknowledgement] = queue.SimpleQueue()
        self._next = 0
        self.pending: set[int] = set()
        """Jobs that were submitted and not acknowledged."""
        self._thread = (
            threading.Thread(target=self._work, name="reference-transfers", daemon=True) if threaded else None
        )
        if self._thread is not None:
            self._thread.start()

    def submit(self, job: Job, *, load: bool = False) -> int:
        """Queue a job, a load before every store; returns its number."""
        self._next += 1
        self.pending.add(self._next)
        self._jobs.put((_LOAD if load else _STORE, self._next, job))
        return self._next

    def pump(self, limit: int = 1) -> None:
        """Work off up to ``limit`` jobs in this thread; does nothing where there is a thread for it."""
        for _ in range(0 if self._thread is not None else limit):
            try:
                _, number, job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._run(number, job)

    def _run(self, number: int, job: Job) -> None:
        content: list[torch.Tensor] = []
        error: str | None = None
        try:
            content = job()
        except UnusableFileError as failure:
            error = failure.reason
        except OSError as failure:
            error = "full_disk" if failure.errno == 28 else "io_error"
        except (MemoryError, RuntimeError):  # torch raises the second where a device has no memory left
            error = "no_memory"
        if not self._faults.take(Fault.LOSE_ACKNOWLEDGEMENT):
            self._finished.put(Acknowledgement(number=number, content=content, error=error))

    def _work(self) -> None:
        while True:
            _, number, job = self._jobs.get()
            if job is None:
                return
            self._run(number, job)

    def collect(self) -> list[Acknowledgement]:
        """Return what has finished since the last call, without jobs that were abandoned."""
        done: list[Acknowledgement] = []
        while True:
            try:
                item = self._finished.get_nowait()
            except queue.Empty:
                return done
            if item.number in self.pending:
                self.pending.discard(item.number)
                done.append(item)

    def abandon(self, number: int) -> None:
        """Stop waiting for a job; its acknowledgement will be ignored."""
        self.pending.discard(number)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._jobs.put((_END, 0, None))
            self._thread.join()
