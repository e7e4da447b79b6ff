"""The feed: the page table outside the engine, exact, without stopping it.

Invariant: runs on the engine's thread only, between two calls of the engine or inside its hooks; never waits for a
reader. Hooks append page objects to lists; :meth:`Feed.cut` turns the lists into one record of the ring. The live probe
calls every method through its guard.

Always on, also with nobody reading: one stamp a page and the commit fence. Readers add two levels, *content* and
*references*; the last reader to leave takes the hooks and the ring away again.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .. import feedformat as wire
from ..feedformat import Counts, Flag, Kind
from ..model.snapshot import Level
from .bootstrap import Bootstrap
from .columns import delta_columns
from .decisions import UNKNOWN_TABLE
from .digest import table_checksum
from .events import Pending
from .fence import Fence
from .outbox import Held, Outbox
from .points import Point, Points
from .port import PoolPort
from .ring import Part, Ring, unsupported_machine
from .scan import Scan
from .stamps import Fresh, Stamps

RING_BYTES = 16 << 20


class FeedOffError(Exception):
    """The feed cannot serve this engine; the message is the reason."""


class Feed:
    """One pool's feed.

    Args:
        pool_port: The engine's pool.
        ring_bytes: Size of the ring that readers share.
        clock: Thread CPU in nanoseconds, for the budget of the bootstrap.
        on_off: Told the reason when the feed turns itself off.
    """

    def __init__(
        self,
        pool_port: PoolPort,
        *,
        ring_bytes: int = RING_BYTES,
        clock: Callable[[], int] = time.thread_time_ns,
        on_off: Callable[[str], object] | None = None,
    ) -> None:
        self._port = pool_port
        self._ring_bytes = ring_bytes
        self._on_off = on_off
        self.on_weights_change: Callable[[Collection[str]], object] | None = None
        """Told of every change of the weights, after it was noted, and which running requests are of the old ones."""
        self.reason: str | None = None
        """Why the feed is off; None while it works."""
        self.epoch = 0
        self.stamps = Stamps(pool_port)
        self.fence = Fence(pool_port, self.stamps)
        self._pending = Pending()
        self._points = Points(pool_port, self._pending, self.stamps)
        self._scan = Scan(pool_port.pages, clock)
        self._fresh = Fresh()
        self._out = Outbox(self.fence)
        self._readers = {Level.CONTENT: 0, Level.REFERENCES: 0}
        self._counts = {"deltas": 0, "cleared": 0, "references": 0, "rows": 0, "chunk_pages": 0, "resyncs": 0}
        self._bootstrap = Bootstrap(pool_port, self._scan, self.stamps, self._pending, self._out, self._counts)
        self._installed = False

    # ------------------------------------------------------------- installing

    def install(self) -> None:
        """Put in the always-on hooks, or turn off with the reason why this pool cannot be followed."""
        reason = self._port.refuse()
        if reason is not None:
            self.turn_off(reason)
            return
        self._port.install(self.stamps.log.append, self._hook_failed)
        self._installed = True

    def uninstall(self) -> None:
        """Take out every hook, close the ring, restore what was there before."""
        self._port.uninstall()
        self._installed = False
        self._close_ring()
        self._readers = dict.fromkeys(self._readers, 0)
        self.stamps.log.clear()
        self.stamps.folded.clear()

    def turn_off(self, reason: str) -> None:
        """Remove the hooks and keep the reason; nothing of the feed works afterwards."""
        if self.reason is None:
            self.reason = reason
            self.uninstall()
            if self._on_off is not None:
                self._on_off(reason)

    def _hook_failed(self, where: str, error: BaseException) -> None:
        self.turn_off(f"hook {where} failed: {type(error).__name__}: {error}")

    # ---------------------------------------------------------------- readers

    def join(self, level: Level) -> None:
        """Count a reader in; the first one makes the ring and puts in the hooks of its level.

        Raises:
            FeedOffError: The feed is off, or this machine cannot publish a ring.
            OSError: No memory for the ring.
        """
        reason = self.reason or (None if self._installed else "the feed is not installed") or unsupported_machine()
        if reason is not None:
            raise FeedOffError(reason)
        if self._out.ring is None:
            ring = Ring(self._ring_bytes, pages=self._port.pages, key_bytes=self._port.key_bytes)
            self._out.open(ring, self.epoch)
            self.stamps.follow(self._fresh)
        self._readers[level] += 1
        self._apply_level()

    def leave(self, level: Level) -> None:
        """Count a reader out; the last one takes hooks and ring away."""
        self._readers[level] = max(0, self._readers[level] - 1)
        if any(self._readers.values()):
            self._apply_level()
        elif self._out.ring is not None:
            self._port.unfollow()
            self._close_ring()

    def _apply_level(self) -> None:
        references = self._readers[Level.REFERENCES] > 0
        if references != self._pending.references or not self._pending.followed:
            self._pending.references = references
            self._pending.followed = True
            self._port.follow(self._pending.events(), references=references)

    def _close_ring(self) -> None:
        self.stamps.follow(None)
        self._fresh.clear()
        self._pending.stop()
        self._bootstrap.stop()
        self._out.close()

    def request_bootstrap(self) -> None:
        """Send the whole table once, from where the scan stands; one scan serves everybody who waits."""
        if self._out.ring is None:
            return
        self._out.whole_fence = True
        self._bootstrap.restart()

    # ------------------------------------------------------------------- cuts

    def cut(self) -> int:
        """Publish what changed since the last cut.

        Returns:
            The epoch of the table as it is now. A cheap no-op with nobody joined.
        """
        epoch = self.capture()
        self._out.flush()
        return epoch

    def capture(self) -> int:
        """Like :meth:`cut`, on the critical path: what changed is read now and published later, by :meth:`cut_at`."""
        ring = self._out.ring
        if ring is None:
            return self.epoch
        self.stamps.fold()
        pending, fresh = self._pending, self._fresh
        if pending.was_reset:
            pending.was_reset = False
            self.epoch += 1
            self.fence.reset()
            self._hold(Kind.RESET, Counts(), [])
        if not (pending or fresh.pages or self._out.has_news(self.stamps.committed)):
            return self.epoch
        self.epoch += 1
        if self.stamps.lost or pending.overflow or self._out.lost or self._too_large():
            self._resync()
            return self.epoch
        counts, parts = delta_columns(self._port, pending, fresh)
        self._hold(Kind.DELTA, counts, parts, flags=Flag.REFERENCES if pending.references else 0)
        totals = self._counts
        totals["deltas"] += 1
        totals["cleared"] += counts.cleared
        totals["references"] += counts.references
        totals["rows"] += counts.rows
        pending.clear()
        fresh.clear()
        return self.epoch

    def point(self) -> Point:
        """Note where a look-up stands; :meth:`cut_at` publishes the table that it sees, in the shadow of the batch.

        References cannot be told later: at that level everything is read now.
        """
        if self._pending.references:
            return Point(0, 0, 0, 0, self.stamps.mark, self.capture())
        return self._points.take()

    def cut_at(self, point: Point) -> int:
        """Publish what had changed at this point, and no more: what comes into the ring next refers to that table.

        Returns:
            Its epoch; :data:`UNKNOWN_TABLE` if it is not known any more.
        """
        if point.epoch is not None:
            self._out.flush(point.epoch)
            return point.epoch
        with self._points.at(point) as known:
            return self.cut() if known else UNKNOWN_TABLE

    @property
    def published(self) -> int:
        """Epoch of the table that readers have at the end of the ring; -1: none, a record was lost."""
        return -1 if self._out.lost else self._out.epoch

    def _too_large(self) -> bool:
        size = self._pending.bytes() + len(self._fresh.pages) * (8 + self._port.key_bytes) + 20 * len(self._fresh.runs)
        return not self._out.fits(size)

    def _resync(self) -> None:
        self._pending.clear()
        self._fresh.clear()
        self.stamps.lost = False
        self._counts["resyncs"] += 1
        self._hold(Kind.RESYNC, Counts(), [])
        self.request_bootstrap()

    def put_decision(self, body: bytes) -> None:
        """Publish a look-up, without a cut: a reader's table at this record is what the look-up saw."""
        if self._out.fits(len(body)):
            counts = Counts(rows=len(body))
            self._out.put(Held(Kind.DECISION, counts, [body], self.published, self._out.committed, 0, 0))

    def shadow(self) -> None:
        """Once a step, when the batch has been dispatched: fold stamps, cut, send a chunk within the budget."""
        if self.stamps.log:
            self.stamps.fold()
        if self._out.ring is None:
            return
        scan = self._scan
        begin = scan.clock() if scan.left else 0  # a call of the kernel
        self.cut()
        pages = scan.pages_in_step(begin) if scan.left else scan.audit_pages()
        if pages or self._bootstrap.left:
            self._bootstrap.send(pages, self._put)

    def idle(self) -> bool:
        """At a safe point of an idle engine: cut, and a larger chunk; True while more work waits."""
        self.stamps.fold()
        if self._out.ring is None:
            return False
        self.cut()
        self._bootstrap.send(self._scan.pages_idle(), self._put)
        return self._bootstrap.left

    def _hold(self, kind: Kind, counts: Counts, parts: list[Part], *, base: int = 0, flags: int = 0) -> None:
        record = Held(kind, counts, parts, self.epoch, self.stamps.committed, base, int(flags))
        self._out.hold(record)

    def _put(self, kind: Kind, counts: Counts, parts: list[Part], *, base: int = 0, flags: int = 0) -> None:
        self._hold(kind, counts, parts, base=base, flags=flags)
        self._out.flush()

    # ------------------------------------------------------------------ fence

    def before_schedule(self, step: int) -> None:
        """Schedule call ``step`` begins; steps count from 1."""
        self.stamps.begin_step(step)

    def after_schedule(self, step: int, scheduled_ids: Collection[str]) -> None:
        """Schedule call ``step`` ended and really scheduled these requests (a mapping or set is cheapest)."""
        del step
        if self.fence.scheduled(scheduled_ids) and self._out.ring is None:
            self.fence.forget_news()

    def dispatched(self, step: int, scheduled_ids: Collection[str]) -> None:
        """``after_schedule`` and ``shadow`` of ``step`` and ``before_schedule`` of the next one, in fewer frames."""
        self.after_schedule(step, scheduled_ids)
        if self._out.ring is not None:
            self.shadow()
        self.stamps.begin_step(step + 1)

    def before_update(self, step: int) -> None:
        """The engine begins to process the output of schedule call ``step``."""
        self.stamps.begin_update(step)

    def after_update(self, step: int) -> None:
        """The output of schedule call ``step`` was processed: its pages are committed."""
        self.stamps.end_update(step)
        if self.stamps.folded:
            self.fence.processed()
            if self._out.ring is None:
                self.fence.forget_news()

    def updated(self, step: int) -> None:
        """Like ``before_update`` and ``after_update`` at once, where the log was empty when the update began."""
        self.stamps.enter_update(step)
        self.after_update(step)

    def note_weights_change(self, step: int) -> None:
        """Pages computed by calls after ``step`` belong to another weights epoch."""
        self.stamps.note_weights_change(step)
        running = self._port.requests()
        self.fence.note_weights_change(self.stamps.weights[-1], running)
        if self.on_weights_change is not None:
            self.on_weights_change(running)

    def note_adapter_change(self, pages: Mapping[int, int], requests: Collection[str]) -> None:
        """One adapter has other bytes: its ``pages`` (with their stamps) and ``requests`` are of the old ones."""
        self.fence.note_adapter_change(pages, requests)
        if self.on_weights_change is not None:
            self.on_weights_change(requests)

    def adapter_pages(self) -> dict[int, int]:
        """Return pages computed with older bytes of one adapter, each with the stamp for which this holds."""
        return dict(self.fence.outdated)

    def stale_pages(self, start: int, stop: int) -> list[int]:
        """Return the pages ``start .. stop`` that carry a key and belong to other weights, or build on such."""
        self.stamps.fold()
        return self.fence.stale_pages(start, stop)

    def never_computed(self) -> frozenset[int]:
        """Return the stamps of registrations whose pages no scheduler output ever covered."""
        return frozenset(self.fence.never)

    def tainted(self) -> dict[int, int]:
        """Return pages computed on top of a never-computed one, each with the stamp for which this holds."""
        return dict(self.fence.tainted)

    # ------------------------------------------------------------------ state

    def audit(self) -> None:
        """Publish the checksum of the whole table as the engine has it now.

        Reads every page at once: for tests and small pools, or an engine that idles.
        """
        if self._out.ring is None:
            return
        self.cut()
        references = self._pending.references
        crc = table_checksum(self._port, self.stamps.page_stamps, references=references)
        body = wire.AUDIT.pack(crc, int(references), self._port.pages)
        self._put(Kind.AUDIT, Counts(rows=len(body)), [body], flags=Flag.REFERENCES if references else 0)

    @property
    def ring_fd(self) -> int | None:
        """Descriptor of the ring for ``socket.send_fds``; None while nobody is joined."""
        return None if self._out.ring is None else self._out.ring.fd

    @property
    def pages(self) -> int:
        """Pages of the pool, the null page included."""
        return self._port.pages

    @property
    def committed_step(self) -> int:
        """Last schedule call whose output was processed."""
        return self.stamps.committed

    @property
    def weights_changes(self) -> tuple[int, ...]:
        """Stamps from which on pages were computed with other weights than before, oldest first."""
        return tuple(self.stamps.weights)

    def stamp_of(self, page: int) -> int:
        """Return the stamp of a page, its generation; meaningless without a key."""
        self.stamps.fold()
        return self.stamps.page_stamps[page]

    def status(self) -> dict[str, Any]:
        """Describe the feed for ``doctor``."""
        ring = self._out.ring
        return {
            "on": self.reason is None and self._installed,
            "reason": self.reason,
            "epoch": self.epoch,
            "committed_step": self.stamps.committed,
            "readers": {level.value: count for level, count in self._readers.items()},
            "ring_bytes": None if ring is None else ring.capacity,
            "ring_position": None if ring is None else ring.position,
            "records": None if ring is None else ring.sequence,
            "bootstrap_pages_left": self._scan.left,
            "pages": self._port.pages,
            "never_computed": len(self.fence.never),
            "tainted": len(self.fence.tainted),
            "weights_changes": list(self.stamps.weights),
            **self._counts,
        }
