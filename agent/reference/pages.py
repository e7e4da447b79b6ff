"""The allocator: every page of every pool as an explicit state machine.

Invariant: a page changes its state only by a named move of ``TRANSITIONS``; a move without a row there raises and
changes nothing. All methods take the one lock, so that callers can make check and bind one critical section (``with
pages.lock``). Used by the engine, the look-up and the tiers.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import StrEnum

from ..model.states import State
from .faults import Fault, Faults

NULL = 0
"""The null page: target of padding rows and placeholder in tables; never allocated."""


class PageState(StrEnum):
    """Where a page is in its life."""

    FREE = "free"
    ALLOCATED = "allocated"
    """Owned; its content is not complete."""
    FILLED = "filled"
    """Owned; its content is complete and under no key."""
    CACHED = "cached"
    """Registered under a key, and somebody holds it."""
    EVICTABLE = "evictable"
    """Registered under a key, and nobody holds it."""
    EVICTED = "evicted"
    """Its key is gone; its content is being copied out, or about to be forgotten."""


class Move(StrEnum):
    """Everything that can happen to a page."""

    ALLOCATE = "allocate"
    FILL = "fill"
    REGISTER = "register"
    SHARE = "share"
    RELEASE = "release"
    """A holder leaves and others stay."""
    RETIRE = "retire"
    """The last holder of a registered page leaves."""
    ABANDON = "abandon"
    """The last holder of a page without a key leaves."""
    EVICT = "evict"
    INVALIDATE = "invalidate"
    """The key of a held page is taken away; its holders keep it."""
    RECYCLE = "recycle"


TRANSITIONS: Mapping[tuple[PageState, Move], PageState] = {
    (PageState.FREE, Move.ALLOCATE): PageState.ALLOCATED,
    (PageState.ALLOCATED, Move.FILL): PageState.FILLED,
    (PageState.ALLOCATED, Move.ABANDON): PageState.FREE,
    (PageState.FILLED, Move.REGISTER): PageState.CACHED,
    (PageState.FILLED, Move.RELEASE): PageState.FILLED,
    (PageState.FILLED, Move.ABANDON): PageState.FREE,
    (PageState.CACHED, Move.SHARE): PageState.CACHED,
    (PageState.CACHED, Move.RELEASE): PageState.CACHED,
    (PageState.CACHED, Move.RETIRE): PageState.EVICTABLE,
    (PageState.CACHED, Move.INVALIDATE): PageState.FILLED,
    (PageState.EVICTABLE, Move.SHARE): PageState.CACHED,
    (PageState.EVICTABLE, Move.EVICT): PageState.EVICTED,
    (PageState.EVICTED, Move.RECYCLE): PageState.FREE,
}
"""The whole state machine: (state, move) to the next state. What is not here cannot happen."""

UNHELD = frozenset({PageState.FREE, PageState.EVICTABLE, PageState.EVICTED})
"""States of a page that nobody holds."""

CHANGES_OWNER = frozenset({Move.ABANDON, Move.EVICT})
"""Moves after which the content belongs to nobody: they raise the generation."""


class IllegalMoveError(RuntimeError):
    """A move that the transition table does not have; nothing was changed."""


class OutOfPagesError(RuntimeError):
    """A pool has fewer allocatable pages than were asked for; nothing was changed."""


class Pages:
    """Page table, reference counts, free and eviction order of all device pools.

    Page ids are global: pool p owns the ids ``base + 1 .. base + size``; id 0 is the null page of every pool.

    Args:
        sizes: Pages of each pool, the null page not counted.
        faults: Faults to act out.
        ghosts: Lost keys that are remembered.
    """

    def __init__(self, sizes: Mapping[State, int], *, faults: Faults | None = None, ghosts: int = 65536) -> None:
        self.lock = threading.RLock()
        self.faults = faults or Faults()
        self.sizes = dict(sizes)
        self.base: dict[State, int] = {}
        self.free: dict[State, deque[int]] = {}
        self.evictable: dict[State, OrderedDict[int, None]] = {}
        first = 0
        for state, size in sizes.items():
            self.base[state] = first
            self.free[state] = deque(range(first + 1, first + size + 1))
            self.evictable[state] = OrderedDict()
            first += size
        self.count = first + 1
        self.pool_of = [State.COMPRESSED] + [state for state, size in sizes.items() for _ in range(size)]
        self._state = [PageState.FREE] * self.count
        self.references = [0] * self.count
        self.generation = [0] * self.count
        self.group = [-1] * self.count
        self.key: list[bytes | None] = [None] * self.count
        self.tokens = [0] * self.count
        self.epoch = [0] * self.count
        self.index: dict[tuple[int, bytes], list[int]] = {}
        self.ghosts: OrderedDict[tuple[int, bytes], str] = OrderedDict()
        self._ghost_limit = ghosts
        self.moves: dict[tuple[PageState, Move], int] = dict.fromkeys(TRANSITIONS, 0)
        self.refused = 0
        """Entries of a free list that named a page which was not free: always 0 without a fault."""
        self.weights_epoch = 0
        self.free_count = self.count - 1
        """Pages that nobody holds, counted move by move: what a free list of the right length has."""
        self.group_pools: dict[int, State] = {}
        """Pool of each group id; set by whoever lays out the pools."""
        self.on_copy_out: Callable[[int], None] | None = None
        """Called with an evicted page while its content, group, key and tokens are still there."""
        self.on_clear: Callable[[int], None] | None = None
        """Called with a page that changed its owner."""

    # --- the state machine -------------------------------------------------------------------------------------

    def state(self, page: int) -> PageState:
        """Return the state of a page."""
        return self._state[page]

    def _move(self, page: int, move: Move) -> None:
        """Make a move: the only writer of the state column."""
        row = (self._state[page], move)
        if page == NULL or row not in TRANSITIONS:
            raise IllegalMoveError(f"page {page}: no move {move} from {row[0]}")
        after = self._state[page] = TRANSITIONS[row]
        self.moves[row] += 1
        self.free_count += (after in UNHELD) - (row[0] in UNHELD)
        if move in CHANGES_OWNER and not self.faults.active(Fault.SKIP_GENERATION):
            self.generation[page] += 1
        if move in {Move.ABANDON, Move.RECYCLE}:
            self.free[self.pool_of[page]].append(page)
            self.group[page] = -1
            self.tokens[page] = 0
            if self.on_clear is not None:
                self.on_clear(page)

    # --- allocation --------------------------------------------------------------------------------------------

    def available(self, pool: State) -> int:
        """Return how many pages a pool can give: free ones and those it may evict."""
        return len(self.free[pool]) + len(self.evictable[pool])

    def pool_for(self, group: int) -> State:
        """Return the pool that holds the pages of a group."""
        return self.group_pools[group]

    def take(self, group: int, pool: State, count: int) -> list[int]:
        """Allocate pages for one holder, evicting the least recently used ones if need be.

        Raises:
            OutOfPagesError: The pool cannot give so many; nothing was changed.
        """
        with self.lock:
            if self.available(pool) < count:
                raise OutOfPagesError(f"{pool}: {count} pages wanted, {self.available(pool)} available")
            taken: list[int] = []
            while len(taken) < count:
                if not self.free[pool] and not self.evictable[pool]:
                    for page in taken:
                        self.release(page)
                    raise OutOfPagesError(f"{pool}: its free list named pages that are not free")
                if not self.free[pool]:
                    self.evict(next(iter(self.evictable[pool])))
                page = self.free[pool].popleft()
                if self._state[page] is not PageState.FREE:
                    self.refused += 1  # freed twice: whoever holds it now keeps it
                    continue
                self._move(page, Move.ALLOCATE)
                self.references[page] = 1
                self.group[page] = group
                taken.append(page)
            return taken

    def fill(self, page: int) -> None:
        """Say that the content of a page is complete."""
        with self.lock:
            self._move(page, Move.FILL)

    def register(self, page: int, key: bytes, tokens: int, owner: object = None) -> None:
        """Put a filled page under a key.

        Args:
            page: The page.
            key: Chained hash of the prefix that ends with it.
            tokens: Tokens of that prefix.
            owner: The request that it was computed or loaded for; whoever watches the allocator wants to know.
        """
        del owner  # of no use here
        with self.lock:
            self._move(page, Move.REGISTER)
            self.key[page], self.tokens[page] = key, tokens
            self.epoch[page] = self.weights_epoch
            self.index.setdefault((self.group[page], key), []).append(page)
            self.ghosts.pop((self.group[page], key), None)

    def share(self, page: int) -> None:
        """Add a holder to a registered page."""
        with self.lock:
            held = self._state[page] is PageState.CACHED
            self._move(page, Move.SHARE)
            self.references[page] += 1
            if not held:
                del self.evictable[self.pool_of[page]][page]

    def release(self, page: int) -> None:
        """Take a holder away. What becomes of the page follows from its state and its other holders."""
        with self.lock:
            if self.references[page] > 1:
                self._move(page, Move.RELEASE)
            elif self._state[page] is PageState.CACHED:
                self._move(page, Move.RETIRE)
                self.evictable[self.pool_of[page]][page] = None
            else:
                self._move(page, Move.ABANDON)
            self.references[page] -= 1

    def evict(self, page: int) -> None:
        """Take an unheld page out of the cache: copy it out, forget its key, make it free."""
        with self.lock:
            self._move(page, Move.EVICT)
            del self.evictable[self.pool_of[page]][page]
            if self.on_copy_out is not None:
                self.on_copy_out(page)
            self._forget(page, "evicted")
            self._move(page, Move.RECYCLE)

    def invalidate(self, page: int) -> None:
        """Take the key of a registered page away; holders keep what they hold."""
        with self.lock:
            if self._state[page] is PageState.EVICTABLE:
                self._move(page, Move.EVICT)
                del self.evictable[self.pool_of[page]][page]
                self._forget(page, "invalidated")
                self._move(page, Move.RECYCLE)
            else:
                self._move(page, Move.INVALIDATE)
                self._forget(page, "invalidated")

    def invalidate_all(self) -> int:
        """Invalidate every registered page; returns how many there were."""
        with self.lock:
            pages = [page for pages in self.index.values() for page in pages]
            for page in pages:
                self.invalidate(page)
            return len(pages)

    def _forget(self, page: int, cause: str) -> None:
        key = self.key[page]
        if key is None:
            raise IllegalMoveError(f"page {page} has no key to forget")
        name = (self.group[page], key)
        pages = self.index[name]
        pages.remove(page)
        if not pages:
            del self.index[name]
            self.ghosts[name] = cause
            if len(self.ghosts) > self._ghost_limit:
                self.ghosts.popitem(last=False)
        self.key[page] = None

    # --- look-up -----------------------------------------------------------------------------------------------

    def find(self, group: int, key: bytes) -> int | None:
        """Return a page of a group under a key; the oldest where several hold it."""
        pages = self.index.get((group, key))
        return pages[0] if pages else None

    def cached_idle(self, pool: State) -> int:
        """Return how many registered pages of a pool nobody holds."""
        return len(self.evictable[pool])
