"""Points in a step: which events came before a look-up, so that the table it saw can be published after it.

Invariant: taking a point costs the critical path a few lengths and no page is touched. What a page was then is what it
is now if nothing happened to it since. If something did, the table of that look-up is not known: that takes a page
which is registered, lost and allocated again within one schedule call. Engine's thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .events import Pending
from .port import PoolPort
from .stamps import Stamps, null_name


class Point(NamedTuple):
    """A moment between two events; a tuple, because it is made on the critical path."""

    cleared: int
    """Allocated and evicted pages noted until then, since the start."""
    changed: int
    """Pages whose secondary keys changed, since the start."""
    calls: int
    """Registration calls, since the start."""
    resets: int
    """Resets of the cache, since the start."""
    mark: int
    """Stamp of the last registration."""
    epoch: int | None = None
    """Epoch of the table, if it was captured at once."""


class Points:
    """Take points, and go back to them.

    Args:
        port: The pool.
        pending: Events since the last cut.
        stamps: Registrations since the last cut.
    """

    def __init__(self, port: PoolPort, pending: Pending, stamps: Stamps) -> None:
        self._port, self._pending, self._stamps = port, pending, stamps
        self._null = null_name(port)

    def take(self) -> Point:
        """Return the present one."""
        pending, stamps = self._pending, self._stamps
        return Point(
            pending.taken[0] + len(pending.cleared),
            pending.taken[1] + len(pending.changed),
            stamps.taken + len(stamps.log),
            pending.resets,
            stamps.mark,
        )

    @contextmanager
    def at(self, point: Point) -> Iterator[bool]:
        """Put aside what happened after a point; yields whether the rest is what was known there."""
        pending, stamps = self._pending, self._stamps
        counts = (
            point.cleared - pending.taken[0],
            point.changed - pending.taken[1],
            point.calls - stamps.taken,
        )
        # A later cut took events from before and after it, or the cache was emptied since.
        if min(counts) < 0 or point.resets != pending.resets:
            yield False
            return
        lists: Any = (pending.cleared, pending.changed, stamps.log)
        later = [list(events)[count:] for events, count in zip(lists, counts, strict=True)]
        if not any(later):
            yield True
            return
        earlier = [list(events)[:count] for events, count in zip(lists, counts, strict=True)]
        # A page that was only cleared until then had no key, whatever came later; the others are read as they are now.
        fresh = () if stamps.fresh is None else stamps.fresh.pages
        if self._names([fresh, *earlier[1:]]) & self._names(later):
            yield False
            return
        for events, part in zip(lists, earlier, strict=True):
            events.clear()
            events.extend(part)
        try:
            yield True
        finally:
            for events, part in zip(lists, later, strict=True):
                events.extend(part)

    def _names(self, parts: Sequence[Sequence[Any]]) -> set[int]:
        """Return names of all pages that something happened to."""
        cleared, changed, calls = parts
        names = self._port.names
        found = set(names(cleared))
        found.update(names(changed))
        for call in calls:
            found.update(names(call[2]))
        found.discard(self._null)
        return found
