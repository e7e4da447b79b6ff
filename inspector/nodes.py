"""Prefixes as a graph: one node for each key, with the groups that hold it and its parents.

Invariant: pages of different groups that end at the same token of the same prefix carry the same key, so that they
are one node; a link exists only where the engine's table proves it. Everything is vectorised: a million pages take
about a second. Used by the prefix tree and by :mod:`inspector.stranded`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agent.columns import in_transit
from agent.model.groups import Geometry
from agent.model.snapshot import Snapshot

from .columns import I64, U64, Columns, Mask, columns_of, stale

NONE = -1
"""No node: the chain starts here, or :data:`UNKNOWN_LINK` or :data:`GONE` says more."""

UNKNOWN_LINK = -2
"""Nobody knows the parent: the page was registered before this reader joined, and not in one run with its parent."""

GONE = -3
"""The parent's key is known and no page of any group carries it."""


@dataclass(frozen=True)
class Nodes:
    """The graph of a page table: m nodes, g groups. Nodes are sorted by :attr:`head`."""

    geometry: Geometry
    head: U64
    """(m,) first 8 bytes of the key."""
    key: NDArray[np.uint8]
    """(m, 16)"""
    tokens: I64
    """(m,) token position that the prefix ends at."""
    pages: NDArray[np.int32]
    """(g, m) cached pages of the group with this key."""
    usable_pages: NDArray[np.int32]
    """(g, m) those of them whose content may be used: computed, and under today's weights."""
    moving_pages: NDArray[np.int32]
    """(g, m) registered, not computed yet."""
    parent: NDArray[np.int32]
    """(g, m) node of the block before it in the group; else :data:`NONE`, :data:`UNKNOWN_LINK` or :data:`GONE`."""
    of_page: NDArray[np.int32]
    """(n,) node of each page by its main key; :data:`NONE` for a page without a key."""

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.head)

    @cached_property
    def unlinked(self) -> NDArray[np.bool_]:
        """(g, m) pages whose parent nobody knows."""
        found: NDArray[np.bool_] = self.parent == UNKNOWN_LINK
        return found

    @cached_property
    def tips(self) -> I64:
        """Nodes that nothing hangs on: the ends of cached prefixes, longest first."""
        is_parent = np.zeros(self.count, np.bool_)
        linked = self.parent[self.parent >= 0]
        is_parent[linked] = True
        ends = np.flatnonzero(~is_parent & (self.pages.sum(axis=0) > 0))
        return ends[np.lexsort((self.head[ends], -self.tokens[ends]))]

    def find(self, key: bytes) -> int | None:
        """Return the node of a key, or None."""
        head = np.uint64(int.from_bytes(key[:8], "little"))
        at = int(np.searchsorted(self.head, head))
        return at if at < self.count and self.head[at] == head else None

    def starting_with(self, hexadecimal: str) -> list[int]:
        """Return the nodes whose key starts with these hexadecimal digits."""
        whole = bytes.fromhex(hexadecimal[: len(hexadecimal) // 2 * 2])
        fits = (self.key[:, : len(whole)] == np.frombuffer(whole, np.uint8)).all(axis=1)
        if len(hexadecimal) % 2:
            fits &= self.key[:, len(whole)] >> 4 == int(hexadecimal[-1], 16)
        return [int(node) for node in np.flatnonzero(fits)]

    def ancestors(self, node: int) -> dict[int, int]:
        """Return every node known to lie on the chain of ``node``, itself included, by token position."""
        found: dict[int, int] = {}
        todo = [node]
        while todo:
            at = todo.pop()
            position = int(self.tokens[at])
            if position in found:
                continue
            found[position] = at
            todo.extend(int(up) for up in self.parent[:, at] if up >= 0)
        return found

    @cached_property
    def _children(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return children sorted by parent, and where each parent's children begin (m + 1)."""
        group, child = np.nonzero(self.parent >= 0)
        parents = self.parent[group, child]
        pairs = np.unique(np.stack([parents.astype(np.int64), child], axis=1), axis=0)
        begins = np.searchsorted(pairs[:, 0], np.arange(self.count + 1))
        return pairs[:, 1].astype(np.int32), begins.astype(np.int64)

    def descendants(self, nodes: Iterable[int]) -> set[int]:
        """Return these nodes and every node known to have been computed on top of one of them."""
        children, begins = self._children
        found: set[int] = set()
        todo = list(nodes)
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo.extend(children[begins[at] : begins[at + 1]].tolist())
        return found

    def reaches_boundary(self, node: int, alignment: int) -> bool:
        """Return whether ``node`` or anything on its chain ends at a multiple of ``alignment``."""
        seen: set[int] = set()
        todo = [node]
        while todo:
            at = todo.pop()
            if int(self.tokens[at]) % alignment == 0:
                return True
            seen.add(at)
            todo.extend(int(up) for up in self.parent[:, at] if up >= 0 and int(up) not in seen)
        return False

    def chain(self, node: int) -> tuple[bytes, ...]:
        """Return the keys at every hash unit up to ``node``; a position that no link leads to has an empty key."""
        unit = self.geometry.hash_unit
        known = self.ancestors(node)
        return tuple(
            self.key[known[at]].tobytes() if at in known else b""
            for at in range(unit, int(self.tokens[node]) + 1, unit)
        )

    def has(self, group: int, key: bytes, /) -> bool:
        """Tell whether a group holds a usable page under ``key`` (the face that the resume rules ask)."""
        at = self.find(key) if key else None
        return at is not None and bool(self.usable_pages[group, at] > 0)


def build(snapshot: Snapshot) -> Nodes | None:
    """Return the graph of a snapshot's page table; None where no table was read."""
    if snapshot.pages is None:
        return None
    columns = columns_of(snapshot.pages)
    moving = in_transit(snapshot.pages)
    usable = ~moving & ~stale(snapshot, columns)
    rows = np.flatnonzero(columns.cached)
    heads = columns.key_head[rows]
    keys, groups = columns.key[rows], columns.group[rows].astype(np.int64)
    positions = columns.tokens[rows].astype(np.int64)
    extra = _secondary(snapshot)
    if extra is not None:
        more_rows, more_keys, more_groups, more_positions = extra
        rows = np.concatenate([rows, more_rows])
        keys = np.concatenate([keys, more_keys])
        heads = np.concatenate([heads, np.ascontiguousarray(more_keys[:, :8]).view("<u8").reshape(-1)])
        groups = np.concatenate([groups, more_groups])
        positions = np.concatenate([positions, more_positions])
    return _assemble(snapshot.geometry, columns, rows, heads, keys, groups, positions, usable, moving)


def _assemble(
    geometry: Geometry,
    columns: Columns,
    rows: I64,
    heads: U64,
    keys: NDArray[np.uint8],
    groups: I64,
    positions: I64,
    usable: Mask,
    moving: Mask,
) -> Nodes:
    unique, first, inverse = np.unique(heads, return_index=True, return_inverse=True)
    shape = (len(geometry.groups), len(unique))
    inside = groups < shape[0]
    flat = groups[inside] * shape[1] + inverse[inside]

    def counted(mask: Mask) -> NDArray[np.int32]:
        picked = flat[mask[rows[inside]]]
        return np.bincount(picked, minlength=shape[0] * shape[1]).astype(np.int32).reshape(shape)

    parent = np.full(shape, NONE, np.int32)
    if len(unique):
        blocks = np.array([group.block_size for group in geometry.groups], np.int64)[groups[inside]]
        wanted = _parents(columns, rows[inside], groups[inside], positions[inside], blocks)
        at = np.minimum(np.searchsorted(unique, wanted), len(unique) - 1)
        known = (wanted != 0) & (unique[at] == wanted) & (positions[first][at] < positions[inside])
        link = np.where(known, at, np.where(wanted != 0, GONE, UNKNOWN_LINK))
        link[positions[inside] <= blocks] = NONE
        # Of several pages under one key the one that knows most speaks for the node: links sort GONE < UNKNOWN < node.
        order = np.argsort(np.where(link == UNKNOWN_LINK, GONE - 1, link), kind="stable")
        parent.reshape(-1)[flat[order]] = link[order]
    of_page = np.full(columns.count, NONE, np.int32)
    main = np.flatnonzero(columns.cached)
    of_page[main] = inverse[: len(main)]
    return Nodes(
        geometry=geometry,
        head=unique,
        key=keys[first],
        tokens=positions[first],
        pages=counted(np.ones(columns.count, np.bool_)),
        usable_pages=counted(usable),
        moving_pages=counted(moving),
        parent=parent,
        of_page=of_page,
    )


def _parents(columns: Columns, rows: I64, groups: I64, positions: I64, blocks: I64) -> U64:
    """Return the first 8 bytes of each row's parent key; 0 where nobody knows.

    What the engine did not say follows from the stamps where it can: pages of one group with one stamp were registered
    by one call for one request, so that of two neighbours in position the first is the parent of the second.
    """
    heads, stamps = columns.key_head[rows], columns.stamp[rows]
    wanted = np.zeros(len(rows), np.uint64) if columns.parent is None else columns.parent[rows].astype(np.uint64)
    order = np.lexsort((positions, groups, stamps))
    before, after = order[:-1], order[1:]
    run = (stamps[before] == stamps[after]) & (stamps[after] != 0) & (groups[before] == groups[after])
    run &= (positions[after] - positions[before] == blocks[after]) & (wanted[after] == 0)
    wanted[after[run]] = heads[before[run]]
    return wanted


def _secondary(snapshot: Snapshot) -> tuple[I64, NDArray[np.uint8], I64, I64] | None:
    """Return the secondary keys of partly filled pages as rows: pages, keys, groups, positions."""
    extra = {} if snapshot.pages is None else snapshot.pages.extra_keys
    listed = [(page, raw) for page, raws in extra.items() for raw in raws if len(raw) == 24]
    listed = [(page, raw) for page, raw in listed if int.from_bytes(raw[20:], "little") > 0]
    if not listed:
        return None
    raw = np.frombuffer(b"".join(raw for _, raw in listed), np.uint8).reshape(-1, 24)
    return (
        np.array([page for page, _ in listed], np.int64),
        raw[:, :16],
        np.ascontiguousarray(raw[:, 16:20]).view(">u4").reshape(-1).astype(np.int64),
        np.ascontiguousarray(raw[:, 20:]).view("<u4").reshape(-1).astype(np.int64),
    )
