"""Work for the engine's thread, done between two steps.

Invariant: a job runs where the host changes nothing meanwhile - on the engine's own thread between steps, or, where an
idle engine has no thread, under the turn lock that its entry points take. Jobs are bounded; a long one runs in slices.
Submitted by the probe's thread, drained by the engine's.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ..errors import DeadlineError, TargetError
from .guard import Guard

AGAIN: Final = object()
"""Returned by a job that has more to do: it continues at the next safe point."""

BUSY_BUDGET_NS: Final = 5_000_000
"""What jobs may take between two steps of a busy engine; one always runs, the rest waits for the next step."""


class Job:
    """One piece of work, and what became of it."""

    __slots__ = ("cancelled", "done", "error", "expires_ns", "label", "run", "value")

    def __init__(self, run: Callable[[], Any], *, label: str, expires_ns: int, done: Callable[["Job"], object]) -> None:
        self.run = run
        self.label = label
        self.expires_ns = expires_ns
        self.done = done
        """Called on the engine's thread: must only hand the job over."""
        self.value: Any = None
        self.error: Exception | None = None
        self.cancelled = False


class SafePoint:
    """The queue between the two threads.

    Args:
        guard: Runs the jobs.
        wake: Makes an idle engine pass a safe point soon; returns whether it can (False: the engine has no thread of
            its own while it idles, and :meth:`pump` has to be called).
        turn: Lock that the host's entry points hold where :meth:`pump` may run jobs on the probe's thread.
    """

    def __init__(self, guard: Guard, wake: Callable[[], bool], *, turn: Any | None = None) -> None:
        self._guard = guard
        self._wake = wake
        self.turn = turn
        self.jobs: deque[Job] = deque()
        """What waits; the same object always, so that hooks may look at it."""
        self.idle_work: Callable[[], bool] | None = None
        """More work of an idle engine (bootstrap chunks); returns whether some is left."""
        self.catch_up: Callable[[], object] | None = None
        """What the engine's steps left to be done; it comes before any job."""
        self._left = False
        """Idle work was not looked at when jobs ran last: the engine had something else to do."""
        self.spent_ns = 0
        self.passed = 0
        """Safe points passed with work."""

    def submit(self, run: Callable[[], Any], *, label: str, deadline_s: float, done: Callable[[Job], object]) -> Job:
        """Queue a job. Probe's thread."""
        expires = time.monotonic_ns() + int(deadline_s * 1e9)
        job = Job(run, label=label, expires_ns=expires, done=done)
        self.jobs.append(job)
        self._guard.attempt(self._wake)
        return job

    @property
    def waiting(self) -> bool:
        """Whether jobs wait. Cheap: asked once a step."""
        return bool(self.jobs)

    def drain(self, *, idle: bool) -> bool:
        """Run what waits; return whether more is left. Engine's thread (or the turn lock's holder); never raises.

        Args:
            idle: Nothing else is to be done: the budget does not hold, and idle work runs, too.
        """
        if self.catch_up is not None:
            self._guard.call(self.catch_up)
        begin = time.monotonic_ns()
        for _ in range(len(self.jobs)):
            try:
                job = self.jobs.popleft()
            except IndexError:
                break  # the probe's thread has just given it up
            self._run(job)
            if not idle and time.monotonic_ns() - begin > BUSY_BUDGET_NS:
                break
        more = bool(self.jobs)
        if idle and self.idle_work is not None and self._guard.on:
            more = bool(self._guard.attempt(self.idle_work).value) or more
        self._left = not idle and self.idle_work is not None
        self.spent_ns += time.monotonic_ns() - begin
        self.passed += 1
        if idle and more:
            self._guard.attempt(self._wake)
        return more

    def _run(self, job: Job) -> None:
        if job.cancelled:
            return
        if time.monotonic_ns() > job.expires_ns:
            job.error = _late(job)
        else:
            attempt = self._guard.attempt(job.run)
            if attempt.value is AGAIN and attempt.error is None:
                self.jobs.append(job)
                return
            job.value, job.error = attempt.value, attempt.error
        self._guard.attempt(job.done, job)

    def expire(self) -> None:
        """Give up jobs whose time is over, and wake the engine for the others. Probe's thread, about once a second.

        An engine that stands still must not collect jobs. And one that was busy at its last safe point may have gone
        idle without passing another (data parallel engines do): nobody else would wake it for what was left then.
        """
        now = time.monotonic_ns()
        for job in [job for job in self.jobs.copy() if job.expires_ns < now]:
            try:
                self.jobs.remove(job)
            except (ValueError, IndexError):
                continue  # the engine's thread has just taken it
            job.error = _late(job)
            self._guard.attempt(job.done, job)
        if self._guard.on and (self.jobs or self._left):
            self._guard.attempt(self._wake)

    def pump(self) -> bool:
        """Run jobs on the probe's thread if the host's entry points are idle; return whether work is left.

        Only where the engine has no thread of its own. The host then waits for the job in hand as it would if the job
        ran on its own thread.
        """
        if self.turn is None or not self.turn.acquire(blocking=False):
            return bool(self.jobs)
        try:
            return self.drain(idle=True)
        finally:
            self.turn.release()

    def fail_all(self) -> None:
        """Give up everything that waits: the engine ends, or the probe is taken out."""
        while self.jobs:
            job = self.jobs.popleft()
            job.error = TargetError("the probe of this engine is off", why=self._guard.reason)
            self._guard.attempt(job.done, job)


def _late(job: Job) -> DeadlineError:
    return DeadlineError(
        f"the engine passed no safe point in time for `{job.label}`",
        why="its steps are long, or it was stopped",
        next_step="raise --timeout",
    )
