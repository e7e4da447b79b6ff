"""Read a cache manager of vLLM straight into a snapshot: slow, exact, and independent of the feed.

Invariant: nothing is changed; call it between two steps. Only ``tests/engine`` imports this.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.requests import free_pages
from agent.model.evidence import EngineLookup, Evidence, HashTable
from agent.model.snapshot import Capture, Consistency, EngineInfo, Level, PageColumns, PoolInfo, RequestInfo, Snapshot
from agent.model.states import KEY_BYTES, PageId

ENGINE = EngineInfo(pid=1, start_ticks=1, engine="vllm", version="0.32.0", model="cache core")


def read(manager: Any, requests: Iterable[Any] = (), *, chains: Sequence[tuple[Sequence[bytes], int]] = ()) -> Snapshot:
    """Read everything.

    Args:
        manager: A ``KVCacheManager``.
        requests: Requests that may hold pages.
        chains: Hash chains to ask the engine about, each with its limit.
    """
    pool = manager.block_pool
    free = free_pages(pool, None, 2 * len(pool.blocks))[0]
    lookups = tuple(_lookup(manager, number, chain, limit) for number, (chain, limit) in enumerate(chains))
    return Snapshot(
        engine=ENGINE,
        capture=Capture(consistency=Consistency.ATOMIC, level=Level.REFERENCES, epoch=1, taken_ns=0),
        geometry=geometry_of(manager),
        pool=PoolInfo(
            pages=len(pool.blocks),
            null_page=PageId(pool.null_block.block_id),
            free=pool.get_num_free_blocks(),
            keys=len(pool.cached_block_hash_to_block),
        ),
        pages=_columns(pool),
        requests=tuple(_request(manager, request) for request in requests),
        holders=_holders(manager),
        free_list=tuple(PageId(page) for page in free),
        evidence=Evidence(hash_table=_hash_table(pool), lookups=lookups),
    )


def _columns(pool: Any) -> PageColumns:
    n = len(pool.blocks)
    key, group = np.zeros((n, KEY_BYTES), "u1"), np.zeros(n, "u1")
    tokens, counts = np.zeros(n, "<u4"), np.zeros(n, "<i4")
    for page, block in enumerate(pool.blocks):
        counts[page] = block.ref_cnt
        digest = block._block_hash
        if digest is not None:
            key[page] = np.frombuffer(digest[:KEY_BYTES], "u1")
            group[page] = int.from_bytes(digest[-4:], "big")
            tokens[page] = block._block_hash_num_tokens
    extra = {
        PageId(page): tuple(bytes(item[:KEY_BYTES]) + bytes(item[-4:]) + bytes(4) for item in keys)
        for page, keys in pool.cached_block_hashes_by_block.items()
    }
    parts = (key, group, tokens, np.zeros(n, "<u8"), counts)
    views = [memoryview(array.tobytes()) for array in parts]
    return PageColumns(
        count=n, key=views[0], group=views[1], tokens=views[2], stamp=views[3], references=views[4], extra_keys=extra
    )


def _hash_table(pool: Any) -> HashTable:
    rows: list[tuple[bytes, int, int]] = []
    for key, entry in pool.cached_block_hash_to_block._cache.items():
        pages = entry.keys() if isinstance(entry, dict) else [entry.block_id]
        rows += [(bytes(key[:KEY_BYTES]), int.from_bytes(key[-4:], "big"), page) for page in pages]
    return HashTable(
        count=len(rows),
        key=memoryview(b"".join(row[0] for row in rows)),
        group=memoryview(bytes(row[1] for row in rows)),
        page=memoryview(np.array([row[2] for row in rows], dtype="<i4").tobytes()),
    )


def _request(manager: Any, request: Any) -> RequestInfo:
    managers = manager.coordinator.single_type_managers
    rows = [
        tuple(PageId(block.block_id) for block in each.req_to_blocks.get(request.request_id, ())) for each in managers
    ]
    return RequestInfo(
        id=request.request_id,
        status="running",
        tokens=request.num_tokens,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed_tokens,
        preemptions=request.num_preemptions,
        tables=tuple(rows),
    )


def _holders(manager: Any) -> dict[PageId, int]:
    held: Counter[PageId] = Counter()
    for each in manager.coordinator.single_type_managers:
        for source, copy in getattr(each, "_pending_cow_copies", ()):
            held.update((PageId(source.block_id), PageId(copy.block_id)))
    return dict(held)


def _lookup(manager: Any, number: int, chain: Sequence[bytes], limit: int) -> EngineLookup:
    answer = manager.coordinator.find_longest_cache_hit(list(chain), limit)[1]
    keys = tuple(bytes(key[:KEY_BYTES]) for key in chain)
    return EngineLookup(request=f"sample {number}", chain=keys, limit=limit, answer=int(answer), epoch=1)
