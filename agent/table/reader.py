"""One reader of a ring: follows the records, keeps a table, notices gaps.

Invariant: maps the ring read-only and copies each record before it looks at it; a record that was overwritten
meanwhile, cut off or changed is a gap, never a wrong table. Everything is done in :meth:`RingReader.poll`; no thread,
no waiting.
"""

import mmap
from collections.abc import Callable

from .. import feedformat as wire
from ..errors import ProtocolError
from ..feedformat import Kind
from ..model.snapshot import Level
from .records import GarbledError, Head, Record
from .table import Table

GARBLED_LIMIT = 16
"""Garbled records in a row, each followed by a new start, after which the ring is given up."""

RECORD_LIMIT = 1 << 16


class RingReader:
    """Follow a ring from now on.

    A new reader knows nothing: tell the engine to bootstrap once it exists (:meth:`restart` does, through
    ``on_bootstrap``).

    Args:
        fd: Descriptor of the ring; not kept, the caller closes it.
        level: What has to be known for :attr:`complete`.
        on_bootstrap: Asks the engine for a bootstrap; called after every gap.

    Raises:
        ProtocolError: The file is not a ring, or of another version.
    """

    def __init__(
        self, fd: int, *, level: Level = Level.CONTENT, on_bootstrap: Callable[[], object] | None = None
    ) -> None:
        self.level = level
        self._on_bootstrap = on_bootstrap
        try:
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ProtocolError("cannot map the feed of this engine", why=str(error)) from error
        self._view = memoryview(self._map)
        if len(self._view) < wire.HEADER_BYTES:
            raise ProtocolError("this is not a feed", why=f"only {len(self._view)} bytes")
        self._header = self._view[: wire.HEADER_BYTES].cast("Q")
        self._data = self._view[wire.HEADER_BYTES :]
        self._capacity = self._header[wire.HEADER_CAPACITY]
        self._key_bytes = self._header[wire.HEADER_KEY_BYTES]
        self._check_header()
        self.instance = self._header[wire.HEADER_INSTANCE]
        self.table = Table(self._header[wire.HEADER_PAGES])
        self.overruns = 0
        """Gaps because this reader was too slow."""
        self.garbled = 0
        """Gaps because a record was damaged."""
        self.resyncs = 0
        """Gaps because the engine changed more at once than the ring takes."""
        self.audits = 0
        """Whole-table checksums that were compared."""
        self.failed_audits = 0
        self._garbled_in_row = 0
        self._position = self._header[wire.HEADER_POSITION]
        self._sequence: int | None = None
        self._joined_at = self._position
        """Look-ups before this place are no news, though records before it may be applied."""

    def _check_header(self) -> None:
        header = self._header
        if header[wire.HEADER_MAGIC] != wire.MAGIC:
            raise ProtocolError("this is not a feed", why="wrong magic number")
        version = header[wire.HEADER_VERSION]
        if version != wire.VERSION:
            raise ProtocolError(
                f"the engine's agent writes version {version} of the feed, this kvctl reads version {wire.VERSION}",
                next_step="install the same kvctl in both environments",
            )
        pages = header[wire.HEADER_PAGES]
        if self._capacity != len(self._data) or not 0 < pages <= 1 << 31 or not 20 <= self._key_bytes <= 256:
            raise ProtocolError("this is not a feed", why="its sizes do not fit")

    # ------------------------------------------------------------------ state

    @property
    def complete(self) -> bool:
        """Whether the table is the engine's, at the level of this reader."""
        return self.table.complete and (self.level is Level.CONTENT or self.table.has_references)

    @property
    def progress(self) -> float:
        """Part of the pool that is known since the last gap, at the level of this reader, 0 .. 1."""
        known = self.table.seen_ratio
        return known if self.level is Level.CONTENT else min(known, self.table.references_ratio)

    @property
    def epoch(self) -> int:
        """Epoch of the table."""
        return self.table.epoch

    @property
    def committed_step(self) -> int:
        """Last schedule call whose output was processed, as of the table."""
        return self.table.committed_step

    @property
    def behind(self) -> int:
        """Bytes that are published and not yet read."""
        return max(0, self._header[wire.HEADER_POSITION] - self._position)

    @property
    def closed(self) -> bool:
        """Whether the writer has finished with this ring; a dead writer cannot say so: watch its socket."""
        return bool(self._header[wire.HEADER_CLOSED])

    @property
    def pages(self) -> int:
        """Pages of the engine's pool, as the ring says."""
        return self.table.pages

    @property
    def place(self) -> tuple[int, int, int]:
        """Which ring, the first byte of it that was not applied, and the number of the last record that was."""
        return self.instance, self._position, self._sequence or 0

    @property
    def gaps(self) -> int:
        """How often the table had to come anew, whatever the cause."""
        return self.overruns + self.garbled + self.resyncs

    @property
    def doubtful(self) -> bool:
        """Whether the table was ever found to differ from the engine's."""
        return bool(self.table.mismatches or self.failed_audits)

    # --------------------------------------------------- tables of other readers

    def reaches(self, position: int) -> bool:
        """Whether everything from a place of the ring on is still there."""
        header = self._header
        return header[wire.HEADER_OLDEST] <= position <= header[wire.HEADER_POSITION] and position % 8 == 0

    def adopt(self, table: Table, position: int, sequence: int) -> None:
        """Go on from the table of another reader of this ring; one that was overwritten meanwhile is a gap.

        Args:
            table: As it was between two records.
            position: First byte after the former.
            sequence: Its number.
        """
        self.table = table
        self._position, self._sequence = position, sequence

    def renew(self) -> None:
        """Begin anew with nothing at all: what was known is not to be trusted."""
        self.table = Table(self.table.pages)
        self.failed_audits = 0
        self.restart()

    # ---------------------------------------------------------------- reading

    def restart(self) -> None:
        """Begin anew at the newest record and ask for a bootstrap."""
        self.table.forget()
        self._position = self._header[wire.HEADER_POSITION]
        self._sequence = None
        if self._on_bootstrap is not None:
            self._on_bootstrap()

    def poll(
        self,
        on_decision: Callable[[bytes], object] | None = None,
        *,
        limit: int = RECORD_LIMIT,
        until_epoch: int | None = None,
    ) -> int:
        """Apply what is in the ring.

        Args:
            on_decision: Called with the body of each DECISION record, when the table is what that look-up saw (check
                :attr:`complete`).
            limit: Records after which to return, so that a busy engine cannot hold the caller.
            until_epoch: Stop before the first record of a later epoch; it stays in the ring.

        Returns:
            Records applied; less than ``limit`` means that the ring is read up to its end, or that there was a gap.

        Raises:
            ProtocolError: The ring holds nothing readable any more.
        """
        done = 0
        while done < limit and self._position < self._header[wire.HEADER_POSITION]:
            before = self._position, self._sequence
            try:
                record = self._next()
                if record is not None and until_epoch is not None and record.head.epoch > until_epoch:
                    self._position, self._sequence = before
                    break
                if record is None:
                    self.overruns += 1
                    self.restart()
                    break
                self._apply(record, on_decision)
            except GarbledError as error:
                self._gap(error)
                break
            self._garbled_in_row = 0
            done += 1
        return done

    def _gap(self, error: GarbledError) -> None:
        self.garbled += 1
        self._garbled_in_row += 1
        if self._garbled_in_row >= GARBLED_LIMIT:
            raise ProtocolError("the feed of this engine cannot be read", why=str(error))
        self.restart()

    def _apply(self, record: Record, on_decision: Callable[[bytes], object] | None) -> None:
        self.table.apply(record)
        if record.head.kind == Kind.RESYNC:
            self.resyncs += 1
        elif record.head.kind == Kind.AUDIT:
            good = self.table.audit(record.body)
            self.audits += good is not None
            self.failed_audits += good is False
        elif record.head.kind == Kind.DECISION and on_decision is not None and self._position > self._joined_at:
            on_decision(record.body)

    def _next(self) -> Record | None:
        """Return the record at the read position, None if it was overwritten before it could be copied."""
        position = self._position
        raw = self._copy(position, wire.RECORD_BYTES)
        if self._header[wire.HEADER_OLDEST] > position:
            return None
        head = Head.unpack(raw)
        room = self._header[wire.HEADER_POSITION] - position
        if not wire.RECORD_BYTES <= head.length <= min(room, self._capacity) or head.length % 8:
            raise GarbledError(f"length {head.length} of a record")
        if self._sequence is not None and head.sequence != self._sequence + 1:
            raise GarbledError(f"record {head.sequence} follows {self._sequence}")
        body = self._copy(position + wire.RECORD_BYTES, head.length - wire.RECORD_BYTES)
        if self._header[wire.HEADER_OLDEST] > position:
            return None
        record = Record(head, raw, body, self._key_bytes)
        self._position = position + head.length
        self._sequence = head.sequence
        return record

    def _copy(self, position: int, size: int) -> bytes:
        offset = position % self._capacity
        room = self._capacity - offset
        if size <= room:
            return bytes(self._data[offset : offset + size])
        return bytes(self._data[offset:]) + bytes(self._data[: size - room])

    def close(self) -> None:
        """Unmap the ring; the table stays usable."""
        self._header.release()
        self._data.release()
        self._view.release()
        self._map.close()
