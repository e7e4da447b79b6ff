"""What the feed asks of an engine's page pool: hooks, and columns over page objects.

Invariant: types only. An engine adapter implements :class:`PoolPort` (``agent.engines.vllm.pool``); the feed uses it on
the engine's thread. Page objects are opaque to the feed: it only hands them back.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    Words = array[int]
else:  # not subscriptable before Python 3.12
    Words = array

Remember = Callable[[Sequence[int], Sequence[int], Sequence[int], bytes], object]
"""Takes the stamps of some registration calls, bytes of the hashes of the pages that each registered, the group of
each, and the hashes of all these pages, equally long, one after the other."""

Registration = tuple[
    int, str | None, Any, Sequence[Any], int | None, Sequence[bool] | None, int, int, int, Any, int, bytes
]
"""One registration call, as the hook saw it:

stamp, request id, request, pages, end (None: these are the pages; else they are those of the request's table, from the
page of its first token to this place), mask of the pages that were registered (None: all but null pages), tokens before
the first page, tokens of a page, tokens that the request had computed at this moment, status of the request if it
counts, group of the pages, hashes of the registered pages in a row.

Without a request id it is a *move*: pages are (source, destination) and the destination takes over the keys.
"""


def pages_of(call: Registration) -> Sequence[Any]:
    """Return the pages of a call; if it names a table, they are as they stand there now."""
    pages, end, start, size = call[3], call[4], call[6], call[7]
    return pages if end is None else pages[start // size : end]


class Marks(Protocol):
    """What a hook stamps pages with, while they are in the processor's caches: later each costs three times as much.

    The hook of a registration raises :attr:`mark`, stamps the pages with it and appends the call to :attr:`log`. A move
    goes through :meth:`note`, and so does a call whose first page was computed before, while :attr:`late` is set.
    """

    mark: int
    """Stamp of the last call."""
    keep: bool
    """Calls are to be logged with their pages: a table may change until they are looked at. Where that does not matter,
    the log is spared a reference to each page, which touches them all once more when it is cleared."""
    late: int | None
    """Base of stamps for pages that were computed before; None: there are no such calls now."""

    @property
    def page_stamps(self) -> Words:
        """The stamp of each page, by id."""
        ...

    @property
    def log(self) -> deque[Registration]:
        """The calls of this phase."""
        ...

    def note(
        self,
        name: str | None,
        request: Any,
        pages: Sequence[Any],
        mask: Sequence[bool] | None,
        start: int,
        size: int,
        computed: int,
        status: Any,
        group: int,
        hashes: bytes,
    ) -> None:
        """Do all of it for one call; see :data:`Registration`."""
        ...


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

    def install(self, marks: Marks, failed: Callable[[str, BaseException], object]) -> None:
        """Put in the always-on hooks: each registration call is stamped and logged; ``failed`` never raises."""
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

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Set ``stamps[id] = mark`` for each page."""
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
