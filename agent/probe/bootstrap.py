"""Chunks of the page table for readers that join, and what running requests know of their chains.

Invariant: a chunk is the table as it is at its place in the ring. Used by the feed on the engine's thread.
"""

from collections.abc import Callable

from ..feedformat import RESYNC_FRACTION, Flag, Kind
from .columns import chunk_columns, parent_columns
from .events import Pending
from .outbox import Outbox
from .port import PoolPort
from .scan import Scan
from .stamps import Stamps

PARENT_ROW_BYTES = 12
ROW_BYTES = 8 + 4 + 5
"""Of a page of a chunk, its key left out."""

Put = Callable[..., None]
"""Publishes a record: kind, counts, parts, and by name its first page and flags."""


class Bootstrap:
    """What is sent beside the deltas.

    Args:
        port: The pool.
        scan: Position and pace.
        stamps: The stamps of the pages.
        pending: Knows the level of the readers.
        out: The way into the ring.
        totals: Counts of what was sent.
    """

    def __init__(
        self, port: PoolPort, scan: Scan, stamps: Stamps, pending: Pending, out: Outbox, totals: dict[str, int]
    ) -> None:
        self._port, self._scan, self._stamps = port, scan, stamps
        self._pending, self._out, self._totals = pending, out, totals
        self._parents_of: list[str] = []

    def restart(self) -> None:
        """Somebody waits: send everything once, from where the scan stands."""
        self._scan.restart()
        self._parents_of = self._port.requests()

    def stop(self) -> None:
        """Nobody waits any more."""
        self._scan.stop()
        self._parents_of.clear()

    @property
    def left(self) -> bool:
        """Whether somebody still waits for something."""
        return self._scan.left > 0 or bool(self._parents_of)

    def send(self, pages: int, put: Put) -> None:
        """Send a chunk of so many pages, and what one running request knows."""
        ring = self._out.ring
        if ring is None:
            return
        room = ring.capacity // RESYNC_FRACTION
        self._chunk(min(pages, room // (ROW_BYTES + self._port.key_bytes)), put)
        if self._parents_of:
            counts, parts = parent_columns(self._port, self._parents_of.pop(), room // PARENT_ROW_BYTES)
            if counts.parents:
                put(Kind.PARENTS, counts, parts)

    def _chunk(self, pages: int, put: Put) -> None:
        start, stop = self._scan.next(pages)
        if start == stop:
            return
        references = self._pending.references
        counts, parts = chunk_columns(self._port, self._stamps.page_stamps, start, stop, references=references)
        put(Kind.CHUNK, counts, parts, base=start, flags=Flag.REFERENCES if references else 0)
        self._totals["chunk_pages"] += stop - start
        self._scan.done(stop - start)
