"""The page table as numpy arrays, without a copy where the buffer allows it.

Invariant: arrays are read-only views of a snapshot's columns; row i is page i. Used by the analyses of this package.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent import columns as raw
from agent.model.snapshot import PageColumns, Snapshot

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One page table. Lengths are n pages; tokens are token positions."""

    count: int
    key: NDArray[np.uint8]
    """(n, 16)"""
    group: NDArray[np.uint8]
    tokens: NDArray[np.uint32]
    stamp: U64
    parent: U64 | None
    """First 8 bytes of the parent's key as one number, little-endian; 0 where unknown. None: not read."""
    references: NDArray[np.int32] | None
    free: NDArray[np.uint8] | None

    @property
    def cached(self) -> Mask:
        """Pages that carry a key."""
        return self.tokens > 0

    @property
    def key_head(self) -> U64:
        """First 8 bytes of each key as one number: what parents are matched with."""
        return np.ascontiguousarray(self.key[:, :8]).view("<u8").reshape(-1)


def columns_of(pages: PageColumns) -> Columns:
    """Wrap the raw columns of a page table."""
    return Columns(
        count=pages.count,
        key=raw.keys(pages),
        group=raw.groups(pages),
        tokens=raw.tokens(pages),
        stamp=raw.stamps(pages),
        parent=raw.parents(pages),
        references=raw.references(pages),
        free=raw.free(pages),
    )


def stale(snapshot: Snapshot, columns: Columns) -> Mask:
    """Return the cached pages whose content must not be used, see :func:`agent.columns.stale`."""
    if snapshot.pages is None:
        return np.zeros(columns.count, np.bool_)
    return raw.stale(snapshot.pages, snapshot.weights)
