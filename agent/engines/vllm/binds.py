"""Check and use in vLLM: the pages that a look-up found against those in the request's table once it is admitted.

Invariant: changes nothing; one comparison an admission that reuses something, none for any other. The lists hold the
same page objects, so that comparing them is a loop over pointers. Engine's thread: :meth:`Bound.looked_up` and
:meth:`Bound.admitted` from the hooks, :meth:`Bound.evidence` at a safe point.

A page is another one at use if the table holds a different page in its place: every page is compared. It is the same
page with other content if it does not carry the key any more that it was found under: that is looked at for the first
and the last page of each group, because whatever takes pages away takes them from one end (a prefix is evicted from its
end, a window from its start).
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ...model.evidence import BindConflict, Binds
from ...model.states import PageId

KEPT: Final = 64
"""Conflicts that are kept, the newest; all are counted."""


class Bound:
    """Compare the look-ups of one cache manager with its admissions.

    Args:
        manager: The engine's ``KVCacheManager``.
        stamps: Gives the stamps of pages at the check and now, asked once an admission; None: stamps are 0.
    """

    def __init__(
        self, manager: Any, stamps: Callable[[Sequence[int]], Sequence[tuple[int, int]]] | None = None
    ) -> None:
        self._managers = tuple((one, _reach(one)) for one in manager.coordinator.single_type_managers)
        self._pool = manager.block_pool
        self._stamps = stamps
        self._request: str | None = None
        self._found: Sequence[Sequence[Any]] = ()
        self.compared = 0
        """Pages that were found and then bound."""
        self.total = 0
        """Pages that were not the same."""
        self._conflicts: deque[BindConflict] = deque(maxlen=KEPT)

    def looked_up(self, request: Any, answer: Any) -> None:
        """Note what a look-up found; it counts until the next one."""
        self._request = request.request_id
        self._found = getattr(answer[0], "blocks", ())

    def admitted(self, request: Any, usable: int) -> None:
        """Compare it with what the request holds now.

        Args:
            request: The request.
            usable: Tokens that it reuses from this pool.
        """
        if usable <= 0 or request.request_id != self._request:
            return
        found, name = self._found, request.request_id
        self._request, self._found = None, ()
        moved: list[tuple[Any, Any]] = []
        for number, ((manager, reach), pages) in enumerate(zip(self._managers, found, strict=False)):
            # The last page is copied where a hit ends inside it: whole pages are bound as they are.
            count = min(len(pages), usable // manager.block_size)
            table = manager.req_to_blocks.get(name)
            if not count or table is None:
                continue
            self.compared += count
            first, last = max(0, count - reach), count - 1
            if (
                (pages if len(pages) == count else pages[:count]) != table[:count]
                or not self._carries(pages[last], request, number, count * manager.block_size)
                or not self._carries(pages[first], request, number, (first + 1) * manager.block_size)
            ):
                moved += self._examine(request, number, pages[:count], table)
        if moved:
            self._conflicts_of(name, moved)

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
        size = self._managers[group][0].block_size
        for place, (page, held) in enumerate(zip(pages, table, strict=False)):
            if held.is_null:
                continue
            if held is not page:
                yield page, held
            elif not self._carries(page, request, group, (place + 1) * size):
                yield page, page

    def _conflicts_of(self, request: Any, moved: Sequence[tuple[Any, Any]]) -> None:
        """Note all of one admission at once: its stamps at the check are gone once anybody asks for those of now."""
        pages = [bound.block_id for _, bound in moved]
        stamps = [(0, 0)] * len(pages) if self._stamps is None else self._stamps(pages)
        self.total += len(moved)
        self._conflicts.extend(
            BindConflict(
                request=str(request),
                checked=PageId(checked.block_id),
                bound=PageId(bound.block_id),
                stamp_checked=before,
                stamp_bound=after,
            )
            for (checked, bound), (before, after) in zip(moved, stamps, strict=True)
        )

    def evidence(self) -> Binds:
        """Return what was compared so far."""
        return Binds(compared=self.compared, conflicts=tuple(self._conflicts))


def _reach(manager: Any) -> int:
    """Pages before the end of a prefix that a group holds: those of its window; all of them where it has none."""
    window = getattr(manager, "sliding_window", None)
    return sys.maxsize if not window else max(1, -(-(window - 1) // manager.block_size))
