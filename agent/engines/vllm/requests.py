"""Small tables of vLLM, copied at a safe point: requests, holders, free list, tiers, keys.

Invariant: reads only; every function takes the engine's own objects and keeps none of them except page objects of
copied tables. Engine's thread.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import TargetError
from ...model.snapshot import PoolInfo, Tier
from ..base import RequestRow


def request_rows(scheduler: Any, *, tables: bool) -> list[RequestRow]:
    """Copy every request that the scheduler knows."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return [_row(request, managers if tables else None) for request in list(scheduler.requests.values())]


def _row(request: Any, managers: Iterable[Any] | None) -> RequestRow:
    name = request.request_id
    copied = None if managers is None else tuple(list(manager.req_to_blocks.get(name, ())) for manager in managers)
    return RequestRow(
        id=str(name),
        status=str(getattr(request.status, "name", request.status)).lower(),
        tokens=request.num_tokens,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed_tokens,
        in_flight_tokens=getattr(request, "num_in_flight_tokens", 0),
        preemptions=getattr(request, "num_preemptions", 0),
        priority=getattr(request, "priority", 0),
        tables=copied,
    )


def pool_info(manager: Any, page_bytes: int | None) -> PoolInfo:
    """Read the pool's counters."""
    pool = manager.block_pool
    null = getattr(pool, "null_block", None)
    return PoolInfo(
        pages=len(pool.blocks),
        null_page=None if null is None else null.block_id,
        free=pool.get_num_free_blocks(),
        keys=len(pool.cached_block_hash_to_block),
        page_bytes=page_bytes,
    )


def holders(scheduler: Any) -> dict[int, int]:
    """Count references beyond request tables: deferred frees and pending copies on write hold one each."""
    held: Counter[int] = Counter()
    for _, blocks in list(getattr(scheduler, "deferred_frees", ())):
        held.update(block.block_id for block in blocks if not block.is_null)
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        for source, copy in list(getattr(manager, "_pending_cow_copies", ())):
            held.update((source.block_id, copy.block_id))
    return dict(held)


def free_pages(pool: Any, after: Any | None, limit: int) -> tuple[list[int], Any | None]:
    """Walk a slice of the free list; the queue's two fake ends are no pages.

    The list is intrusive: a page that was put in twice is the successor of two pages and has one itself, so what stood
    behind its first place is reached from the other side only. It is added where the break is seen, with the page once
    more.
    """
    queue = pool.free_block_queue
    end = queue.fake_free_list_tail
    block = queue.fake_free_list_head.next_free_block if after is None else after
    before = queue.fake_free_list_head if after is None else None
    ids: list[int] = []
    while block is not None and block is not end and len(ids) < limit:
        if before is not None and block.prev_free_block is not before:
            ids.extend(_cut_off(block, queue.fake_free_list_head, len(pool.blocks)))
        ids.append(block.block_id)
        before = block
        block = block.next_free_block
    return ids, None if block is None or block is end else block


def _cut_off(block: Any, head: Any, most: int) -> list[int]:
    """Walk back from a page whose predecessor is another one than the list says; ends at the page itself, if it can."""
    ids: list[int] = []
    other = block.prev_free_block
    while other is not None and other is not head and len(ids) < most:
        ids.append(other.block_id)
        if other is block:
            return ids
        other = other.prev_free_block
    return []


def chain(scheduler: Any, request: str) -> list[bytes]:
    """Return a request's chained hashes.

    Raises:
        TargetError: The engine does not know this request any more.
    """
    found = scheduler.requests.get(request)
    if found is None:
        raise TargetError("the engine does not know this request", why="it has finished, or never came here")
    return [bytes(key) for key in found.block_hashes]


def tiers(scheduler: Any) -> tuple[Tier, ...]:
    """Describe the KV connector, as far as every connector shows it."""
    connector = getattr(scheduler, "connector", None)
    if connector is None:
        return ()
    role = getattr(getattr(connector, "role", None), "name", None)
    details: Mapping[str, str] = {} if role is None else {"role": str(role)}
    return (Tier(name=type(connector).__name__, kind="connector", details=details),)


def block_keys(pool: Any, block: Any) -> list[bytes]:
    """Return all engine keys (hash and group) that a block carries."""
    keys = [] if block._block_hash is None else [bytes(block._block_hash)]
    keys.extend(bytes(key) for key in getattr(pool, "cached_block_hashes_by_block", {}).get(block.block_id, ()))
    return keys
