"""Columns of the feed's records.

Invariant: pages are read as they are now, so a page that was seen twice gives two equal rows. Order and widths are
those of :func:`agent.feedformat.layout`. Used by the feed on the engine's thread.
"""

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

from ..feedformat import EXTRA_HEAD, Counts
from .events import Pending
from .fence import Fence
from .port import PoolPort, Words
from .ring import Part
from .stamps import Fresh


def delta_columns(port: PoolPort, pending: Pending, fresh: Fresh) -> tuple[Counts, list[Part]]:
    """Return the columns of what changed since the last cut. Null pages are filtered here, not in the hooks."""
    null = port.null_page
    cleared = array("I", port.ids(pending.cleared))
    parts: list[Part] = [
        array("Q", [stamp for stamp, _, _ in fresh.runs]),
        b"".join([parent for _, parent, _ in fresh.runs]),
        array("I", [length for _, _, length in fresh.runs]),
        cleared,
    ]
    references = 0
    if pending.references:
        touched = list(chain(pending.cleared, pending.touched))
        ids = port.ids(touched)
        if null in ids:
            touched = [page for page, number in zip(touched, ids, strict=True) if number != null]
            ids = [number for number in ids if number != null]
        references = len(ids)
        parts += (array("I", ids), port.references(touched), port.free(touched))
    pages = [*fresh.pages, *pending.changed]
    rows = port.ids(pages)
    parts += (array("I", rows), port.tokens(pages), port.keys(pages))
    extra = _extra(port, rows, parts)
    counts = Counts(runs=len(fresh.runs), cleared=len(cleared), references=references, rows=len(rows), extra=extra)
    return counts, parts


def chunk_columns(
    port: PoolPort, stamps: Words, start: int, stop: int, *, references: bool
) -> tuple[Counts, list[Part]]:
    """Return the columns of the pages ``start .. stop`` in full."""
    pages = port.take(start, stop)
    parts: list[Part] = []
    if references:
        parts += reference_columns(port, pages, start)
    parts += (stamps[start:stop], port.tokens(pages), port.keys(pages))
    extra = _extra(port, range(start, stop), parts)
    return Counts(references=len(pages) if references else 0, rows=len(pages), extra=extra), parts


def reference_columns(port: PoolPort, pages: list[Any], start: int) -> tuple[Words, bytes]:
    """Return counts and free list of consecutive pages from ``start`` on; the null page's drift is reported as 0."""
    counts = port.references(pages)
    free = port.free(pages)
    null = port.null_page
    if null is not None and start <= null < start + len(pages):
        counts[null - start] = 0
        free = free[: null - start] + b"\0" + free[null - start + 1 :]
    return counts, free


def parent_columns(port: PoolPort, request: str, limit: int) -> tuple[Counts, list[Part]]:
    """Return the parents of the pages that a running request holds, at most ``limit`` of them."""
    ids: list[int] = []
    parents: list[bytes] = []
    for pages, keys in port.chains(request):
        ids += pages
        parents += keys
        if len(ids) >= limit:
            break
    del ids[limit:], parents[limit:]
    return Counts(parents=len(ids)), [array("I", ids), b"".join(parents)]


def fence_columns(fence: Fence, counts: Counts, *, full: bool) -> tuple[Counts, list[Part]]:
    """Return what readers do not know yet of the commit fence, and forget that it is news."""
    never = list(fence.never) if full else list(fence.new_never)
    tainted = [(stamp, page) for page, stamp in fence.tainted.items()] if full else list(fence.new_tainted)
    fence.forget_news()
    parts: list[Part] = [
        array("Q", never),
        array("Q", [stamp for stamp, _ in tainted]),
        array("I", [page for _, page in tainted]),
    ]
    return counts._replace(never=len(never), tainted=len(tainted)), parts


def _extra(port: PoolPort, ids: Iterable[int] | range, parts: list[Part]) -> int:
    found = port.extra(ids)  # noqa: S610 - no database here
    parts += [EXTRA_HEAD.pack(page, 0) + key for page, key in found]
    return len(found)
