"""The cyclic scan that serves all readers which wait for a whole table.

Invariant: while somebody waits, every step gets at least :data:`FLOOR_PAGES`, whatever else it cost; else a reader of a
busy engine would starve. Used by the feed on the engine's thread.
"""

from collections.abc import Callable

FLOOR_PAGES = 768
"""Pages a step while somebody waits: 1M pages in 14 s at 10 ms a step. What the budget leaves comes on top."""

BUDGET_NS = 150_000
"""Thread CPU a step up to which a chunk may grow beyond the floor."""

CEILING_PAGES = 4096
IDLE_PAGES = 16384
AUDIT_PAGES = 256
AUDIT_STEPS = 8
"""While nobody waits, so many pages are sent again every so many steps; a reader compares them with its table."""


class Scan:
    """Position and pace of the scan over a pool of ``pages``."""

    def __init__(self, pages: int, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.left = 0
        """Pages that somebody still waits for."""
        self._pages = pages
        self._cursor = 0
        self._ns_per_page = 150.0
        self._begin = 0
        self._steps = 0

    def restart(self) -> None:
        """Somebody waits: from here once around."""
        self.left = self._pages

    def stop(self) -> None:
        """Nobody waits any more."""
        self.left = 0

    def audit_pages(self) -> int:
        """Return how many pages this step sends again, as nobody waits."""
        self._steps = (self._steps + 1) % AUDIT_STEPS
        return 0 if self._steps else AUDIT_PAGES

    def pages_in_step(self, begin: int) -> int:
        """Return how many pages this step may send to who waits; it began its work at ``begin`` of the clock."""
        self._begin = self.clock()
        room = BUDGET_NS - (self._begin - begin)
        return max(FLOOR_PAGES, min(int(room / self._ns_per_page), CEILING_PAGES))

    def pages_idle(self) -> int:
        """Return how many pages a safe point of an idle engine sends; nothing is audited then."""
        self._begin = self.clock()
        return IDLE_PAGES if self.left else 0

    def next(self, pages: int) -> tuple[int, int]:
        """Return the next ``start, stop``, at most ``pages`` of them."""
        if self.left:
            pages = min(pages, self.left)
        return self._cursor, min(self._cursor + pages, self._pages)

    def done(self, pages: int) -> None:
        """Count ``pages`` as sent and learn from the time they took, where somebody waited."""
        if self.left:
            spent = self.clock() - self._begin
            self._ns_per_page += 0.1 * (max(spent, 1) / max(pages, 1) - self._ns_per_page)
        self._cursor = (self._cursor + pages) % self._pages
        self.left = max(0, self.left - pages)
