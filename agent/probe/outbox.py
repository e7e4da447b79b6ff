"""Records on their way into the ring: what is read on the critical path is published in the shadow of the batch.

Invariant: records are published in the order in which they were made, and a held record has no reference to anything
of the engine. What the commit fence has to tell rides with the next record that is published. Engine's thread.
"""

from typing import NamedTuple

from .. import feedformat as wire
from ..feedformat import Counts, Flag, Kind
from .columns import fence_columns
from .fence import Fence
from .ring import Part, Ring


class Held(NamedTuple):
    """One record that is not published yet."""

    kind: Kind
    counts: Counts
    parts: list[Part]
    epoch: int
    committed: int
    base: int
    flags: int


class Outbox:
    """The way into one ring, which is there while somebody is joined.

    Args:
        fence: Whose news ride along.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self.ring: Ring | None = None
        self.whole_fence = False
        """The next record tells all that the fence knows."""
        self.epoch = 0
        """Epoch of the last record that was published."""
        self.committed = 0
        """Last processed step that this record names."""
        self.lost = False
        """A record could not be published: readers have to begin anew, and nothing but a RESYNC goes out."""
        self.told_step = -1
        """Last processed step that a record names, published or held."""
        self._held: list[Held] = []

    def open(self, ring: Ring, epoch: int) -> None:
        """Begin to publish, with a table that readers do not know yet."""
        self.ring, self.epoch, self.whole_fence, self.lost = ring, epoch, True, False

    def close(self) -> None:
        """Nobody is joined any more."""
        self._held.clear()
        ring, self.ring = self.ring, None
        if ring is not None:
            ring.close()

    def has_news(self, committed: int) -> bool:
        """Return whether readers would see pages as not ready, or as good, that are no longer so."""
        fence = self._fence
        if self.told_step != committed or self.whole_fence or self.lost:
            return True
        return bool(fence.new_never or fence.new_tainted or fence.shrunk)

    def hold(self, record: Held) -> None:
        """Take a record; it is published with the next :meth:`flush`."""
        if self.ring is not None:
            self.told_step = record.committed
            self._held.append(record)

    def flush(self, epoch: int | None = None) -> None:
        """Publish what is held, as far as ``epoch``; None: everything."""
        held = self._held
        while held and (epoch is None or held[0].epoch <= epoch):
            self.put(held.pop(0))

    def put(self, record: Held) -> None:
        """Publish a record now, before those that are held.

        Raises:
            ValueError: It is larger than the ring. Like any other error here, it makes readers begin anew.
        """
        ring = self.ring
        if ring is None or (self.lost and record.kind is not Kind.RESYNC):
            return
        self.lost = True
        counts, parts, flags = record.counts, record.parts, record.flags
        fence = self._fence
        full = self.whole_fence or fence.shrunk
        # What the fence knows may be much; the record that makes readers begin anew must always fit.
        if record.kind is not Kind.RESYNC and (full or fence.new_never or fence.new_tainted):
            self.whole_fence = True
            counts, head = fence_columns(fence, counts, full=full)
            parts = head + parts
            flags |= Flag.FENCE_FULL if full else 0
        ring.put(
            record.kind,
            counts,
            parts,
            epoch=record.epoch,
            committed=record.committed,
            base=record.base,
            flags=int(flags),
        )
        self.epoch, self.committed, self.lost = record.epoch, record.committed, False
        self.whole_fence = record.kind is Kind.RESYNC or (self.whole_fence and parts is record.parts)

    def fits(self, size: int) -> bool:
        """Return whether a record of ``size`` bytes may go into the ring: it must leave room for others."""
        return self.ring is not None and size <= self.ring.capacity // wire.RESYNC_FRACTION
