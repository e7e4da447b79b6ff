"""Check and use in vLLM: the pages that a look-up found against those in the request's table once it is admitted.

Invariant: changes nothing; one comparison an admission that reuses something, none for any other. The lists hold the
same page objects, so that comparing them is a loop over pointers. Engine's thread: :meth:`Bound.admitted` from the hook
of an admission, :meth:`Bound.evidence` at a safe point.

A page is another one at use if the table holds a different page in its place: every page is compared. It is the same
page with other content if it does not carry the key any more that it was found under: that is looked at for the first
and the last page of each group, because whatever takes pages away takes them from one end (a prefix is evicted from its
end, a window from its start).
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...model.evidence import BindConflict, Binds
from ...model.states import PageId
from ...probe.stamps import Stamps

KEPT: Final = 64
"""Conflicts that are kept, the newest; all are counted."""


class Bound:
    """Compare the look-ups of one cache manager with its admissions.

    Args:
        manager: The engine's ``KVCacheManager``.
        stamps: The stamps of its pages; None: they are not known.
    """

    def __init__(self, manager: Any, stamps: Stamps | None = None) -> None:
        self._managers = tuple(
            (one, one.block_size, _reach(one), number.to_bytes(4, "big"))
            for number, one in enumerate(manager.coordinator.single_type_managers)
        )
        """Of each group: its manager, tokens of a page, pages that count at the end of a prefix, end of its keys."""
        self._pool = manager.block_pool
        self._stamps = stamps
        self.compared = 0
        """Pages that were found and then bound."""
        self.total = 0
        """Pages that were not the same."""
        self._conflicts: deque[BindConflict] = deque(maxlen=KEPT)

    def admitted(self, request: Any, usable: int, found: Sequence[Sequence[Any]], mark: int) -> None:
        """Compare what a look-up found with what the request holds now.

        Args:
            request: The request.
            usable: Tokens that it reuses from this pool.
            found: Pages that its look-up found, group by group.
            mark: Stamp of the last registration before that.
        """
        name, hashes, unit = request.request_id, request.block_hashes, self._pool.hash_block_size
        moved: list[tuple[Any, Any]] = []
        for number, ((manager, size, reach, suffix), pages) in enumerate(zip(self._managers, found, strict=False)):
            # The last page is copied where a hit ends inside it: whole pages are bound as they are.
            count = min(len(pages), usable // size)
            table = manager.req_to_blocks.get(name)
            if not count or table is None:
                continue
            self.compared += count
            same = (pages if len(pages) == count else pages[:count]) == table[:count]
            for place in (count - 1, max(0, count - reach)):
                # As in _carries, without its call for a page that carries its first key.
                page, end = pages[place], (place + 1) * size
                key = hashes[end // unit - 1] + suffix if end // unit <= len(hashes) else None
                if same and page._block_hash != key:
                    same = self._carries(page, request, number, end)
            if not same:
                moved += self._examine(request, number, pages[:count], table)
        if moved:
            self._conflicts_of(name, moved, mark)

    def _carries(self, page: Any, request: Any, group: int, end: int) -> bool:
        """Tell whether a page still is the page of this request that ends at ``end`` tokens."""
        hashes, place = request.block_hashes, end // self._pool.hash_block_size - 1
        if page.is_null or place >= len(hashes):
            return True
        key = hashes[place] + group.to_bytes(4, "big")
        return page._block_hash == key or key in getattr(self._pool, "cached_block_hashes_by_block", {}).get(
            page.block_id, ()
        )

    def _examine(
        self, request: Any, group: int, pages: Sequence[Any], table: Sequence[Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Name the pages that differ, as checked and as bound. A page that the engine skips is a null page there."""
        size = self._managers[group][1]
        for place, (page, held) in enumerate(zip(pages, table, strict=False)):
            if held.is_null:
                continue
            if held is not page:
                yield page, held
            elif not self._carries(page, request, group, (place + 1) * size):
                yield page, page

    def _conflicts_of(self, request: Any, moved: Sequence[tuple[Any, Any]], mark: int) -> None:
        """Note the conflicts of one admission. A page that was registered since had another stamp before: not known."""
        self.total += len(moved)
        stamps = self._stamps
        anew = frozenset() if stamps is None else stamps.registered_since(mark)
        now: Any = () if stamps is None else stamps.page_stamps
        for checked, bound in moved:
            page, held = PageId(checked.block_id), PageId(bound.block_id)
            self._conflicts.append(
                BindConflict(
                    request=str(request),
                    checked=page,
                    bound=held,
                    stamp_checked=None if stamps is None or page in anew else now[page] or None,
                    stamp_bound=None if stamps is None else now[held] or None,
                )
            )

    def evidence(self) -> Binds:
        """Return what was compared so far."""
        return Binds(compared=self.compared, conflicts=tuple(self._conflicts))


def _reach(manager: Any) -> int:
    """Pages before the end of a prefix that a group holds: those of its window; all of them where it has none."""
    window = getattr(manager, "sliding_window", None)
    return sys.maxsize if not window else max(1, -(-(window - 1) // manager.block_size))
