"""Take prefixes out of vLLM's cache by key, and keep running requests from bringing them back.

Invariant: eviction goes through ``BlockPool.evict_blocks`` on the engine's thread between steps; a page that a request
still uses keeps its contents and loses only its keys. A running request that was computed on an evicted page registers
nothing beyond it any more, until it is preempted and computed anew or ends; where whole groups were taken and no other,
it registers nothing in those groups only: what the plan did not show stays.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .requests import block_keys

GROUP_BYTES = 4
KEY_BYTES = 16


def split_key(key: bytes) -> tuple[int, bytes]:
    """Return group and 16-byte key of an engine key."""
    return int.from_bytes(key[-GROUP_BYTES:], "big"), bytes(key[:KEY_BYTES])


def pages_of(pool: Any, keys: Iterable[tuple[int, bytes]]) -> dict[tuple[int, bytes], list[int]]:
    """Return the pages under each key, duplicates included: one pass over the engine's hash table."""
    wanted = set(keys)
    found: dict[tuple[int, bytes], list[int]] = {key: [] for key in wanted}
    if not wanted:
        return found
    for key, held in pool.cached_block_hash_to_block._cache.items():
        short = split_key(key)
        if short in wanted:
            blocks = held.values() if isinstance(held, dict) else (held,)
            found[short].extend(block.block_id for block in blocks)
    return {key: sorted(set(pages)) for key, pages in found.items()}


def table_copy(pool: Any) -> list[tuple[bytes, Any]]:
    """Copy the hash table: about 50 ns a key. Duplicates are dictionaries that change, so those are copied, too."""
    items = list(pool.cached_block_hash_to_block._cache.items())
    return [(key, list(held.values())) if type(held) is dict else (key, held) for key, held in items]


def keys_of(pool: Any, pages: Iterable[int]) -> set[tuple[int, bytes]]:
    """Return every key that these pages carry."""
    blocks = pool.blocks
    return {split_key(key) for page in pages if 0 <= page < len(blocks) for key in block_keys(pool, blocks[page])}


class Quarantine:
    """Running requests that were computed on evicted pages.

    Args:
        scheduler: The engine's scheduler.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.held: dict[str, dict[int, int]] = {}
        """Tokens from which on a request's pages in a group must not be registered."""
        self._swept: dict[tuple[str, int], int] = {}
        """Pages of a request's table in a group that were registered when it was last swept: those need no look."""

    def __bool__(self) -> bool:
        return bool(self.held)

    def begin(self, evicted: Mapping[int, int], groups: Collection[int] | None = None) -> None:
        """Put every request under quarantine that holds an evicted page.

        Args:
            evicted: Page and the tokens before it in its prefix.
            groups: Groups that were taken as a whole and alone. None: prefixes were taken, and what was computed on
                top of them is in doubt in every group.
        """
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        scope = [group for group in range(len(managers)) if groups is None or group in groups]
        for manager in managers:
            for request, table in manager.req_to_blocks.items():
                starts = [evicted[block.block_id] for block in table if block.block_id in evicted]
                if not starts:
                    continue
                held = self.held.setdefault(request, {})
                for group in scope:
                    held[group] = min(held.get(group, starts[0]), *starts)
                    self._swept.pop((request, group), None)

    def hold(self, requests: Iterable[str]) -> None:
        """Put running requests under quarantine with all that they hold, pages without a key among it."""
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        for request in requests:
            if any(manager.req_to_blocks.get(request) for manager in managers):
                self.held[request] = dict.fromkeys(range(len(managers)), 0)
                self.forget_swept(request)

    def sweep(self) -> None:
        """Take out what quarantined requests have registered since; forget those that ended or were preempted.

        Before each look-up, after each schedule call and before a request gives its pages back: a page that it does not
        hold any more, because it ended or its window went on, would not be found again.
        """
        manager = self._scheduler.kv_cache_manager
        managers = manager.coordinator.single_type_managers
        for request, held in list(self.held.items()):
            tables = [one.req_to_blocks.get(request) for one in managers]
            if not any(tables):
                self.admitted(request)
                continue
            late: set[int] = set()
            for group, start in held.items():
                one, table = managers[group], tables[group]
                # The last registered page may have been a partial one, which is registered again when it is full.
                begin = max(self._swept.get((request, group), 0) - 1, 0)
                self._swept[request, group] = getattr(one, "num_cached_block", {}).get(request, 0)
                late.update(
                    block.block_id
                    for block in (table or ())[begin:]
                    if block._block_hash is not None and (block._block_hash_num_tokens or 0) > start
                )
            if late:
                manager.block_pool.evict_blocks(late)

    def admitted(self, request: str) -> None:
        """A request was admitted after a new look-up, or is gone: what it registers from now on was computed anew."""
        self.held.pop(request, None)
        self.forget_swept(request)

    def forget_swept(self, request: str) -> None:
        """Look at all pages of a request when it is swept next."""
        for name in [name for name in self._swept if name[0] == request]:
            del self._swept[name]
