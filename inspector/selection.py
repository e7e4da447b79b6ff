"""What a selector covers in a page table: the pages that an invalidation has to take.

Invariant: a prefix is taken with everything computed on top of it, in every group, because what was computed on a
doubtful page is doubtful itself; links that nobody knows are said, never guessed. Used by ``kvctl invalidate`` and the
dashboard.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from agent.errors import InconclusiveError, UsageError
from agent.model.snapshot import Snapshot
from agent.model.states import PageId

from .columns import Columns, Mask, columns_of, stale
from .format import clean, count, plural
from .nodes import Nodes, build
from .selector import Selector, SelectorKind, find_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The pages that a selector covers, and what could not be told."""

    selector: Selector
    pages: tuple[PageId, ...]
    """Pages with a key, rising."""
    notes: tuple[str, ...] = ()


def select(snapshot: Snapshot, selector: Selector, *, chain: tuple[bytes, ...] | None = None) -> Selection:
    """Find what a selector covers.

    Args:
        snapshot: With a page table; for ``request:`` with the tables of requests.
        selector: What to cover.
        chain: For ``tokens:``: the keys of these tokens at each hash unit, as the engine hashes them.

    Raises:
        UsageError: The selector names nothing that is cached.
        InconclusiveError: The page table, or what tells old weights from new, was not read.
    """
    nodes = build(snapshot)
    if nodes is None or snapshot.pages is None:
        raise InconclusiveError(
            "the page table was not read", next_step="kvctl doctor says why; only a whole table can be selected from"
        )
    columns = columns_of(snapshot.pages)
    notes: list[str] = []
    match selector.kind:
        case SelectorKind.ALL:
            mask = columns.cached
        case SelectorKind.STALE:
            mask = _stale(snapshot, columns)
        case SelectorKind.GROUP | SelectorKind.STATE:
            mask = _of_groups(snapshot, columns, selector)
        case _:
            start = _start(snapshot, nodes, selector, chain)
            covered = nodes.descendants(start)
            mask = _pages_of(snapshot, nodes, columns, covered)
            notes += _unknown_links(nodes, covered)
            if selector.kind is SelectorKind.HASH:
                notes += _before(nodes, start)
    pages = tuple(PageId(int(page)) for page in np.flatnonzero(mask))
    return Selection(selector=selector, pages=pages, notes=tuple(notes))


def _stale(snapshot: Snapshot, columns: Columns) -> Mask:
    weights = snapshot.weights
    if weights is None:
        raise InconclusiveError(
            "this engine does not say when its weights changed",
            why="the agent watches no path that changes them here",
            next_step="take out everything: kvctl invalidate all",
        )
    return stale(snapshot, columns)


def _of_groups(snapshot: Snapshot, columns: Columns, selector: Selector) -> Mask:
    groups = snapshot.geometry.groups
    if selector.kind is SelectorKind.GROUP:
        wanted = [group.id for group in groups if selector.value in {group.name, str(group.id)}]
    else:
        wanted = [group.id for group in groups if selector.value in {state.value for state in group.states}]
    if not wanted:
        names = ", ".join(sorted({group.name for group in groups} | {s.value for g in groups for s in g.states}))
        raise UsageError(f"no group is meant by {clean(str(selector))[:60]}", next_step=f"there are {names}")
    return columns.cached & np.isin(columns.group, np.array(wanted, np.uint8))


def _start(snapshot: Snapshot, nodes: Nodes, selector: Selector, chain: tuple[bytes, ...] | None) -> set[int]:
    match selector.kind:
        case SelectorKind.HASH:
            found = set(nodes.starting_with(selector.value))
            if not found:
                raise UsageError(
                    f"no cached prefix has a key that begins with {selector.value}",
                    why="it was evicted or taken out, or it comes from another engine",
                    next_step="kvctl inspect prefixes --reveal lists keys",
                )
            if len(found) > 1:
                raise UsageError(
                    f"{plural(len(found), 'key')} begin with {selector.value}", next_step="give more digits"
                )
            return found
        case SelectorKind.PAGE:
            return _of_pages(nodes, selector.pages)
        case SelectorKind.REQUEST:
            request = find_request(snapshot.requests, selector.value)
            found = {
                int(nodes.of_page[page])
                for table in request.tables or ()
                for page in table
                if 0 <= page < len(nodes.of_page) and nodes.of_page[page] >= 0
            }
            if not found:
                raise UsageError(
                    f"request {clean(request.id)[:60]} has no page with a key", why="it waits, or fills its first page"
                )
            return found.union(*(nodes.ancestors(node).values() for node in found))
        case SelectorKind.TOKENS:
            found = {node for key in chain or () if (node := nodes.find(key)) is not None}
            if not found:
                raise UsageError("nothing of these tokens is cached", next_step="kvctl inspect prefixes lists what is")
            return found
        case _:
            raise UsageError(f"{selector} cannot be invalidated")


def _before(nodes: Nodes, start: set[int]) -> list[str]:
    """Say what a prefix leaves cached: what it begins with belongs to others as well."""
    before = max(
        (int(nodes.tokens[one]) for node in start for one in set(nodes.ancestors(node).values()) - start), default=0
    )
    if not before:
        return []
    return [f"the first {count(before)} tokens of this prefix stay cached: others may begin with them, too"]


def _of_pages(nodes: Nodes, pages: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for page in pages:
        if page >= len(nodes.of_page):
            raise UsageError(f"there is no page {page}", why=f"the pool has pages 0 to {len(nodes.of_page) - 1}")
        node = int(nodes.of_page[page])
        if node < 0:
            raise UsageError(f"page {page} carries no key", why="nobody can reuse it", next_step="kvctl inspect pages")
        found.add(node)
    return found


def _pages_of(snapshot: Snapshot, nodes: Nodes, columns: Columns, covered: set[int]) -> Mask:
    wanted = np.fromiter(covered, np.int64, len(covered))
    mask: Mask = columns.cached & np.isin(nodes.of_page, wanted)
    keys = {nodes.key[node].tobytes() for node in covered}
    extra = {} if snapshot.pages is None else snapshot.pages.extra_keys
    for page, raws in extra.items():
        if page < columns.count and any(raw[:16] in keys for raw in raws):
            mask[page] = True
    return mask


def _unknown_links(nodes: Nodes, covered: set[int]) -> list[str]:
    """Say how many pages might hang on what is taken though nobody knows it."""
    first = min((int(nodes.tokens[node]) for node in covered), default=0)
    inside = np.zeros(nodes.count, np.bool_)
    inside[list(covered)] = True
    loose = int((nodes.unlinked.any(axis=0) & ~inside & (nodes.tokens > first)).sum())
    if not loose:
        return []
    longer = plural(loose, "longer prefix", "longer prefixes")
    return [
        (
            f"{longer} were registered before this command looked: it cannot know if they were computed on top of "
            "this. They are out of reach without it, but not once it is computed anew; kvctl invalidate all ends the "
            "doubt."
        )
    ]
