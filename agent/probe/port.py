"""What the feed asks of an engine's page pool: hooks, and columns over page objects.

Invariant: types only. An engine adapter implements :class:`PoolPort` (``agent.engines.vllm.pool``); the feed uses it on
the engine's thread. Page objects are opaque to the feed: it only hands them back.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    Words = array[int]
else:  # not subscriptable before Python 3.12
    Words = array

GROUP_BYTES = 4
"""Bytes of the group at the end of a key."""

Remember = Callable[[Sequence[int], Sequence[int], Sequence[int], bytes], object]
"""Takes the stamps of some registration calls, bytes of the hashes of the pages that each registered, the group of
each, and the hashes of all these pages, equally long, one after the other."""

Registration = tuple[str | None, Any, Sequence[Any], Sequence[int] | None, int, int, int, Any, int]
"""One registration call, as the hook saw it, without a step of work more:

request id, request, pages, places of the pages among all of the call (None: they are all of it), tokens before the
first page of the call, tokens of a page, tokens that the request had computed at this moment, status of the request if
it had computed the first page, group of the pages.

Without a request id it is a *move*: pages are (source, destination) and the destination takes over the keys.
"""

Log = Callable[[Registration], object]
"""Takes registration calls, in their order."""

Special = Callable[[int, Registration], object]
"""Takes a call that is not stamped as a whole, with its stamp."""

Registered = tuple[Sequence[int], Sequence[int], bytes]
"""What calls registered: bytes of hashes of each (0 for one that was special), group of each, hashes in a row."""


@dataclass(slots=True)
class Events:
    """Where the hooks of a followed pool put the pages they see: bound ``extend`` methods, nothing else runs there."""

    cleared: Callable[[Iterable[Any]], object]
    """Pages that were allocated or evicted: without a key unless they were registered since."""
    changed: Callable[[Iterable[Any]], object]
    """Pages whose secondary keys changed."""
    touched: Callable[[Iterable[Any]], object]
    """Pages whose references changed (level references)."""
    reset: Callable[[], object]
    """The engine emptied its cache."""


class PoolPort(Protocol):
    """An engine's pool. All methods on the engine's thread; none of them may keep what it is given."""

    pages: int
    """All pages, the null page included; page ids run from 0."""
    null_page: int | None
    """A page that is shared by everybody and means "no page"; it is never reported."""
    key_bytes: int
    """Length of the engine's keys: chained hash and 4 bytes of group id, big-endian."""

    def refuse(self) -> str | None:
        """Return why this pool cannot be followed exactly, or None."""
        ...

    def install(self, log: Log, failed: Callable[[str, BaseException], object]) -> None:
        """Put in the always-on hooks: one entry in ``log`` for a registration call; ``failed`` never raises."""
        ...

    def uninstall(self) -> None:
        """Take out every hook and restore what was there before."""
        ...

    def follow(self, events: Events, *, references: bool) -> None:
        """Put in the hooks of a joined feed, or change their level."""
        ...

    def unfollow(self) -> None:
        """Take out the hooks of a joined feed; the always-on hooks stay."""
        ...

    def take(self, start: int, stop: int) -> list[Any]:
        """Return the page objects ``start .. stop``."""
        ...

    def ids(self, pages: Iterable[Any]) -> list[int]:
        """Return page ids."""
        ...

    def names(self, pages: Iterable[Any]) -> Iterable[int]:
        """Return something that tells pages of this pool apart, made without looking at them."""
        ...

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Set ``stamps[id] = mark`` for each page."""
        ...

    def stamp_calls(
        self, calls: Sequence[Registration], first: int, stamps: Words, special: Special, *, late: bool
    ) -> Registered:
        """Stamp the pages of registration calls, in their order: the one loop over pages that runs with nobody reading.

        Args:
            calls: The calls.
            first: The stamp before that of the first call; each call has the next one.
            stamps: Where pages are stamped, by id.
            special: Takes over a move, and a call whose first page was computed before.
            late: Whether there are calls of the second kind.
        """
        ...

    def hashes(self, call: Registration) -> list[bytes]:
        """Return the chained hash that each page of a call was registered under, whatever became of the page since."""
        ...

    def tokens(self, pages: Iterable[Any]) -> Words:
        """Return positions as u32, 0 for a page without a key."""
        ...

    def keys(self, pages: Iterable[Any]) -> bytes:
        """Return keys, ``key_bytes`` each, zeros for a page without one."""
        ...

    def references(self, pages: Iterable[Any]) -> Words:
        """Return reference counts as i32."""
        ...

    def free(self, pages: Iterable[Any]) -> bytes:
        """Return a byte for each page: 1 where it stands in the free list."""
        ...

    def extra(self, ids: Iterable[int] | range) -> list[tuple[int, bytes]]:
        """Return the secondary keys of these pages as (page, key)."""
        ...

    def parent(self, request: Any, tokens: int) -> bytes:
        """Return the first 8 bytes of the request's chained hash that ends at ``tokens``; zeros at 0 or if unknown."""
        ...

    def loaded(self, status: Any) -> bool:
        """Return whether this request status means that its pages were brought by a load from another tier."""
        ...

    def tables(self, request: str) -> list[list[Any]]:
        """Return the live page tables of a request, one a group; empty when it holds none."""
        ...

    def chains(self, request: str) -> Iterable[tuple[list[int], list[bytes]]]:
        """Yield (page ids, their parents' first 8 bytes) from the hash list of a running request, group by group."""
        ...

    def requests(self) -> list[str]:
        """Return ids of the requests that hold pages."""
        ...
