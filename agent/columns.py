"""The columns of a page table as numpy arrays, without a copy.

Invariant: read-only views over :class:`agent.model.snapshot.PageColumns`; runs outside the engine. Used by whatever
analyses a snapshot.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .feedformat import STEP_SHIFT
from .model.evidence import Weights
from .model.snapshot import PageColumns
from .model.states import KEY_BYTES


def keys(pages: PageColumns) -> NDArray[np.uint8]:
    """Return keys, shape (pages, 16)."""
    return np.frombuffer(pages.key, "u1").reshape(pages.count, KEY_BYTES)


def key_words(pages: PageColumns) -> NDArray[np.uint64]:
    """Return keys as two words each, shape (pages, 2): quicker to compare and to sort."""
    return np.frombuffer(pages.key, "<u8").reshape(pages.count, 2)


def groups(pages: PageColumns) -> NDArray[np.uint8]:
    """Return group ids, shape (pages,); meaningless without a key."""
    return np.frombuffer(pages.group, "u1")


def tokens(pages: PageColumns) -> NDArray[np.uint32]:
    """Return positions, shape (pages,); 0 without a key."""
    return np.frombuffer(pages.tokens, "<u4")


def stamps(pages: PageColumns) -> NDArray[np.uint64]:
    """Return registration stamps, shape (pages,)."""
    return np.frombuffer(pages.stamp, "<u8")


def parents(pages: PageColumns) -> NDArray[np.uint64] | None:
    """Return the first 8 bytes of each parent's key as one word, shape (pages,); compare with ``key_words[:, 0]``."""
    return None if pages.parent is None else np.frombuffer(pages.parent, "<u8")


def references(pages: PageColumns) -> NDArray[np.int32] | None:
    """Return reference counts, shape (pages,); None at content level."""
    return None if pages.references is None else np.frombuffer(pages.references, "<i4")


def free(pages: PageColumns) -> NDArray[np.uint8] | None:
    """Return 1 for pages in the free list, shape (pages,); None where it was not read."""
    return None if pages.free is None else np.frombuffer(pages.free, "u1")


def cached(pages: PageColumns) -> NDArray[np.bool_]:
    """Return which pages carry a key, shape (pages,)."""
    result: NDArray[Any] = tokens(pages) > 0
    return result


def in_transit(pages: PageColumns) -> NDArray[np.bool_]:
    """Return the cached pages that are registered but not computed yet: their step has not been processed."""
    result: NDArray[Any] = cached(pages) & ((stamps(pages) >> np.uint64(STEP_SHIFT)) > pages.committed_step)
    return result


def spoiled(pages: PageColumns) -> NDArray[np.bool_]:
    """Return which pages were never computed or were computed on top of one that was not; meaningless without a key."""
    never = np.fromiter(pages.never_computed, "<u8", len(pages.never_computed))
    found: NDArray[Any] = np.isin(stamps(pages), never)
    found[[page for page in pages.tainted if page < pages.count]] = True
    return found


def ready(pages: PageColumns) -> NDArray[np.bool_]:
    """Return which pages carry a key and were computed: committed, not never-computed and not tainted."""
    result: NDArray[Any] = cached(pages) & ~in_transit(pages) & ~spoiled(pages)
    return result


def stale(pages: PageColumns, weights: Weights | None) -> NDArray[np.bool_]:
    """Return the cached pages whose content must not be used: spoiled, or computed with other weights than now."""
    result: NDArray[Any] = cached(pages) & (spoiled(pages) | of_older_weights(pages, weights))
    return result


def of_older_weights(pages: PageColumns, weights: Weights | None) -> NDArray[np.bool_]:
    """Return which pages were computed with other weights than now, shape (pages,); meaningless without a key."""
    found = np.zeros(pages.count, np.bool_)
    if weights is None:
        return found
    stamp = stamps(pages)
    if (last := weights.last_of_all) is not None:
        found |= stamp < np.uint64(weights.changes[last])
    held = {int(page): mark for page, mark in weights.adapter_pages.items() if 0 <= int(page) < pages.count}
    if held:
        ids = np.fromiter(held, np.int64, len(held))
        found[ids] |= stamp[ids] == np.fromiter(held.values(), np.uint64, len(held))
    return found
