"""The feed's wire format: layout of the shared ring and of its records.

Invariant: standard library only, no I/O; both ends use the same numbers. Written by ``agent.probe``, read by
``agent.table``.

The ring is one memory file::

    0     header page, u64 words (see the HEADER_* indices)
    4096  capacity bytes of records; byte ``p`` of the stream lies at ``p % capacity``

Positions count bytes since the ring was made and never wrap. Everything is little-endian. A record is :data:`RECORD`,
then its columns in the order of :func:`layout`, then zeros up to a multiple of 8. Rows describe pages as they are when
the record is cut, so of two rows for one page both are right.
"""

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

VERSION = 1
MAGIC = 0x31_44_45_45_46_43_56_4B
"""``KVCFEED1`` read as a little-endian word."""

HEADER_BYTES = 4096
HEADER_MAGIC = 0
HEADER_VERSION = 1
HEADER_CAPACITY = 2
"""Bytes of records that the ring holds."""
HEADER_PAGES = 3
"""Pages of the pool, the null page included."""
HEADER_KEY_BYTES = 4
"""Bytes of a key on the wire: the engine's chained hash and 4 bytes of group id, big-endian."""
HEADER_INSTANCE = 5
"""Random word: another ring of the same engine has another one."""
HEADER_POSITION = 8
"""First byte that is not yet published."""
HEADER_OLDEST = 9
"""First byte that is still intact; raised before the bytes below it are overwritten."""
HEADER_CLOSED = 10
"""1 once the writer has finished with this ring."""

GROUP_BYTES = 4
CRC_SLICE = 5000
"""zlib drops the interpreter lock for longer buffers; in an engine that costs far more than the checksum."""

RECORD = struct.Struct("<IIQQQIHHIIIIIIII")
"""crc, length, sequence, epoch, committed step, base, kind, flags, then the eight counts of :class:`Counts`."""
RECORD_BYTES = RECORD.size
CRC_BYTES = 4

RESYNC_FRACTION = 4
"""A delta larger than this part of the ring becomes one RESYNC record."""


class Kind(IntEnum):
    """What a record is."""

    DELTA = 1
    """What changed since the last delta; raises the epoch."""
    CHUNK = 2
    """The pages ``base .. base + rows`` in full: bootstrap, or a slow audit."""
    RESET = 3
    """The engine emptied its cache: no page has a key any more."""
    RESYNC = 4
    """Changes were lost: the table is wrong until the next bootstrap is complete."""
    AUDIT = 5
    """Body: :data:`AUDIT`, the checksum of the whole table at this point of the ring."""
    DECISION = 6
    """Body: a look-up (``agent.decisionformat``); the table is now what that look-up saw."""
    PARENTS = 7
    """Parents of pages that running requests hold, for readers that joined after their registration."""


class Flag(IntFlag):
    """Properties of a record."""

    REFERENCES = 1
    """It carries references (counts and free list)."""
    FENCE_FULL = 2
    """Its never-computed stamps and tainted pages are the whole list, not an addition."""


AUDIT = struct.Struct("<IIQ")
"""Checksum, 1 where references are part of it, pages."""

EXTRA_HEAD = struct.Struct("<II")
"""Head of a secondary key: page, tokens (0: not known); the key follows."""


class Counts(NamedTuple):
    """How many entries the columns of a record have. For AUDIT and DECISION ``rows`` is the length of the body."""

    never: int = 0
    """Stamps of registrations that were never computed, since the last record."""
    tainted: int = 0
    """Pages computed on top of one, since the last record."""
    runs: int = 0
    """Registrations: consecutive rows with one stamp whose pages follow each other in one chain."""
    cleared: int = 0
    """Pages that were allocated: no key, unless a row says otherwise."""
    references: int = 0
    rows: int = 0
    """Pages with content."""
    extra: int = 0
    """Secondary keys of the rows' pages."""
    parents: int = 0


class Layout(NamedTuple):
    """Byte offsets of the columns behind the record header; the names say type and length."""

    never: int
    """u64 x never"""
    tainted_stamps: int
    """u64 x tainted"""
    tainted_pages: int
    """u32 x tainted"""
    run_stamps: int
    """u64 x runs"""
    run_parents: int
    """8 bytes x runs: parent of the run's first page, zeros where it has none or it is not known"""
    run_lengths: int
    """u32 x runs"""
    cleared: int
    """u32 x cleared"""
    reference_pages: int
    """u32 x references; not in a CHUNK"""
    reference_counts: int
    """i32 x references"""
    reference_free: int
    """u8 x references: 1 in the free list"""
    row_pages: int
    """u32 x rows; not in a CHUNK"""
    row_stamps: int
    """u64 x rows; only in a CHUNK, meaningless for a page without a key"""
    row_tokens: int
    """u32 x rows: position, 0 without a key"""
    row_keys: int
    """key_bytes x rows"""
    extra: int
    """(8 + key_bytes) x extra"""
    parent_pages: int
    """u32 x parents"""
    parents: int
    """8 bytes x parents"""
    end: int


def layout(kind: int, counts: Counts, key_bytes: int) -> Layout:
    """Return where each column of a record begins, from the end of the record header.

    Args:
        kind: A :class:`Kind`; other kinds than DELTA, CHUNK and PARENTS have their body in place of the rows.
        counts: Lengths of the columns.
        key_bytes: From the ring's header.
    """
    chunk = kind == Kind.CHUNK
    body = kind in (Kind.AUDIT, Kind.DECISION)
    sizes = (
        8 * counts.never,
        8 * counts.tainted,
        4 * counts.tainted,
        8 * counts.runs,
        8 * counts.runs,
        4 * counts.runs,
        4 * counts.cleared,
        0 if chunk else 4 * counts.references,
        4 * counts.references,
        counts.references,
        0 if chunk or body else 4 * counts.rows,
        8 * counts.rows if chunk else 0,
        0 if body else 4 * counts.rows,
        counts.rows if body else key_bytes * counts.rows,
        (EXTRA_HEAD.size + key_bytes) * counts.extra,
        4 * counts.parents,
        8 * counts.parents,
    )
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return Layout(*offsets)


def padded(length: int) -> int:
    """Return the length of a record in the ring: a multiple of 8."""
    return (length + 7) & ~7


STEP_SHIFT = 20
"""A stamp is ``step << STEP_SHIFT | call``: the schedule call that computes the page, and the registration in it."""
LATE_CALLS = 1 << 18
"""Sub-range of pages that were computed by the step before their registration."""
UPDATE_CALLS = 2 << 18
"""Sub-range of pages registered while that step's output was processed."""
LOADED_CALLS = 3 << 18
"""Sub-range of pages that a finished load from another tier brought: committed at once."""
CALL_MASK = LATE_CALLS - 1


def step_of(stamp: int) -> int:
    """Return the schedule call that computes the pages of a registration."""
    return stamp >> STEP_SHIFT
