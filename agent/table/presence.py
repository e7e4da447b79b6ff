"""Which keys are in the cache: key -> pages, group by group, kept up with the feed.

Invariant: equal to the keys of the table it belongs to at every record. Built when it is first asked for, then changed
row by row. Used by the resume rules through their ``Presence`` protocol.
"""

from collections.abc import Iterable

from ..model.states import KEY_BYTES, PageId

Pages = int | set[int]


class Presence:
    """Index of the keys of one table."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[bytes, Pages]] = {}

    def has(self, group: int, key: bytes) -> bool:
        """Return whether any page of ``group`` carries the 16-byte ``key``."""
        pages = self._groups.get(group)
        return pages is not None and key in pages

    def pages(self, group: int, key: bytes) -> tuple[PageId, ...]:
        """Return the pages of ``group`` that carry ``key``, lowest first."""
        found = self._groups.get(group, {}).get(key)
        if found is None:
            return ()
        return tuple(PageId(page) for page in sorted(found)) if isinstance(found, set) else (PageId(found),)

    def groups(self) -> tuple[int, ...]:
        """Return the groups that have keys."""
        return tuple(sorted(group for group, keys in self._groups.items() if keys))

    def keys(self, group: int) -> Iterable[bytes]:
        """Return the distinct keys of a group; valid until the next record is applied."""
        return self._groups.get(group, {}).keys()

    def __eq__(self, other: object) -> bool:
        """Tell whether two indexes have the same keys on the same pages."""
        if not isinstance(other, Presence):
            return NotImplemented
        return {group: keys for group, keys in self._groups.items() if keys} == {
            group: keys for group, keys in other._groups.items() if keys
        }

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return sum(len(keys) for keys in self._groups.values())

    def clear(self) -> None:
        """Forget every key."""
        self._groups.clear()

    def add(self, page: int, group: int, key: bytes) -> None:
        """Note that ``page`` carries ``key``."""
        keys = self._groups.setdefault(group, {})
        found = keys.get(key)
        if found is None:
            keys[key] = page
        elif isinstance(found, set):
            found.add(page)
        elif found != page:
            keys[key] = {found, page}

    def discard(self, page: int, group: int, key: bytes) -> None:
        """Note that ``page`` carries ``key`` no more."""
        keys = self._groups.get(group)
        if keys is None:
            return
        found = keys.get(key)
        if isinstance(found, set):
            found.discard(page)
            if len(found) == 1:
                keys[key] = found.pop()
        elif found == page:
            del keys[key]

    def add_rows(self, pages: list[int], groups: list[int], keys: bytes) -> None:
        """Note rows; ``keys`` holds 16 bytes for each."""
        at = 0
        for page, group in zip(pages, groups, strict=True):
            self.add(page, group, keys[at : at + KEY_BYTES])
            at += KEY_BYTES

    def discard_rows(self, pages: list[int], groups: list[int], keys: bytes) -> None:
        """Note that rows are gone; ``keys`` holds 16 bytes for each."""
        at = 0
        for page, group in zip(pages, groups, strict=True):
            self.discard(page, group, keys[at : at + KEY_BYTES])
            at += KEY_BYTES
