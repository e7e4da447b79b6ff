"""The reference engine's page table as the feed sees it: hooks on one allocator, and columns over its pages.

Invariant: pages are their ids; hooks live in the instance, call the original first and then store ids in lists.
Uninstalling restores the instance exactly. Used by ``agent.probe`` on the engine's thread.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...probe.patches import Patches
from ...probe.port import GROUP_BYTES, Events, Log, Registered, Registration, Special, Words
from ...probe.stamps import stamp_each

SLOT_ERRORS = (AttributeError, TypeError, LookupError, ValueError, RuntimeError, MemoryError)
"""All that reading an attribute and extending a list can raise."""

KEY_BYTES = 16
PARENT_BYTES = 8
NO_PARENT = bytes(PARENT_BYTES)
LOADING = "waiting_for_remote_kvs"

HOOKED = ("register", "take", "share", "release", "evict", "invalidate")
COLUMNS = ("references", "group", "key", "tokens", "free", "evictable", "index", "lock")


class ReferencePool:
    """One allocator of the reference engine.

    Args:
        engine: The engine; its allocator, groups and scheduler are read.
    """

    null_page: int | None = 0
    key_bytes = KEY_BYTES + GROUP_BYTES

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._pages = engine.pages
        self._block = {spec.id: spec.block for spec in engine.pools.specs}
        self._always = Patches()
        self._joined = Patches()
        self._failed: Callable[[str, BaseException], object] | None = None
        self.pages: int = engine.pages.count

    # -------------------------------------------------------------- installing

    def refuse(self) -> str | None:
        """Return why this pool cannot be followed exactly, or None."""
        missing = [name for name in (*HOOKED, *COLUMNS) if not hasattr(self._pages, name)]
        return f"this allocator has no {', '.join(missing)}" if missing else None

    def install(self, log: Log, failed: Callable[[str, BaseException], object]) -> None:
        """Put in the always-on hook: one entry for each registered page."""
        self._failed = failed
        original, pages, block = self._pages.register, self._pages, self._block

        def register(page: int, key: bytes, tokens: int, owner: Any = None) -> Any:
            result = original(page, key, tokens, owner)
            try:
                group = pages.group[page]
                size = block[group]
                name, status, computed = "", LOADING, tokens
                if owner is not None and owner.status != LOADING:
                    name, status, computed = owner.id, owner.status, owner.computed
                # What a tier brought is there at once, whatever its request had computed by then.
                log((name, owner, (page,), None, tokens - size, size, computed, status, group))
            except SLOT_ERRORS as error:
                failed("register", error)
            return result

        self._always.set(pages, "register", register)

    def uninstall(self) -> None:
        """Take out every hook and restore what was there before."""
        self.unfollow()
        self._always.remove()

    def follow(self, events: Events, *, references: bool) -> None:
        """Put in the hooks of a joined feed, or change their level."""
        self.unfollow()
        self._after("take", events.cleared, result=True)
        self._after("evict", events.cleared)
        self._after("invalidate", events.cleared)
        if references:
            self._after("share", events.touched)
            self._after("release", events.touched)

    def _after(self, name: str, tell: Callable[[Iterable[Any]], object], *, result: bool = False) -> None:
        """Have a method tell about its page, or about the pages that it returns."""
        original, failed = getattr(self._pages, name), self._failed

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            try:
                tell(answer if result else (args[0],))
            except SLOT_ERRORS as error:
                if failed is not None:
                    failed(name, error)
            return answer

        self._joined.set(self._pages, name, stand_in)

    def unfollow(self) -> None:
        """Take out the hooks of a joined feed; the always-on hook stays."""
        self._joined.remove()

    # ----------------------------------------------------------------- columns

    def take(self, start: int, stop: int) -> list[Any]:
        """Return the pages ``start .. stop``."""
        return list(range(start, min(stop, self.pages)))

    def ids(self, pages: Iterable[Any]) -> list[int]:
        """Return page ids."""
        return list(pages)

    def names(self, pages: Iterable[Any]) -> Iterable[int]:
        """Return the pages, which are their own numbers here."""
        return pages

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Stamp pages, which are their own numbers here."""
        for page in pages:
            stamps[page] = mark

    def stamp_calls(
        self, calls: Sequence[Registration], first: int, stamps: Words, special: Special, *, late: bool
    ) -> Registered:
        """Stamp the pages of registration calls."""
        return stamp_each(self, calls, first, stamps, special, late=late)

    def hashes(self, call: Registration) -> list[bytes]:
        """Return the hash of a call's page: of its request's chain, or, without one, what the page carries now."""
        _, request, pages, _, start, size, *_ = call
        if request is not None:
            chain = request.chain
            index = (start + size) // chain.unit - 1
            if 0 <= index < len(chain.keys):
                return [bytes(chain.keys[index])]
        return [bytes(self._pages.key[page] or bytes(KEY_BYTES)) for page in pages]

    def tokens(self, pages: Iterable[Any]) -> Words:
        """Return positions, 0 for a page without a key."""
        key, tokens = self._pages.key, self._pages.tokens
        return array("I", [0 if key[page] is None else tokens[page] for page in pages])

    def keys(self, pages: Iterable[Any]) -> bytes:
        """Return keys with their group, zeros for a page without one."""
        key, group, none = self._pages.key, self._pages.group, bytes(self.key_bytes)
        return b"".join(
            [none if key[page] is None else key[page] + group[page].to_bytes(GROUP_BYTES, "big") for page in pages]
        )

    def references(self, pages: Iterable[Any]) -> Words:
        """Return reference counts."""
        counts = self._pages.references
        return array("i", [counts[page] for page in pages])

    def free(self, pages: Iterable[Any]) -> bytes:
        """Return 1 for a page that stands in a free list or may be evicted."""
        state, free = self._pages.state, {"free", "evictable"}
        return bytes([page != self.null_page and state(page) in free for page in pages])

    def extra(self, ids: Iterable[int] | range) -> list[tuple[int, bytes]]:
        """Return secondary keys: there are none."""
        del ids
        return []

    # ---------------------------------------------------------------- requests

    def parent(self, request: Any, tokens: int) -> bytes:
        """Return the first 8 bytes of the request's chained hash that ends at ``tokens``."""
        if request is None:
            return NO_PARENT
        keys, index = request.chain.keys, tokens // request.chain.unit - 1
        return bytes(keys[index][:PARENT_BYTES]) if 0 <= index < len(keys) else NO_PARENT

    def loaded(self, status: Any) -> bool:
        """Return whether the request waits for a load from another tier."""
        return bool(status == LOADING)

    def _running(self) -> dict[str, Any]:
        return {request.id: request for request in self._engine.scheduler.running}

    def tables(self, request: str) -> list[list[Any]]:
        """Return the live page tables of a request, one a group."""
        found = self._running().get(request)
        return [] if found is None else list(found.tables.values())

    def requests(self) -> list[str]:
        """Return ids of the requests that hold pages."""
        return list(self._running())

    def chains(self, request: str) -> Iterable[tuple[list[int], list[bytes]]]:
        """Yield (page ids, parents) from the hash list of a running request, group by group."""
        found = self._running().get(request)
        if found is None:
            return
        key = self._pages.key
        for spec in self._engine.pools.specs:
            table = found.tables.get(spec.name, [])
            held = [(block, page) for block, page in enumerate(table) if page and key[page] is not None]
            yield [page for _, page in held], [self.parent(found, block * spec.block) for block, _ in held]
