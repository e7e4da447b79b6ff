"""The page table outside the engine: numpy columns that records are applied to.

Invariant: after a record is applied, every page that was *seen* (in a chunk since the last gap) equals the engine's
page at that record. Used by ``agent.table.reader``.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..feedformat import AUDIT, Flag, Kind
from ..model.snapshot import PageColumns
from ..model.states import KEY_BYTES, PageId
from .buffers import Copies
from .presence import Presence
from .records import GarbledError, Record

DIGEST_BLOCK_PAGES = 4096
"""``agent.probe.digest`` defines the canonical form."""

COLUMNS = ("key", "group", "tokens", "stamp", "parent", "references", "free")
GROUP_BYTES = 4
PARENT_BYTES = 8


class Table:
    """Columns of all pages of one pool.

    Args:
        pages: Pages of the pool, the null page included.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.key = np.zeros((pages, 2), "<u8")
        """Shape (pages, 2): 16 bytes of hash."""
        self.group = np.zeros(pages, "u1")
        self.tokens = np.zeros(pages, "<u4")
        self.stamp = np.zeros(pages, "<u8")
        self.parent = np.zeros(pages, "<u8")
        self.references = np.zeros(pages, "<i4")
        self.free = np.zeros(pages, "u1")
        self.extra: dict[int, tuple[bytes, ...]] = {}
        self.never: set[int] = set()
        self.tainted: dict[int, int] = {}
        """Page -> stamp under which it is tainted."""
        self.committed_step = 0
        self.epoch = 0
        self.mismatches = 0
        """Rows of chunks that differed from what deltas had made of them: 0 unless the feed is wrong."""
        self._seen = np.zeros(pages, bool)
        self._seen_references = np.zeros(pages, bool)
        self._seen_count = 0
        self._presence: Presence | None = None
        self._copies = {name: Copies() for name in COLUMNS}

    # ---------------------------------------------------------------- reading

    @property
    def seen_ratio(self) -> float:
        """Part of the pool that is known, 0 .. 1."""
        return self._seen_count / self.pages

    @property
    def references_ratio(self) -> float:
        """Part of the pool whose references are known, 0 .. 1."""
        return float(np.count_nonzero(self._seen_references)) / self.pages

    @property
    def complete(self) -> bool:
        """Whether every page is known."""
        return self._seen_count == self.pages

    @property
    def has_references(self) -> bool:
        """Whether the references of every page are known."""
        return bool(self._seen_references.all())

    def presence(self) -> Presence:
        """Return the index of keys, kept up to date from the first call on."""
        if self._presence is None:
            self._presence = Presence()
            rows = np.flatnonzero(self.tokens)
            self._presence.add_rows(rows.tolist(), self.group[rows].tolist(), self.key[rows].tobytes())
            for page, keys in self.extra.items():
                self._index_extra(page, keys, add=True)
        return self._presence

    def forget_index(self) -> None:
        """Drop the index of keys, which costs about 130 bytes a page; the next :meth:`presence` builds it anew."""
        self._presence = None

    def to_columns(self, *, references: bool = True) -> PageColumns:
        """Copy the table as it is now into immutable columns.

        Args:
            references: With references and free list, where they are known. What came along with another reader's is
                not kept up to date: a reader that does not follow them leaves them out.
        """
        references = references and self.has_references
        copies = self._copies
        return PageColumns(
            count=self.pages,
            key=copies["key"].of(self.key.view("u1").reshape(-1)),
            group=copies["group"].of(self.group),
            tokens=copies["tokens"].of(self.tokens),
            stamp=copies["stamp"].of(self.stamp),
            parent=copies["parent"].of(self.parent.view("u1")),
            references=copies["references"].of(self.references) if references else None,
            free=copies["free"].of(self.free) if references else None,
            extra_keys={PageId(page): keys for page, keys in self.extra.items()},
            never_computed=frozenset(self.never),
            tainted=frozenset(PageId(page) for page, stamp in self.tainted.items() if self._still(page, stamp)),
            committed_step=self.committed_step,
        )

    def _still(self, page: int, stamp: int) -> bool:
        return int(self.stamp[page]) == stamp and int(self.tokens[page]) > 0

    def checksum(self, *, references: bool) -> int:
        """Return the checksum that the engine computes over the same table (``agent.probe.digest``)."""
        crc = 0
        for start in range(0, self.pages, DIGEST_BLOCK_PAGES):
            rows = slice(start, start + DIGEST_BLOCK_PAGES)
            for column in (self.tokens, self.stamp, self.key, self.group):
                crc = zlib.crc32(column[rows].data, crc)
            if references:
                crc = zlib.crc32(self.references[rows].data, crc)
                crc = zlib.crc32(self.free[rows].data, crc)
        for page, key in sorted((page, key) for page, keys in self.extra.items() for key in keys):
            crc = zlib.crc32(page.to_bytes(4, "little") + key[: KEY_BYTES + GROUP_BYTES], crc)
        return crc

    def audit(self, body: bytes) -> bool | None:
        """Compare with the checksum of an AUDIT record; None while the table is not complete enough to tell."""
        crc, references, pages = AUDIT.unpack(body)
        if pages != self.pages or not self.complete or (references and not self.has_references):
            return None
        return bool(self.checksum(references=bool(references)) == crc)

    # --------------------------------------------------------------- applying

    def mark_known(self, *, references: bool) -> None:
        """Every page was filled in from another reader's table: chunks are compared with it from now on."""
        self._seen[:] = True
        self._seen_count = self.pages
        self._seen_references[:] = references

    def forget(self) -> None:
        """There was a gap: nothing is known until the next whole scan."""
        self._seen[:] = False
        self._seen_references[:] = False
        self._seen_count = 0

    def apply(self, record: Record) -> None:
        """Apply one record, in the order of the ring.

        Raises:
            GarbledError: It names pages that the pool does not have, or is of an unknown kind.
        """
        head = record.head
        kind = record.kind
        if kind is Kind.DELTA:
            self._delta(record)
        elif kind is Kind.CHUNK:
            self._chunk(record)
        elif kind is Kind.RESET:
            self._reset()
        elif kind is Kind.RESYNC:
            self.forget()
        elif kind is Kind.PARENTS:
            self._parents(record)
        if Flag.FENCE_FULL in head.flags:
            self.never.clear()
            self.tainted.clear()
        if head.counts.never:
            self.never.update(record.never)
        if head.counts.tainted:
            self.tainted.update(record.tainted)
        self.committed_step = head.committed
        self.epoch = head.epoch

    def _delta(self, record: Record) -> None:
        cleared, pages = record.cleared, record.pages
        self._check(cleared)
        self._check(pages)
        if Flag.REFERENCES in record.head.flags:
            touched = record.reference_pages
            self._check(touched)
            self.references[touched] = record.reference_counts
            self.free[touched] = record.reference_free
        elif self._seen_references.any():
            self._seen_references[:] = False
        lengths = record.run_lengths
        covered = int(lengths.sum())
        if covered > len(pages):
            raise GarbledError("runs longer than the rows")
        if len(cleared):
            self._clear(cleared)
        if len(pages):
            self._rows(record, pages, lengths, covered)

    def _rows(self, record: Record, pages: NDArray[np.uint32], lengths: NDArray[np.uint32], covered: int) -> None:
        tokens = record.tokens
        keys = _key_words(record.keys)
        self._unindex(pages)
        self.tokens[pages] = tokens
        self.key[pages] = keys
        self.group[pages] = record.keys[:, -1]
        if covered:  # rows behind the runs are pages whose other keys changed: their stamps stand
            starts = np.zeros(len(lengths), np.int64)
            np.cumsum(lengths[:-1], out=starts[1:])
            filled = lengths > 0
            parents = np.empty(covered, "<u8")
            parents[1:] = keys[: covered - 1, 0]
            parents[starts[filled]] = record.run_parents[filled]
            self.stamp[pages[:covered]] = np.repeat(record.run_stamps, lengths)
            self.parent[pages[:covered]] = parents
        empty = pages[tokens == 0]
        self.stamp[empty] = 0
        self.parent[empty] = 0
        if self.extra:
            for page in pages.tolist():
                self.extra.pop(page, None)
        self._set_extra(record.extra)
        self._index(pages)

    def _chunk(self, record: Record) -> None:
        start, count = record.head.base, record.head.counts.rows
        rows = slice(start, start + count)
        if start + count > self.pages:
            raise GarbledError(f"pages {start}..{start + count} of a pool of {self.pages}")
        tokens = record.tokens
        stamps = np.where(tokens == 0, np.uint64(0), record.stamps)
        keys = _key_words(record.keys)
        groups = record.keys[:, -1]
        extra: dict[int, tuple[bytes, ...]] = {}
        for page, key in record.extra:
            extra[page] = (*extra.get(page, ()), key)
        same_key = (self.key[rows] == keys).all(axis=1) & (self.group[rows] == groups)
        same = same_key & (self.tokens[rows] == tokens) & (self.stamp[rows] == stamps)
        held = {page: keys_ for page, keys_ in self.extra.items() if start <= page < start + count}
        changed_extra = [
            page for page in held.keys() | extra.keys() if set(held.get(page, ())) != set(extra.get(page, ()))
        ]
        same[[page - start for page in changed_extra]] = False
        self.mismatches += int((~same & self._seen[rows]).sum())
        if not same.all():
            changed = np.flatnonzero(~same) + start
            self._unindex(changed)
            self.tokens[rows] = tokens
            self.stamp[rows] = stamps
            self.key[rows] = keys
            self.group[rows] = groups
            self.parent[rows][~same_key] = 0
            for page in held:
                self.extra.pop(page, None)
            self.extra.update(extra)
            self._index(changed)
        self._chunk_references(record, rows)
        self._seen_count += count - int(self._seen[rows].sum())
        self._seen[rows] = True

    def _chunk_references(self, record: Record, rows: slice) -> None:
        if Flag.REFERENCES not in record.head.flags:
            return
        known = self._seen_references[rows]
        counts, free = record.reference_counts, record.reference_free
        wrong = (self.references[rows] != counts) | (self.free[rows] != free)
        self.mismatches += int((wrong & known).sum())
        self.references[rows] = counts
        self.free[rows] = free
        self._seen_references[rows] = True

    def _parents(self, record: Record) -> None:
        pages = record.parent_pages
        self._check(pages)
        known = (self.tokens[pages] > 0) & (self.parent[pages] == 0)
        self.parent[pages[known]] = record.parents[known]

    def _reset(self) -> None:
        self.tokens[:] = 0
        self.stamp[:] = 0
        self.key[:] = 0
        self.group[:] = 0
        self.parent[:] = 0
        self.extra.clear()
        if self._presence is not None:
            self._presence.clear()

    def _clear(self, pages: NDArray[np.uint32]) -> None:
        held = pages[self.tokens[pages] != 0]
        if not len(held):
            return
        self._unindex(held)
        self.tokens[held] = 0
        self.stamp[held] = 0
        self.key[held] = 0
        self.group[held] = 0
        self.parent[held] = 0
        if self.extra:
            for page in held.tolist():
                self.extra.pop(page, None)

    def _check(self, pages: NDArray[np.uint32]) -> None:
        if len(pages) and int(pages.max()) >= self.pages:
            raise GarbledError(f"page {int(pages.max())} of a pool of {self.pages}")

    # ------------------------------------------------------------------ index

    def _set_extra(self, found: list[tuple[int, bytes]]) -> None:
        for page, key in found:
            if key not in self.extra.get(page, ()):
                self.extra[page] = (*self.extra.get(page, ()), key)

    def _unindex(self, pages: NDArray[Any]) -> None:
        index = self._presence
        if index is None:
            return
        pages = np.unique(pages)
        held = pages[self.tokens[pages] != 0]
        index.discard_rows(held.tolist(), self.group[held].tolist(), self.key[held].tobytes())
        if self.extra:
            for page in pages.tolist():
                self._index_extra(page, self.extra.get(page, ()), add=False)

    def _index(self, pages: NDArray[Any]) -> None:
        index = self._presence
        if index is None:
            return
        pages = np.unique(pages)
        held = pages[self.tokens[pages] != 0]
        index.add_rows(held.tolist(), self.group[held].tolist(), self.key[held].tobytes())
        if self.extra:
            for page in pages.tolist():
                self._index_extra(page, self.extra.get(page, ()), add=True)

    def _index_extra(self, page: int, keys: tuple[bytes, ...], *, add: bool) -> None:
        index = self._presence
        if index is None:
            return
        change = index.add if add else index.discard
        for key in keys:
            change(page, key[KEY_BYTES + GROUP_BYTES - 1], key[:KEY_BYTES])


def _key_words(keys: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the first 16 bytes of each key as two words."""
    return np.ascontiguousarray(keys[:, :KEY_BYTES]).view("<u8").reshape(-1, 2)
