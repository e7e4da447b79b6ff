"""vLLM's block pool as the feed sees it: hooks on one pool, and columns over its block objects.

Invariant: hooks live in the instance, call the original first, then stamp the pages and store references in lists; what
could go wrong there is caught and turns the feed off. Uninstalling restores the instance exactly. Used by
``agent.probe`` on the engine's thread. Works with vLLM 0.28-0.33; what a version lacks is not hooked.

The map of keys is replaced by a reset: it is resolved at each use and never kept.
"""

import inspect
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from ...probe.patches import Patches
from ...probe.port import Events, Marks, Words
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

    def install(self, marks: Marks, failed: Callable[[str, BaseException], object]) -> None:
        """Put in the always-on hooks."""
        self._failed = failed
        pool = self._pool
        full = pool.cache_full_blocks
        known = (*HOOKED_PARAMETERS["cache_full_blocks"], MASK)
        make = self._full_hook if tuple(inspect.signature(full).parameters) == known else self._other_hook
        self._always.set(pool, "cache_full_blocks", make(full, marks, failed))
        if hasattr(pool, "cache_partial_block"):
            self._partial = PartialHooks(pool, marks, failed)
            self._always.set(pool, "cache_partial_block", self._partial.always)
        if hasattr(pool, "move_block_hashes"):
            self._always.set(pool, "move_block_hashes", self._move_hook(pool.move_block_hashes, marks, failed))

    def uninstall(self) -> None:
        """Take out every hook and restore what was there before."""
        self.unfollow()
        self._always.remove()
        self._partial = None

    def _full_hook(
        self, original: Callable[..., Any], marks: Marks, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        log, stamps, null, unit = marks.log.append, marks.page_stamps, self.null_page, self._pool.hash_block_size
        null_stamp, null_at = (array("Q", [0]), 0) if null is None else (stamps, null)
        odd, several = self._odd_call(marks), _stamping(stamps)

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
                    # As Marks.note does, in this frame: the pages are in the caches now, a moment later they are not.
                    start, computed = first * size, request.num_computed_tokens
                    if start + size <= computed and marks.late is not None:
                        odd(request, blocks[first:last], block_mask, start, size, group)
                        return result
                    marks.mark = mark = marks.mark + 1
                    pages, width = blocks[first:last], size // unit
                    if last - first == 1 and block_mask is None:
                        stamps[pages[0].block_id] = mark
                        keys = request.block_hashes[last * width - 1]
                    else:
                        hashes = request.block_hashes[(first + 1) * width - 1 : last * width : width]
                        keys = several(mark, pages, block_mask, hashes)
                    if null_stamp[null_at] == mark:  # null pages were among them
                        marks.mark = mark - 1
                        odd(request, pages, block_mask, start, size, group)
                        return result
                    seen, end = (pages, None) if marks.keep else (blocks, last)
                    name = request.request_id
                    log((mark, name, request, seen, end, block_mask, start, size, computed, None, group, keys))
                except SLOT_ERRORS as error:
                    failed("cache_full_blocks", error)
            return result

        return cache_full_blocks

    def _other_hook(
        self, original: Callable[..., Any], marks: Marks, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        """Serve versions that have no mask, or more parameters than we know."""
        odd = self._odd_call(marks)
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
                    odd(request, blocks[first:last], mask, first * size, size, group)
                except SLOT_ERRORS as error:
                    failed("cache_full_blocks", error)
            return result

        return cache_full_blocks

    def _odd_call(self, marks: Marks) -> Callable[..., None]:
        """Return what notes a call with null pages, or with pages that were computed before."""
        unit = self._pool.hash_block_size

        def odd(request: Any, pages: Any, mask: Any, start: int, size: int, group: int) -> None:
            wanted = [not page.is_null for page in pages]
            if mask is not None:
                wanted = [want and bool(one) for want, one in zip(wanted, mask, strict=True)]
            width = size // unit
            begin = start // unit + width - 1
            known = compress(request.block_hashes[begin : begin + len(pages) * width : width], wanted)
            computed, status, name = request.num_computed_tokens, request.status, request.request_id
            marks.note(name, request, pages, wanted, start, size, computed, status, group, b"".join(known))

        return odd

    def _move_hook(
        self, original: Callable[..., Any], marks: Marks, failed: Callable[[str, BaseException], object]
    ) -> Callable[..., Any]:
        def move_block_hashes(src_block: Any, dst_block: Any) -> Any:
            result = original(src_block, dst_block)
            try:
                marks.note(None, None, (src_block, dst_block), None, 0, 0, 0, None, 0, b"")
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

    def stamp(self, pages: Iterable[Any], stamps: Words, mark: int) -> None:
        """Stamp pages."""
        for page in pages:
            stamps[page.block_id] = mark

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
            wanted = [page for page in known if page in ids]
        else:
            wanted = [page for page in dict.fromkeys(ids) if page in known]
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


def _stamping(stamps: Words) -> Callable[[int, list[Any], Any, list[bytes]], bytes]:
    """Return what stamps the pages of one call and joins their hashes.

    A plain attribute in a plain loop is what the interpreter specialises on: 28 ns a page.
    """

    def several(mark: int, pages: list[Any], mask: Any, hashes: list[bytes]) -> bytes:
        if mask is None:
            for page in pages:
                stamps[page.block_id] = mark
            return b"".join(hashes)
        for page in compress(pages, mask):
            stamps[page.block_id] = mark
        return b"".join(compress(hashes, mask))

    return several


def _key_bytes(pool: Any) -> int:
    """Return the length of the engine's keys: its hash and 4 bytes of group id."""
    for key in pool.cached_block_hash_to_block._cache:
        return len(key)
    from vllm.v1.core import kv_cache_utils  # noqa: PLC0415 - the host is imported inside functions only

    seed = getattr(kv_cache_utils, "NONE_HASH", None)
    return 36 if seed is None else len(seed) + 4
