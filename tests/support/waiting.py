"""Wait for a predicate, never for a length of time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(predicate: Callable[[], T], what: str, *, deadline_s: float = 60.0) -> T:
    """Return the first true value of ``predicate``; fail with ``what`` after ``deadline_s`` seconds."""
    end = time.monotonic() + deadline_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"gave up after {deadline_s:.0f} s waiting for {what}; last value {value!r}")
        time.sleep(0.01)
