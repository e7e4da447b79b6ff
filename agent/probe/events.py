"""What the hooks of a followed pool saw since the last cut.

Invariant: bounded lists of page objects; the hooks only extend them. Used by the feed on the engine's thread.
"""

from collections import deque
from typing import Any

from .port import Events

EVENT_LIMIT = 1 << 20
"""Pages a list may hold when nobody cuts; then changes are lost and readers are resynchronised."""


class Pending:
    """Events since the last cut."""

    def __init__(self) -> None:
        self.cleared: deque[Any] = deque(maxlen=EVENT_LIMIT)
        self.changed: deque[Any] = deque(maxlen=EVENT_LIMIT)
        self.touched: deque[Any] = deque(maxlen=EVENT_LIMIT)
        self.taken = [0, 0]
        """Pages of the first two lists that were taken by cuts, since the start."""
        self.was_reset = False
        self.resets = 0
        self.references = False
        """The level that the hooks are at."""
        self.followed = False

    def events(self) -> Events:
        """Return the targets that the hooks write to."""
        return Events(self.cleared.extend, self.changed.extend, self.touched.extend, self._note_reset)

    def _note_reset(self) -> None:
        self.was_reset = True
        self.resets += 1

    def __bool__(self) -> bool:
        return bool(self.cleared or self.changed or self.touched)

    @property
    def overflow(self) -> bool:
        """Whether a list was full, so that events may be lost."""
        return max(len(self.cleared), len(self.changed), len(self.touched)) >= EVENT_LIMIT

    def bytes(self) -> int:
        """Return what the events will take in a record, roughly."""
        references = 9 * (len(self.cleared) + len(self.touched)) if self.references else 0
        return 4 * len(self.cleared) + 44 * len(self.changed) + references

    def clear(self) -> None:
        """Forget the events."""
        self.taken[0] += len(self.cleared)
        self.taken[1] += len(self.changed)
        self.cleared.clear()
        self.changed.clear()
        self.touched.clear()

    def stop(self) -> None:
        """Nobody follows any more."""
        self.clear()
        self.was_reset = False
        self.references = False
        self.followed = False
