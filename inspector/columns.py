"""The page table as numpy arrays, without a copy where the buffer allows it.

Invariant: arrays are read-only views of a snapshot's columns; row i is page i. Used by the analyses of this package.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent import columns as raw
from agent.feedformat import STEP_SHIFT
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


def in_transit(pages: PageColumns, columns: Columns) -> Mask:
    """Return the cached pages that are registered but not computed yet: their step has not been processed."""
    return columns.cached & ((columns.stamp >> np.uint64(STEP_SHIFT)) > np.uint64(pages.committed_step))


def stale(snapshot: Snapshot, columns: Columns) -> Mask:
    """Return the cached pages whose content must not be used.

    They were registered under older weights, never computed at all, or computed on top of such a page.
    """
    result = np.zeros(columns.count, np.bool_)
    pages = snapshot.pages
    if pages is None:
        return result
    if pages.never_computed:
        result |= np.isin(columns.stamp, np.fromiter(pages.never_computed, np.uint64, len(pages.never_computed)))
    if pages.tainted:
        result[[page for page in pages.tainted if page < columns.count]] = True
    result |= raw.of_older_weights(pages, None if snapshot.evidence is None else snapshot.evidence.weights)
    return result & columns.cached
