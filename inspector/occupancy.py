"""Where the pages are: by group, by state, by what they are doing.

Invariant: vectorised, one pass; a page stands in exactly one line of each breakdown; what the level of the snapshot
does not tell is None. Used by the views and the dashboard.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agent.columns import in_transit
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, State

from .columns import columns_of, stale
from .prefixes import Prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPages:
    """Pages of one group."""

    cached: int
    """Pages that carry a key of this group."""
    held: int | None
    """Cached pages that a request holds; None at content level."""
    ready: int
    in_transit: int
    stale: int
    stranded: int | None
    """None where the rules do not cover the engine, or where some pages cannot be placed in a chain."""
    stranded_at_least: int
    """Pages that are certainly stranded."""
    unplaced: int | None
    """Pages of which nobody can tell whether they are; None where that goes for all."""
    longest: int
    """Largest token position."""
    page_bytes: int | None

    @property
    def bytes(self) -> int | None:
        """Memory of the cached pages; None where the size of a page was not read."""
        return None if self.page_bytes is None else self.cached * self.page_bytes

    @property
    def stranded_bytes(self) -> int | None:
        """Memory of the stranded pages."""
        return None if self.page_bytes is None or self.stranded is None else self.stranded * self.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Pages of the whole pool."""

    pages: int
    """Without the null page."""
    cached: int
    cached_held: int | None
    """Cached and held by a request: cannot be evicted now."""
    cached_idle: int | None
    """Cached and held by nobody: reusable, and the next to be evicted."""
    working: int | None
    """Held without a key: partly filled, or not to be shared."""
    empty: int | None
    """Free without a key."""
    stranded: int | None
    groups: Mapping[GroupId, GroupPages]

    def of_state(self, state: State, snapshot: Snapshot) -> list[GroupPages]:
        """Return the groups that hold ``state``."""
        return [self.groups[group.id] for group in snapshot.geometry.groups if state in group.states]


def occupancy(snapshot: Snapshot, prefixes: Prefixes | None = None) -> Occupancy | None:
    """Return where the pages are; None where no page table was read.

    Args:
        snapshot: Any snapshot.
        prefixes: The prefixes of the same snapshot where they have been built already.
    """
    pages = snapshot.pages
    if pages is None:
        return None
    columns = columns_of(pages)
    cached = columns.cached
    moving, old = in_transit(pages), stale(snapshot, columns)
    held = None if columns.references is None else columns.references > 0
    prefixes = prefixes or Prefixes(snapshot)
    stranded = prefixes.stranded
    groups = {}
    for group in snapshot.geometry.groups:
        own = cached & (columns.group == group.id)
        page_bytes = group.page_bytes
        if page_bytes is None and snapshot.pool is not None:
            page_bytes = snapshot.pool.page_bytes
        groups[group.id] = GroupPages(
            cached=int(own.sum()),
            held=None if held is None else int((own & held).sum()),
            ready=int((own & ~moving & ~old).sum()),
            in_transit=int((own & moving & ~old).sum()),
            stale=int((own & old).sum()),
            stranded=stranded[group.id],
            stranded_at_least=prefixes.stranded_bounds[group.id][0],
            unplaced=prefixes.stranded_bounds[group.id][1],
            longest=int(columns.tokens[own].max(initial=0)),
            page_bytes=page_bytes,
        )
    real = np.ones(columns.count, np.bool_)
    if snapshot.pool is not None and snapshot.pool.null_page is not None:
        real[snapshot.pool.null_page] = False

    def number(mask: "np.typing.NDArray[np.bool_] | None") -> int | None:
        return None if mask is None else int((mask & real).sum())

    return Occupancy(
        pages=int(real.sum()),
        cached=int((cached & real).sum()),
        cached_held=number(None if held is None else cached & held),
        cached_idle=number(None if held is None else cached & ~held),
        working=number(None if held is None else ~cached & held),
        empty=number(None if held is None else ~cached & ~held),
        stranded=None if None in stranded else sum(number or 0 for number in stranded),
        groups=groups,
    )
