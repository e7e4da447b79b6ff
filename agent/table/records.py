"""Records of the ring as numpy views.

Invariant: decoding checks every length against the record; what does not fit is :class:`GarbledError`. Used by
``agent.table.reader`` only.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import feedformat as wire
from ..feedformat import Counts, Flag, Kind, Layout

U8 = NDArray[np.uint8]


class GarbledError(ValueError):
    """These bytes are not a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Header of a record."""

    crc: int
    length: int
    """Bytes in the ring, padding included."""
    sequence: int
    epoch: int
    committed: int
    """Last schedule call whose output was processed."""
    base: int
    kind: int
    flags: Flag
    counts: Counts

    @classmethod
    def unpack(cls, raw: bytes) -> "Head":
        """Read a header of :data:`agent.feedformat.RECORD_BYTES` bytes."""
        crc, length, sequence, epoch, committed, base, kind, flags, *counts = wire.RECORD.unpack(raw)
        return cls(
            crc=crc,
            length=length,
            sequence=sequence,
            epoch=epoch,
            committed=committed,
            base=base,
            kind=kind,
            flags=Flag(flags),
            counts=Counts(*counts),
        )


class Record:
    """One record: header and column views over its own copy of the bytes."""

    def __init__(self, head: Head, raw_head: bytes, body: bytes, key_bytes: int) -> None:
        self.head = head
        self._body = body
        self._key_bytes = key_bytes
        self._at: Layout = wire.layout(head.kind, head.counts, key_bytes)
        if self._at.end > len(body):
            raise GarbledError(f"columns of {self._at.end} bytes in a record of {len(body)}")
        if zlib.crc32(memoryview(body)[: self._at.end], zlib.crc32(raw_head[wire.CRC_BYTES :])) != head.crc:
            raise GarbledError("checksum of a record does not fit")

    @property
    def kind(self) -> Kind:
        """What the record is; GarbledError for a kind that this version does not know."""
        try:
            return Kind(self.head.kind)
        except ValueError as error:
            raise GarbledError(f"unknown kind of record {self.head.kind}") from error

    def _column(self, dtype: str, count: int, offset: int) -> NDArray[Any]:
        return np.frombuffer(self._body, dtype, count, offset)

    @property
    def body(self) -> bytes:
        """Body of an AUDIT or DECISION."""
        return self._body[self._at.row_keys : self._at.row_keys + self.head.counts.rows]

    @property
    def never(self) -> list[int]:
        """Stamps of registrations that were never computed."""
        stamps: list[int] = self._column("<u8", self.head.counts.never, self._at.never).tolist()
        return stamps

    @property
    def tainted(self) -> list[tuple[int, int]]:
        """(page, stamp) of pages computed on top of one."""
        count = self.head.counts.tainted
        pages = self._column("<u4", count, self._at.tainted_pages).tolist()
        return list(zip(pages, self._column("<u8", count, self._at.tainted_stamps).tolist(), strict=True))

    @property
    def run_stamps(self) -> NDArray[np.uint64]:
        """Stamp of each run."""
        return self._column("<u8", self.head.counts.runs, self._at.run_stamps)

    @property
    def run_parents(self) -> NDArray[np.uint64]:
        """Parent of each run's first page, its 8 bytes read as one word."""
        return self._column("<u8", self.head.counts.runs, self._at.run_parents)

    @property
    def run_lengths(self) -> NDArray[np.uint32]:
        """Pages of each run."""
        return self._column("<u4", self.head.counts.runs, self._at.run_lengths)

    @property
    def cleared(self) -> NDArray[np.uint32]:
        """Pages that were allocated or evicted."""
        return self._column("<u4", self.head.counts.cleared, self._at.cleared)

    @property
    def reference_pages(self) -> NDArray[np.uint32]:
        """Pages whose references follow."""
        return self._column("<u4", self.head.counts.references, self._at.reference_pages)

    @property
    def reference_counts(self) -> NDArray[np.int32]:
        """Their reference counts."""
        return self._column("<i4", self.head.counts.references, self._at.reference_counts)

    @property
    def reference_free(self) -> U8:
        """1 where they stand in the free list."""
        return self._column("u1", self.head.counts.references, self._at.reference_free)

    @property
    def pages(self) -> NDArray[np.uint32]:
        """Pages of the rows."""
        return self._column("<u4", self.head.counts.rows, self._at.row_pages)

    @property
    def stamps(self) -> NDArray[np.uint64]:
        """Stamps of a chunk's pages."""
        return self._column("<u8", self.head.counts.rows, self._at.row_stamps)

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """Positions of the rows, 0 without a key."""
        return self._column("<u4", self.head.counts.rows, self._at.row_tokens)

    @property
    def keys(self) -> U8:
        """Keys of the rows, shape (rows, key_bytes)."""
        count = self.head.counts.rows
        return self._column("u1", count * self._key_bytes, self._at.row_keys).reshape(count, self._key_bytes)

    @property
    def extra(self) -> list[tuple[int, bytes]]:
        """Secondary keys: (page, 16 bytes of hash + 4 bytes of group + 4 bytes of tokens)."""
        width = wire.EXTRA_HEAD.size + self._key_bytes
        found = []
        for number in range(self.head.counts.extra):
            at = self._at.extra + number * width
            page, tokens = wire.EXTRA_HEAD.unpack_from(self._body, at)
            key = self._body[at + wire.EXTRA_HEAD.size : at + width]
            found.append((page, key[:16] + key[-4:] + tokens.to_bytes(4, "little")))
        return found

    @property
    def parent_pages(self) -> NDArray[np.uint32]:
        """Pages of a PARENTS record."""
        return self._column("<u4", self.head.counts.parents, self._at.parent_pages)

    @property
    def parents(self) -> NDArray[np.uint64]:
        """Their parents."""
        return self._column("<u8", self.head.counts.parents, self._at.parents)
