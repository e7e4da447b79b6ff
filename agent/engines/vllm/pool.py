"""vLLM's block pool as the feed sees it: hooks on one pool, and columns over its block objects.

Invariant: hooks live in the instance, call the original first, then store references in lists; what could go wrong
there is caught and turns the feed off. Uninstalling restores the instance exactly. Used by ``agent.probe`` on the
engine's thread. Works with vLLM 0.28-0.33; what a version lacks is not hooked.

The map of keys is replaced by a reset: it is resolved at each use and never kept.
"""

import inspect
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from ...probe.patches import Patches
from ...probe.port import GROUP_BYTES, Events, Log, Registered, Registration, Special, Words
from .completeness import Completeness
from .following import SLOT_ERRORS, follow_content, follow_references
from .partial import PartialHooks

HOOKED_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "cache_full_blocks": (
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
    ),
    "get_new_blocks": ("num_blocks",),
    "touch": ("blocks",),
    "free_blocks": ("ordered_blocks",),
    "evict_blocks": ("block_ids",),
    "reset_prefix_cache": (),
}
"""First parameters that every supported version has; a pool without them cannot be followed."""

BLOCK_FIELDS = ("block_id", "ref_cnt", "_block_hash", "_block_hash_num_tokens", "prev_free_block", "is_null")

MASK = "block_mask"
"""Its last parameter in 0.28-0.33: which of the blocks are registered."""

PARENT_BYTES = 8
NO_PARENT = bytes(PARENT_BYTES)
LOADING = "WAITING_FOR_REMOTE_KVS"


