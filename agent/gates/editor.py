"""A snapshot that can be changed: for planting faults, in the self-test and in tests.

Invariant: the snapshot it was made from is never touched. Nothing here reaches an engine.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ..model.evidence import Evidence
from ..model.snapshot import Capture, Consistency, PoolInfo, RequestInfo, Snapshot
from ..model.states import KEY_BYTES, GroupId, PageId, Tokens


class Editor:
    """Writable copies of the columns of one snapshot that has a page table, and a way back.

    Args:
        snapshot: The original.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        if snapshot.pages is None:
            raise ValueError("a snapshot without a page table cannot be edited")
        columns = snapshot.pages
        self.snapshot = snapshot
        self.columns = columns
        self.count = columns.count
        self.key = np.frombuffer(columns.key, dtype="u1").reshape(-1, KEY_BYTES).copy()
        self.group = np.frombuffer(columns.group, dtype="u1").copy()
        self.tokens = np.frombuffer(columns.tokens, dtype="<u4").copy()
        self.stamp = np.frombuffer(columns.stamp, dtype="<u8").copy()
        self.references = None if columns.references is None else np.frombuffer(columns.references, dtype="<i4").copy()
        self.free = None if columns.free is None else np.frombuffer(columns.free, dtype="u1").copy()
        self.free_list = None if snapshot.free_list is None else list(snapshot.free_list)
        self.never_computed = set(columns.never_computed)
        self.tainted = set(columns.tainted)
        self.requests = None if snapshot.requests is None else list(snapshot.requests)
        self.holders = None if snapshot.holders is None else dict(snapshot.holders)
        self.pool = snapshot.pool
        self.evidence = snapshot.evidence or Evidence()
        self.capture: Capture = snapshot.capture

    @property
    def null(self) -> PageId | None:
        """The null page."""
        return None if self.pool is None else self.pool.null_page

    def is_free(self, page: int) -> bool:
        """Tell whether a page stands in the free list, as far as it was read."""
        if self.free_list is not None:
            return page in self._free_set()
        return self.free is not None and bool(self.free[page])

    def _free_set(self) -> set[int]:
        return set(self.free_list or ())

    def vacant(self, number: int) -> list[int]:
        """Find pages that nobody holds, and take key and stamp off them. Fewer than asked for where there are fewer."""
        counts = self.references
        mask = np.ones(self.count, dtype=np.bool_) if counts is None else counts == 0
        if self.null is not None:
            mask[self.null] = False
        # Pages without a key first: nothing of the original is then changed.
        pages = [int(page) for page in np.flatnonzero(mask & (self.tokens == 0))[:number]]
        pages += [int(page) for page in np.flatnonzero(mask & (self.tokens != 0))[: number - len(pages)]]
        for page in pages:
            self.strip(page)
        return pages

    def strip(self, page: int) -> None:
        """Take the key off a page."""
        self.tokens[page] = 0
        self.stamp[page] = 0
        self.tainted.discard(PageId(page))

    def put_key(self, page: int, group: int, key: bytes, tokens: Tokens, stamp: int = 1 << 20) -> None:
        """Give a page a key."""
        self.key[page] = np.frombuffer(key, dtype="u1")
        self.group[page], self.tokens[page], self.stamp[page] = group, tokens, stamp

    def hold(self, page: int, references: int) -> None:
        """Take a page out of the free list and set its count."""
        self.unlist(page)
        if self.references is not None:
            self.references[page] = references

    def unlist(self, page: int) -> None:
        """Take a page out of the free list, and the counter down with it."""
        if not self.is_free(page):
            return
        if self.free_list is not None:
            self.free_list = [item for item in self.free_list if item != page]
        if self.free is not None:
            self.free[page] = 0
        self.count_free(-1)

    def enlist(self, page: int) -> None:
        """Put a page into the free list, and the counter up with it."""
        if self.free_list is not None:
            self.free_list.append(PageId(page))
        if self.free is not None:
            self.free[page] = 1
        self.count_free(1)

    def count_free(self, by: int) -> None:
        """Move the engine's free counter."""
        if self.pool is not None and self.pool.free is not None:
            self.pool = replace(self.pool, free=self.pool.free + by)

    def add_request(self, name: str, tables: dict[int, list[int]], **fields: Any) -> None:
        """Add a running request; groups that are not given have an empty table."""
        groups = len(self.snapshot.geometry.groups)
        rows = tuple(tuple(PageId(page) for page in tables.get(group, [])) for group in range(groups))
        request = RequestInfo(
            id=name, status=fields.pop("status", "running"), tokens=fields.pop("tokens", 1), prompt_tokens=1,
            computed_tokens=0, tables=rows, **fields,
        )  # fmt: skip
        self.requests = [*(self.requests or []), request]

    def witness(self, **parts: Any) -> None:
        """Replace parts of the evidence."""
        self.evidence = replace(self.evidence, **parts)

    def torn(self) -> None:
        """Call the capture torn."""
        self.capture = replace(self.capture, consistency=Consistency.TORN)

    def build(self) -> Snapshot:
        """Give the changed snapshot."""
        columns = replace(
            self.columns,
            key=_view(self.key),
            group=_view(self.group),
            tokens=_view(self.tokens),
            stamp=_view(self.stamp),
            references=None if self.references is None else _view(self.references),
            free=None if self.free is None else _view(self.free),
            never_computed=frozenset(self.never_computed),
            tainted=frozenset(self.tainted),
        )
        return replace(
            self.snapshot,
            pages=columns,
            free_list=None if self.free_list is None else tuple(self.free_list),
            requests=None if self.requests is None else tuple(self.requests),
            holders=self.holders,
            pool=self.pool,
            evidence=self.evidence,
            capture=self.capture,
        )


def _view(array: "np.ndarray[Any, Any]") -> memoryview:
    return array.data.cast("B").toreadonly()


def hash_rows(editor: Editor) -> dict[str, Any]:
    """List the hash table that fits the pages: columns ``key``, ``group`` and ``page``."""
    pages = np.flatnonzero(editor.tokens != 0).astype("<i4")
    return {"key": editor.key[pages].copy(), "group": editor.group[pages].copy(), "page": pages}


def group_with_table(editor: Editor, kinds: frozenset[Any]) -> GroupId | None:
    """Find the first group of one of these kinds."""
    return next((group.id for group in editor.snapshot.geometry.groups if group.kind in kinds), None)


def pool_of(pages: int, free: int) -> PoolInfo:
    """Make the counters of a pool whose null page is 0."""
    return PoolInfo(pages=pages, null_page=PageId(0), free=free, keys=None)
