"""The guard between the probe and its host: nothing of ours ever raises into the engine or costs more than allowed.

Invariant: this file holds the only broad ``except`` of the tree. Everything that the engine's thread runs for us goes
through a :class:`Guard`. Called by every part of the probe and by the engine adapters.

A breaker opens after too many errors, or when too many of the last steps cost too much thread CPU. Opening it takes
the hooks out of the engine (the callables registered with :meth:`Guard.on_open`) and leaves the reason behind.
"""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

STEP_BUDGET_NS = 4_000_000
"""Thread CPU that all hooks of one step may take before the step counts as an overrun (the goal is 20 µs)."""

OVERRUN_LIMIT = 16
"""Overruns among the last :data:`OVERRUN_WINDOW` steps that open the breaker."""

OVERRUN_WINDOW = 128

ERROR_LIMIT = 8
"""Errors that open the breaker; one is forgiven every :data:`FORGIVE_STEPS` steps."""

FORGIVE_STEPS = 1000

PRECISE_STEPS = 32
"""Steps measured in thread CPU after one whose wall time exceeded the budget (wall time is a cheap upper bound)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the host tolerates."""

    step_budget_ns: int = STEP_BUDGET_NS
    overrun_limit: int = OVERRUN_LIMIT
    overrun_window: int = OVERRUN_WINDOW
    error_limit: int = ERROR_LIMIT


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Result of something that was allowed to fail: exactly one of the two is set."""

    value: T | None
    error: Exception | None


class Guard:
    """Run the probe's code for the host.

    Args:
        limits: Budget and error limits.
        log: Receives one line when the breaker opens and for each of the first errors.
    """

    def __init__(self, *, limits: Limits | None = None, log: Callable[[str], None] | None = None) -> None:
        self.limits = limits or Limits()
        self.on = True
        """False once the breaker is open or the probe was switched off: every hook is then a plain passage."""
        self.reason: str | None = None
        self.errors = 0
        self.overruns = 0
        self.steps = 0
        self.spent_ns = 0
        """Time in hooks since the start (wall time, or thread CPU in steps that are measured precisely)."""
        self.last_error: str | None = None
        self._log = log
        self._score = 0
        self._forgive_at = FORGIVE_STEPS
        self._window: deque[bool] = deque(maxlen=self.limits.overrun_window)
        self._step_ns = 0
        self._precise = 0
        self._clock: Callable[[], int] = time.perf_counter_ns
        self._on_open: list[Callable[[], object]] = []
        # Re-entrant: a finalizer that the garbage collector runs here may fail and come back.
        self._open_lock = threading.RLock()

    def on_open(self, remove: Callable[[], object]) -> None:
        """Register what has to be taken out of the engine when the breaker opens; the latest goes first."""
        self._on_open.append(remove)

    # ------------------------------------------------------------------ calls

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Run ``fn`` on the engine's thread, timed; errors are counted and None is returned."""
        if not self.on:
            return None
        clock = self._clock
        begin = clock()
        try:
            return fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the one place
            self.fault(error, fn)
            return None
        finally:
            if clock is self._clock:
                self._step_ns += clock() - begin

    def attempt(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> Attempt[T]:
        """Run ``fn`` for somebody who wants to know the error: an operator's question, or a thread of ours.

        Not timed, and not counted against the host: what an operator asks for may fail without harm.
        """
        try:
            return Attempt(fn(*args, **kwargs), None)
        except Exception as error:  # noqa: BLE001 - the one place
            return Attempt(None, error)

    # --------------------------------------------------------------- wrappers

    def after(
        self, original: Callable[..., Any], observe: Callable[..., object], *, timed: bool = False
    ) -> Callable[..., Any]:
        """Return a stand-in for ``original`` that then calls ``observe(result, *args, **kwargs)``.

        The host's own exceptions pass untouched and are not observed. ``timed`` counts against the step's budget; leave
        it out for hooks that only append to a list.
        """
        guarded = self.call if timed else self.quiet

        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.on:
                guarded(observe, result, *args, **kwargs)
            return result

        return stand_in

    def before(
        self, original: Callable[..., Any], observe: Callable[..., object], *, timed: bool = False
    ) -> Callable[..., Any]:
        """Return a stand-in for ``original`` that first calls ``observe(*args, **kwargs)``."""
        guarded = self.call if timed else self.quiet

        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                guarded(observe, *args, **kwargs)
            return original(*args, **kwargs)

        return stand_in

    def around(
        self, original: Callable[..., Any], begin: Callable[..., object], end: Callable[..., object]
    ) -> Callable[..., Any]:
        """Return a stand-in for ``original`` between ``begin(*args, **kwargs)`` and ``end(failed, *args, **kwargs)``.

        For calls that may have done something although they raised: ``end`` comes in any case. Not timed.
        """

        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            self.quiet(begin, *args, **kwargs)
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                if self.on:
                    self.quiet(end, failed, *args, **kwargs)
            return result

        return stand_in

    def quiet(self, fn: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Run ``fn``, not timed: it only appends to a list, or it is part of something that is timed."""
        try:
            fn(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the one place
            self.fault(error, fn)

    # ------------------------------------------------------------- accounting

    def fault(self, error: BaseException, where: object) -> None:
        """Count an error of ours; open the breaker when there are too many."""
        self.errors += 1
        self._score += 1
        name = getattr(where, "__qualname__", type(where).__name__)
        self.last_error = f"{name}: {type(error).__name__}: {error}"[:500]
        if self._log is not None and self.errors <= self.limits.error_limit:
            self._say(f"error in {self.last_error}")
        if self._score >= self.limits.error_limit:
            self.open(f"{self._score} errors, the last in {self.last_error}")

    def step(self) -> None:
        """Close the books of one step; called once a step, at its start."""
        spent = self._step_ns
        self._step_ns = 0
        self.spent_ns += spent
        self.steps += 1
        over = spent > self.limits.step_budget_ns
        if self._precise:
            self._count_precise(over=over)
        elif over:
            self._precise = PRECISE_STEPS
            self._clock = time.thread_time_ns
        if self.steps >= self._forgive_at:
            self._forgive_at = self.steps + FORGIVE_STEPS
            self._score = max(0, self._score - 1)

    def _count_precise(self, *, over: bool) -> None:
        self._window.append(over)
        if over:
            self.overruns += 1
            self._precise = PRECISE_STEPS
            if sum(self._window) >= self.limits.overrun_limit:
                budget_ms = self.limits.step_budget_ns / 1e6
                self.open(f"{sum(self._window)} of the last {len(self._window)} steps cost more than {budget_ms:g} ms")
            return
        self._precise -= 1
        if not self._precise:
            self._window.clear()
            self._clock = time.perf_counter_ns

    def open(self, reason: str) -> None:
        """Open the breaker: from now on every hook is a plain passage, and the hooks are taken out. Any thread."""
        with self._open_lock:
            if not self.on:
                return
            self.on = False
            self.reason = reason
        self._say(f"probe off: {reason}")
        while self._on_open:
            removed = self.attempt(self._on_open.pop())
            if removed.error is not None:
                self.last_error = f"while removing hooks: {type(removed.error).__name__}: {removed.error}"[:500]

    def _say(self, line: str) -> None:
        if self._log is not None:
            self.attempt(self._log, line)

    def state(self) -> dict[str, Any]:
        """Describe the guard for ``overview`` and ``doctor``."""
        return {
            "on": self.on,
            "reason": self.reason,
            "errors": self.errors,
            "last_error": self.last_error,
            "steps": self.steps,
            "overruns": self.overruns,
            "overhead_seconds": self.spent_ns / 1e9,
            "precise": self._precise > 0,
        }
