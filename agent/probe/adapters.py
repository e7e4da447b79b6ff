"""Which LoRA adapter computed a page: kept only on engines that serve adapters, one byte and one word a page.

Invariant: an entry holds only while the page still has the stamp under which it was noted, so requests without an
adapter cost one look at each registration call and nothing a page. Filled where stamps are folded; engine's thread.
"""

from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Final

from .port import Registration, Words

SHARED: Final = 255
"""Owner of pages of the adapters that came after the first 254: a change of any of those concerns all of them."""

Identity = tuple[Hashable, int]
"""What the engine's keys carry of an adapter, and its number in memory."""


class Adapters:
    """The owners of the pages of one pool.

    Args:
        pages: Pages of the pool.
        ids: Gives the ids of page objects.
        of_request: Gives the identity of a request's adapter; None: it uses none.
    """

    def __init__(
        self, pages: int, ids: Callable[[Iterable[Any]], list[int]], of_request: Callable[[Any], Identity | None]
    ) -> None:
        self._ids = ids
        self._of_request = of_request
        self._owner = bytearray(pages)
        self._marks = array("Q", bytes(8 * pages))
        self._index: dict[Hashable, int] = {}
        self.names: dict[int, Hashable] = {}
        """By number in memory: what keys carry of the adapter."""

    def learn(self, identity: Identity) -> int:
        """Note an adapter; return the owner byte of its pages."""
        name, number = identity
        self.names[number] = name
        return self._index.setdefault(name, min(len(self._index) + 1, SHARED))

    @property
    def known(self) -> Collection[Hashable]:
        """Every adapter that was ever learned."""
        return self._index.keys()

    @property
    def used(self) -> int:
        """Adapters that ever were in memory, at least: by number, which is how they are kept there, or by name."""
        return max(len(self.names), len(self._index))

    def note(self, entries: Sequence[Registration], stamps: Words) -> None:
        """Take over registration calls that were just folded into ``stamps``."""
        owner, marks, of_request, ids = self._owner, self._marks, self._of_request, self._ids
        for name, request, pages, *_ in entries:
            if name is None:
                source, target = ids(pages)
                if marks[source] == stamps[target]:
                    owner[target], marks[target] = owner[source], stamps[target]
                continue
            identity = of_request(request)
            if identity is None:
                continue
            index = self._index.get(identity[0])
            if index is None or self.names.get(identity[1]) != identity[0]:
                index = self.learn(identity)
            for page in ids(pages):
                owner[page] = index
                marks[page] = stamps[page]

    def pages_of(self, name: Hashable, stamps: Words) -> dict[int, int]:
        """Return the pages that this adapter computed, or may have, each with its stamp."""
        index = self._index.get(name)
        if index is None:
            return {}
        found: dict[int, int] = {}
        marks, find = self._marks, self._owner.find
        page = find(index)
        while page >= 0:
            if marks[page] == stamps[page] and stamps[page]:
                found[page] = stamps[page]
            page = find(index, page + 1)
        return found