class VllmPool:
    """One ``BlockPool``.

    Args:
        pool: The engine's ``BlockPool``.
        managers: Its ``single_type_managers``, in the order of the groups.
        owners: What else handles its blocks: coordinator, scheduler, connector. Checked for completeness only.
        key_bytes: Length of the engine's keys; None: from the engine's hash seed, which has the same length.
    """

    def __init__(
        self, pool: Any, managers: Sequence[Any] = (), *, owners: Sequence[Any] = (), key_bytes: int | None = None
    ) -> None:
        self._pool = pool
        self._managers = tuple(managers)
        self._owners = tuple(owners)
        self._always = Patches()
        self._joined = Patches()
        self._failed: Callable[[str, BaseException], object] | None = None
        self._partial: PartialHooks | None = None
        self.pages = len(pool.blocks)
        null = getattr(pool, "null_block", None)
        self.null_page: int | None = None if null is None else null.block_id
        self.key_bytes = key_bytes or _key_bytes(pool)
        self._no_key = bytes(self.key_bytes)

    # -------------------------------------------------------------- installing

    def refuse(self) -> str | None:
        """Return why this pool cannot be followed exactly, or None."""
        pool = self._pool
        for name, wanted in HOOKED_PARAMETERS.items():
            method = getattr(pool, name, None)
            if method is None:
                return f"this vLLM has no BlockPool.{name}"
            if tuple(inspect.signature(method).parameters)[: len(wanted)] != wanted:
                return f"BlockPool.{name} of this vLLM has other parameters: {inspect.signature(method)}"
        missing = [name for name in BLOCK_FIELDS if not hasattr(pool.blocks[0], name)]
        if missing:
            return f"blocks of this vLLM have no {', '.join(missing)}"
        if self.key_bytes < 20:
            return f"keys of {self.key_bytes} bytes are shorter than the 16 bytes that tell prefixes apart"
        if any(getattr(manager, "block_pool", pool) is not pool for manager in self._managers):
            return "groups of this engine have pools of their own"
        return Completeness.of(pool, (*self._managers, *self._owners)).reason

    def install(self, log: Log, failed: Callable[[str, BaseException], object]) -> None:
        """Put in the always-on hooks."""
        self._failed = failed
        pool = self._pool
        full = pool.cache_full_blocks
        known = (*HOOKED_PARAMETERS["cache_full_blocks"], MASK)
        make = self._full_hook if tuple(inspect.signature(full).parameters) == known else self._other_hook
        self._always.set(pool, "cache_full_blocks", make(full, log, failed))
        if hasattr(pool, "cache_partial_block"):
            self._partial = PartialHooks(pool, log, failed)
            self._always.set(pool, "cache_partial_block", self._partial.always)
        if hasattr(pool, "move_block_hashes"):
            self._always.set(pool, "move_block_hashes", self._move_hook(pool.move_block_hashes, log, failed))

    def uninstall(self) -> None:
        """Take out every hook and restore what was there before."""
        self.unfollow()
        self._always.remove()
        self._partial = None

    def _full_hook(
        self, original: Callable[..., Any], log: Log, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        def cache_full_blocks(
            request: Any,
            blocks: Any,
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            block_mask: Any = None,
        ) -> Any:
            first, last, size, group = num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
            result = original(request, blocks, first, last, size, group, block_mask)
            if first < last:
                try:
                    start, computed = first * size, request.num_computed_tokens
                    status = request.status if start + size <= computed else None
                    places = None
                    if block_mask is None:
                        pages = blocks[first:last]
                    else:
                        pages, places = _masked(blocks, first, block_mask)
                    log((request.request_id, request, pages, places, start, size, computed, status, group))
                except SLOT_ERRORS as error:
                    failed("cache_full_blocks", error)
            return result

        return cache_full_blocks

    def _other_hook(
        self, original: Callable[..., Any], log: Log, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        """Serve versions that have no mask, or more parameters than we know."""
        seventh = tuple(inspect.signature(original).parameters)[6:7] == (MASK,)

        def cache_full_blocks(
            request: Any,
            blocks: Any,
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            *rest: Any,
            **more: Any,
        ) -> Any:
            first, last, size, group = num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
            result = original(request, blocks, first, last, size, group, *rest, **more)
            if first < last:
                try:
                    mask = rest[0] if rest and seventh else more.get(MASK)
                    pages, places = _masked(blocks, first, [True] * (last - first) if mask is None else mask)
                    computed, status, name = request.num_computed_tokens, request.status, request.request_id
                    log((name, request, pages, places, first * size, size, computed, status, group))
                except SLOT_ERRORS as error:
                    failed("cache_full_blocks", error)
            return result

        return cache_full_blocks

    def _move_hook(
        self, original: Callable[..., Any], log: Log, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        def move_block_hashes(src_block: Any, dst_block: Any) -> Any:
            result = original(src_block, dst_block)
            try:
                log((None, None, (src_block, dst_block), None, 0, 0, 0, None, 0))
            except SLOT_ERRORS as error:
                failed("move_block_hashes", error)
            return result

        return move_block_hashes

    # --------------------------------------------------------------- following

    def follow(self, events: Events, *, references: bool) -> None:
        """Put in the hooks of a joined feed, or change their level."""
        self.unfollow()
        failed = self._failed
        if failed is None:
            return
        follow_content(self._joined, self._pool, self._managers, events, failed)
        if self._partial is not None:
            self._joined.set(self._pool, "cache_partial_block", self._partial.followed(events))
        if references:
            follow_references(self._joined, self._pool, events, failed)

    def unfollow(self) -> None:
        """Take out the hooks of a joined feed; the always-on hooks stay."""
        self._joined.remove()

    # ----------------------------------------------------------------- columns

    def take(self, start: int, stop: int) -> list[Any]:
        """Return the block objects ``start .. stop``."""
        blocks: list[Any] = self._pool.blocks[start:stop]
        return blocks

    def ids(self, pages: Iterable[Any]) -> list[int]:
        """Return block ids."""
        return [page.block_id for page in pages]

    def names(self, pages: Iterable[Any]) -> Iterable[int]:
        """Return the identities of blocks, which live as long as the pool: no line of a block's memory is read."""
        return map(id, pages)

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Stamp pages."""
        for page in pages:
            stamps[page.block_id] = mark

    def stamp_calls(
        self, calls: Sequence[Registration], first: int, stamps: Words, special: Special, *, late: bool
    ) -> Registered:
        """Stamp the pages of registration calls; their hashes stand in the requests, so keys are not read.

        The hash of a page is the request's chained hash at its end; 0.28-0.33 make its key from that and the group. A
        plain attribute in a plain loop is what the interpreter specialises on: 28 ns a page in the caches.
        """
        unit, null, width = self._pool.hash_block_size, self.null_page, self.key_bytes - GROUP_BYTES
        counts: list[int] = []
        hashes: list[bytes] = []
        for mark, call in enumerate(calls, first + 1):
            name, request, pages, places, start, size, computed, _, _ = call
            if name is None or (late and start + size <= computed):
                special(mark, call)
                counts.append(0)
                continue
            for page in pages:
                stamps[page.block_id] = mark
            step = size // unit
            begin = start // unit + step - 1
            whole = slice(begin, begin + len(pages) * step, step)
            known = request.block_hashes[whole] if places is None else self.hashes(call)
            if null is not None and stamps[null] == mark:
                stamps[null] = 0
                known = [one for one, page in zip(known, pages, strict=False) if page.block_id != null]
            hashes += known
            counts.append(len(known))
        return [count * width for count in counts], [call[-1] for call in calls], b"".join(hashes)

    def hashes(self, call: Registration) -> list[bytes]:
        """Return the hash of each page of a call."""
        _, request, pages, places, start, size, *_ = call
        step = size // self._pool.hash_block_size
        begin, known = start // self._pool.hash_block_size + step - 1, request.block_hashes
        return [known[begin + place * step] for place in (range(len(pages)) if places is None else places)]

    def tokens(self, pages: Iterable[Any]) -> Words:
        """Return positions, 0 for a block without a key."""
        return array("I", [page._block_hash_num_tokens or 0 for page in pages])

    def keys(self, pages: Iterable[Any]) -> bytes:
        """Return keys, zeros for a block without one."""
        none = self._no_key
        return b"".join([page._block_hash or none for page in pages])

    def references(self, pages: Iterable[Any]) -> Words:
        """Return reference counts."""
        return array("i", [page.ref_cnt for page in pages])

    def free(self, pages: Iterable[Any]) -> bytes:
        """Return 1 for a block that is linked into the free list."""
        return bytes([page.prev_free_block is not None for page in pages])

    def extra(self, ids: Iterable[int] | range) -> list[tuple[int, bytes]]:
        """Return the secondary keys of these blocks."""
        known = getattr(self._pool, "cached_block_hashes_by_block", None)
        if not known:
            return []
        if isinstance(ids, range) and len(ids) > len(known):
            wanted: Iterable[int] = [page for page in known if page in ids]
        else:
            wanted = known.keys() & set(ids)
        return [(page, key) for page in wanted for key in known[page]]

    # ---------------------------------------------------------------- requests

    def parent(self, request: Any, tokens: int) -> bytes:
        """Return the first 8 bytes of the request's chained hash that ends at ``tokens``."""
        index = tokens // self._pool.hash_block_size - 1
        hashes = request.block_hashes
        if index < 0 or index >= len(hashes):
            return NO_PARENT
        return bytes(hashes[index][:PARENT_BYTES])

    def loaded(self, status: Any) -> bool:
        """Return whether the request waits for a load from another tier."""
        return getattr(status, "name", None) == LOADING

    def tables(self, request: str) -> list[list[Any]]:
        """Return the live block tables of a request, one a group."""
        tables = [manager.req_to_blocks.get(request) for manager in self._managers]
        return [table for table in tables if table is not None]

    def requests(self) -> list[str]:
        """Return ids of the requests that hold blocks."""
        return [request for manager in self._managers[:1] for request in manager.req_to_blocks]

    def chains(self, request: str) -> Iterable[tuple[list[int], list[bytes]]]:
        """Yield (block ids, parents) from the neighbours in a running request's tables, group by group.

        The engine stores no chain, but a request's table is one: the parent of a full block is the key of the block
        before it in the same table.
        """
        for manager in self._managers:
            table = manager.req_to_blocks.get(request) or ()
            before, after = table[:-1], table[1:]
            known = [
                one._block_hash is not None and two._block_hash is not None
                for one, two in zip(before, after, strict=True)
            ]
            yield (
                [page.block_id for page in compress(after, known)],
                [page._block_hash[:PARENT_BYTES] for page in compress(before, known)],
            )


def _masked(blocks: Sequence[Any], first: int, mask: Sequence[bool]) -> tuple[list[Any], list[int]]:
    """Return the registered blocks of a call and their places; most masks leave nearly everything out."""
    places = list(compress(range(len(mask)), mask))
    return [blocks[first + place] for place in places], places


def _key_bytes(pool: Any) -> int:
    """Return the length of the engine's keys: its hash and 4 bytes of group id."""
    for key in pool.cached_block_hash_to_block._cache:
        return len(key)
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415 - the host is imported inside functions only

    seed = getattr(kv_cache_utils, "NONE_HASH", None)
    return 36 if seed is None else len(seed) + 4
