"""A snapshot as arrays: what several checks need, computed once and only when asked for.

Invariant: columns are wrapped, never copied; ids outside the pool are dropped here and reported by KV112. Gates only.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.decision import Decision
from ..model.groups import Group
from ..model.snapshot import PageColumns, RequestInfo, Snapshot
from ..model.states import Requirement, ResumeKind
from .index import Flags, Ints, KeyIndex


class Tables:
    """All request tables, flattened: entry i is page ``page[i]`` of request ``request[i]``.

    Args:
        requests: Requests whose tables were read.
    """

    def __init__(self, requests: Sequence[RequestInfo]) -> None:
        rows = [
            (number, group, row)
            for number, request in enumerate(requests)
            for group, row in enumerate(request.tables or ())
            if row
        ]
        lengths = np.array([len(row) for _, _, row in rows], dtype=np.int64)
        total = int(lengths.sum())
        self.page: Ints = np.fromiter(chain.from_iterable(row for _, _, row in rows), dtype=np.int64, count=total)
        self.group: Ints = np.repeat(np.array([group for _, group, _ in rows], dtype=np.int64), lengths)
        self.request: Ints = np.repeat(np.array([number for number, _, _ in rows], dtype=np.int64), lengths)
        self.place: Ints = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def only(self, mask: Flags) -> "Tables":
        """Keep the entries of a mask."""
        kept = Tables(())
        kept.page, kept.group = self.page[mask], self.group[mask]
        kept.request, kept.place = self.request[mask], self.place[mask]
        return kept


def _holds_nothing(request: RequestInfo) -> bool:
    return request.status in {"waiting", "preempted"} and request.computed_tokens == 0


def instance(snapshot: Snapshot) -> tuple[int, int]:
    """Which run of which engine a snapshot is of."""
    return snapshot.engine.pid, snapshot.engine.start_ticks


class View:
    """Lazy arrays over one snapshot; arrays of n pages are indexed by page id.

    Args:
        snapshot: What is looked at.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def decisions_since(self, previous: Snapshot | None) -> tuple[Decision, ...]:
        """Decisions that an earlier snapshot of the same engine does not hold yet; all of them without one."""
        decisions = self.snapshot.decisions or ()
        if previous is None or not previous.decisions or instance(previous) != instance(self.snapshot):
            return decisions
        last = max(decision.id for decision in previous.decisions)
        return tuple(decision for decision in decisions if decision.id > last)

    @property
    def columns(self) -> PageColumns:
        """The page table; ask only where there is one."""
        if self.snapshot.pages is None:
            raise ValueError("a snapshot without a page table was asked for its columns")
        return self.snapshot.pages

    @cached_property
    def count(self) -> int:
        """Pages of the pool; 0 without a page table."""
        return 0 if self.snapshot.pages is None else self.snapshot.pages.count

    @cached_property
    def null(self) -> int | None:
        """The null page, where it is a page of this table."""
        pool = self.snapshot.pool
        page = None if pool is None else pool.null_page
        return page if page is not None and 0 <= page < self.count else None

    @cached_property
    def real(self) -> Flags:
        """All pages but the null page."""
        mask = np.ones(self.count, dtype=np.bool_)
        if self.null is not None:
            mask[self.null] = False
        return mask

    @cached_property
    def tokens(self) -> NDArray[np.uint32]:
        """Position of each page; 0 without a key."""
        return np.frombuffer(self.columns.tokens, dtype="<u4", count=self.count)

    @cached_property
    def keyed(self) -> Flags:
        """Pages that carry a key."""
        mask: Flags = self.tokens != 0
        return mask & self.real

    @cached_property
    def group(self) -> NDArray[np.uint8]:
        """Group whose key each page carries."""
        return np.frombuffer(self.columns.group, dtype="u1", count=self.count)

    @cached_property
    def key(self) -> NDArray[np.uint64]:
        """Keys, n x 2 halves of 8 bytes."""
        return np.frombuffer(self.columns.key, dtype="<u8", count=2 * self.count).reshape(-1, 2)

    @cached_property
    def stamp(self) -> NDArray[np.uint64]:
        """Registration stamps."""
        return np.frombuffer(self.columns.stamp, dtype="<u8", count=self.count)

    @cached_property
    def index(self) -> KeyIndex:
        """Pages by group and key."""
        return KeyIndex(np.flatnonzero(self.keyed), self.key, self.group)

    @cached_property
    def references(self) -> NDArray[np.int32] | None:
        """Reference counts; None at content level."""
        column = None if self.snapshot.pages is None else self.snapshot.pages.references
        return None if column is None else np.frombuffer(column, dtype="<i4", count=self.count)

    @cached_property
    def free_ids(self) -> Ints | None:
        """The free list as it was walked, ids outside the pool included; None where only flags or nothing is known."""
        walked = self.snapshot.free_list
        return None if walked is None else np.array(walked, dtype=np.int64)

    @cached_property
    def free_counts(self) -> Ints | None:
        """How often each page stands in the free list; None where nobody walked it."""
        if self.free_ids is not None:
            return np.bincount(self.inside(self.free_ids), minlength=self.count)
        column = None if self.snapshot.pages is None else self.snapshot.pages.free
        return None if column is None else np.frombuffer(column, dtype="u1", count=self.count).astype(np.int64)

    @cached_property
    def requests(self) -> tuple[RequestInfo, ...] | None:
        """Requests with tables; None where any known request's table was not read."""
        known = self.snapshot.requests
        if known is None or any(request.tables is None and not _holds_nothing(request) for request in known):
            return None
        return None if known and all(request.tables is None for request in known) else known

    @cached_property
    def raw_tables(self) -> Tables:
        """Entries of all request tables as they are; none where they were not read."""
        return Tables(self.requests or ())

    @cached_property
    def tables(self) -> Tables | None:
        """Entries of all request tables, null page and ids outside the pool left out; None where not read."""
        if self.requests is None:
            return None
        raw = self.raw_tables
        mask = (raw.page >= 0) & (raw.page < self.count)
        if self.null is not None:
            mask &= raw.page != self.null
        return raw.only(mask)

    @cached_property
    def table_holders(self) -> Ints | None:
        """How often each page stands in request tables."""
        return None if self.tables is None else np.bincount(self.tables.page, minlength=self.count)

    @cached_property
    def block_sizes(self) -> Ints:
        """Block size of each possible group byte; 1 for groups that the geometry does not know."""
        sizes = np.ones(256, dtype=np.int64)
        for group in self.groups:
            sizes[group.id] = max(group.block_size, 1)
        return sizes

    @property
    def groups(self) -> tuple[Group, ...]:
        """The engine's groups."""
        return self.snapshot.geometry.groups

    @cached_property
    def required(self) -> tuple[Group, ...]:
        """Groups that resuming needs."""
        return tuple(
            group
            for group in self.groups
            if group.requirement is Requirement.REQUIRED and group.kind not in {ResumeKind.NONE, ResumeKind.UNKNOWN}
        )

    def inside(self, ids: Ints) -> Ints:
        """Keep the ids that are pages of this pool."""
        return ids[(ids >= 0) & (ids < self.count)]

    def request_name(self, number: Any) -> str:
        """Name of the request with this index."""
        return "unknown" if self.requests is None else self.requests[int(number)].id

    def group_name(self, number: int) -> str:
        """Name of a group; its number where there is no such group."""
        return self.groups[number].name if 0 <= number < len(self.groups) else str(number)

    def holder_ids(self) -> list[int]:
        """Pages with holders beyond request tables."""
        return [] if self.snapshot.holders is None else [int(page) for page in self.snapshot.holders]

    def all_named_ids(self) -> list[tuple[str, Ints]]:
        """Every table that names pages, with the ids it names."""
        named: list[tuple[str, Ints]] = []
        if self.requests is not None:
            named.append(("a request table", self.raw_tables.page))
        if self.free_ids is not None:
            named.append(("the free list", self.free_ids))
        if self.snapshot.holders is not None:
            named.append(("the list of holders", np.array(self.holder_ids(), dtype=np.int64)))
        evidence = self.snapshot.evidence
        if evidence is not None and evidence.hash_table is not None:
            table = evidence.hash_table
            named.append(("the hash table", np.frombuffer(table.page, dtype="<i4", count=table.count).astype(np.int64)))
        return named
