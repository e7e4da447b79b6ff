"""A small page pool without an engine, for tests of the feed: the same port, pages that are plain objects.

It keeps what an engine would (keys, counts, a free list as a set) and tells the feed through the same hooks.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent.probe.port import Events, Log, Registered, Registration, Special
from agent.probe.stamps import stamp_each

if TYPE_CHECKING:
    Words = array[int]
else:
    Words = array

KEY_BYTES = 36


@dataclass(slots=True, eq=False)
class Page:
    """One page."""

    number: int
    key: bytes | None = None
    tokens: int = 0
    count: int = 0
    free: bool = True


@dataclass(slots=True, eq=False)
class FakeRequest:
    """One request: a chain of hashes, one a page."""

    name: str
    hashes: list[bytes] = field(default_factory=list)
    computed: int = 0
    status: str = "running"
    table: list[Page] = field(default_factory=list)


class FakePool:
    """Pool and port in one. Page 0 is the null page.

    Args:
        pages: Pages, the null page included.
        block: Tokens of a page.
    """

    null_page: int | None = 0
    key_bytes = KEY_BYTES

    def __init__(self, pages: int, *, block: int = 16, refusal: str | None = None) -> None:
        self.pages = pages
        self.block = block
        self.all = [Page(number) for number in range(pages)]
        self.extra_keys: dict[int, list[bytes]] = {}
        self.requests_by_name: dict[str, FakeRequest] = {}
        self.refusal = refusal
        self.log: Log | None = None
        self.events: Events | None = None
        self.references_followed = False
        self._rng = random.Random(pages)

    # ------------------------------------------------------------ the engine

    def allocate(self, count: int) -> list[Page]:
        """Hand out pages; they lose their keys."""
        free = [page for page in self.all[1:] if page.free]
        taken = self._rng.sample(free, min(count, len(free)))
        for page in taken:
            page.key, page.tokens, page.count, page.free = None, 0, 1, False
            self.extra_keys.pop(page.number, None)
        if self.events is not None:
            self.events.cleared(taken)
        return taken

    def request(self, name: str, pages: int, *, group: int = 0) -> FakeRequest:
        """Start a request that owns ``pages`` pages, not registered yet."""
        hashes = [self._rng.randbytes(32) for _ in range(pages)]
        request = FakeRequest(name, hashes, table=self.allocate(pages))
        self.requests_by_name[name] = request
        del group
        return request

    def register(self, request: FakeRequest, first: int, last: int, *, group: int = 0, mask: Any = None) -> None:
        """Give the pages ``first .. last`` of a request their keys: one registration call."""
        for index in range(first, last):
            if mask is None or mask[index - first]:
                page = request.table[index]
                page.key = request.hashes[index] + group.to_bytes(4, "big")
                page.tokens = (index + 1) * self.block
        if self.log is not None:
            pages, places = request.table[first:last], None
            if mask is not None:
                places = [place for place, wanted in enumerate(mask) if wanted]
                pages = [pages[place] for place in places]
            start, computed, status = first * self.block, request.computed, request.status
            name, size = request.name, self.block
            self.log((name, request, pages, places, start, size, computed, status, group))

    def register_more(self, page: Page, key: bytes) -> None:
        """Give a page a secondary key."""
        self.extra_keys.setdefault(page.number, []).append(key)
        if self.events is not None:
            self.events.changed((page,))

    def finish(self, request: FakeRequest) -> None:
        """Free a request's pages; their keys stay."""
        del self.requests_by_name[request.name]
        for page in request.table:
            page.count -= 1
            page.free = page.count == 0
        if self.events is not None and self.references_followed:
            self.events.touched(request.table)

    def evict(self, pages: Iterable[Page]) -> None:
        """Take keys away."""
        pages = list(pages)
        for page in pages:
            page.key, page.tokens = None, 0
            self.extra_keys.pop(page.number, None)
        if self.events is not None:
            self.events.cleared(pages)

    def reset(self) -> None:
        """Empty the cache."""
        for page in self.all:
            page.key, page.tokens = None, 0
        self.extra_keys.clear()
        if self.events is not None:
            self.events.reset()

    def act(self, rng: random.Random, name: str, action: str) -> None:
        """Do one thing that an engine does, to random pages; a request that starts is called ``name``."""
        live = list(self.requests_by_name.values())
        if action == "start":
            request = self.request(name, rng.randint(1, 8))
            mask = [rng.random() < 0.8 for _ in request.table] if rng.random() < 0.3 else None
            self.register(request, 0, len(request.table), group=rng.randint(0, 4), mask=mask)
        elif action == "finish" and live:
            self.finish(rng.choice(live))
        elif action == "evict":
            self.evict(rng.sample(self.all[1:], 5))
        elif action == "extra":
            page = rng.choice(self.all[1:])
            if page.key is not None:
                self.register_more(page, rng.randbytes(32) + bytes(4))
        elif action == "reset":
            self.reset()

    # -------------------------------------------------------------- the port

    def refuse(self) -> str | None:
        """Return the planned refusal."""
        return self.refusal

    def install(self, log: Log, failed: Callable[[str, BaseException], object]) -> None:
        """Remember where registrations go."""
        del failed
        self.log = log

    def uninstall(self) -> None:
        """Forget everybody."""
        self.log = None
        self.unfollow()

    def follow(self, events: Events, *, references: bool) -> None:
        """Remember the targets."""
        self.events = events
        self.references_followed = references

    def unfollow(self) -> None:
        """Forget the targets."""
        self.events = None
        self.references_followed = False

    def take(self, start: int, stop: int) -> list[Any]:
        """Return page objects."""
        return self.all[start:stop]

    def ids(self, pages: Iterable[Any]) -> list[int]:
        """Return numbers."""
        return [page.number for page in pages]

    def names(self, pages: Iterable[Any]) -> Iterable[int]:
        """Return identities."""
        return map(id, pages)

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Stamp pages."""
        for page in pages:
            stamps[page.number] = mark

    def stamp_calls(
        self, calls: Sequence[Registration], first: int, stamps: Words, special: Special, *, late: bool
    ) -> Registered:
        """Stamp the pages of registration calls."""
        return stamp_each(self, calls, first, stamps, special, late=late)

    def hashes(self, call: Registration) -> list[bytes]:
        """Return the hash of each page of a call."""
        _, request, pages, places, start, *_ = call
        first = start // self.block
        return [request.hashes[first + place] for place in (range(len(pages)) if places is None else places)]

    def tokens(self, pages: Iterable[Any]) -> Words:
        """Return positions."""
        return array("I", [page.tokens for page in pages])

    def keys(self, pages: Iterable[Any]) -> bytes:
        """Return keys."""
        return b"".join([page.key or bytes(KEY_BYTES) for page in pages])

    def references(self, pages: Iterable[Any]) -> Words:
        """Return counts."""
        return array("i", [page.count for page in pages])

    def free(self, pages: Iterable[Any]) -> bytes:
        """Return the free flags."""
        return bytes([page.free for page in pages])

    def extra(self, ids: Iterable[int] | range) -> list[tuple[int, bytes]]:
        """Return secondary keys."""
        return [(page, key) for page in dict.fromkeys(ids) for key in self.extra_keys.get(page, ())]

    def parent(self, request: Any, tokens: int) -> bytes:
        """Return the parent's first bytes."""
        index = tokens // self.block - 1
        return bytes(request.hashes[index][:8]) if index >= 0 else bytes(8)

    def loaded(self, status: Any) -> bool:
        """Return whether the request waited for a tier."""
        return bool(status == "loading")

    def tables(self, request: str) -> list[list[Any]]:
        """Return the request's only table."""
        found = self.requests_by_name.get(request)
        return [] if found is None else [found.table]

    def chains(self, request: str) -> Iterable[tuple[list[int], list[bytes]]]:
        """Return neighbours in the request's table."""
        for table in self.tables(request):
            pairs = [(two.number, one.key[:8]) for one, two in pairwise(table) if one.key and two.key]
            yield [number for number, _ in pairs], [key for _, key in pairs]

    def requests(self) -> list[str]:
        """Return names."""
        return list(self.requests_by_name)
