"""What vLLM's offloading connector holds and moves: entries of its host tier, and copies that are not acknowledged yet.

Invariant: reads attributes only, bounded in entries and pages; a connector that is not known by its class, or whose
parts have other names in this version, is a reason and no answer. Engine's thread, between two steps.

The connector's index and its list of running jobs are two books: an entry that the index offers while the job that
brings it still runs is one that somebody may load too early.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from ...model.evidence import TierEntry, TierReport, Transfer
from ...model.groups import Geometry
from ...model.states import PageId, Status

ENTRY_LIMIT: Final = 512
"""Entries that are listed: those written last."""
PAGE_LIMIT: Final = 8192
"""Pages in transfer that are listed."""
GROUP_BYTES: Final = 4
KNOWN: Final = frozenset({"OffloadingConnector"})
"""Connectors whose parts are known, by class or by the class of an ancestor."""


def unknown(connector: Any) -> str | None:
    """Say why a connector cannot be looked through; None where it can."""
    names = {cls.__name__ for cls in type(connector).__mro__}
    kind = type(connector).__name__
    if not names & KNOWN:
        return f"{kind} does not show what it holds in a way that kvctl knows"
    if getattr(connector, "connector_scheduler", None) is None:
        return f"{kind} has no scheduler side here"
    return None


def tiers(connector: Any, geometry: Geometry) -> tuple[TierReport, ...]:
    """Describe the host tier."""
    scheduler = connector.connector_scheduler
    by_id = {group.id: group for group in geometry.groups}
    served = [by_id[config.group_idx] for config in scheduler.config.kv_group_configs if config.group_idx in by_id]
    kind = type(connector).__name__
    manager = getattr(scheduler.manager, "primary_tier", scheduler.manager)
    writing: set[Any] = set()
    for job in list(scheduler._jobs.values()):
        if job.is_store:
            writing |= job.keys
    newest = islice(_newest(manager._policy), ENTRY_LIMIT)
    report = TierReport(
        name=kind,
        states=frozenset(state for group in served for state in group.states),
        # Keys of this tier are hashes of tokens and nothing else: nothing says which weights made the bytes.
        fingerprinted=False,
        entries=tuple(_entry(kind, key, status, writing) for key, status in newest),
    )
    return (report,)


def _newest(policy: Any) -> Iterator[tuple[Any, Any]]:
    tables: list[dict[Any, Any]] = [
        held for name in ("chunks", "t2", "t1") if isinstance(held := getattr(policy, name, None), dict)
    ]
    if not tables:
        raise AttributeError(f"entries of {type(policy).__name__} are not known")
    return chain.from_iterable(reversed(table.items()) for table in tables)


def _entry(tier: str, key: Any, status: Any, writing: set[Any]) -> TierEntry:
    ready = status.ref_cnt >= 0
    return TierEntry(
        tier=tier,
        name=f"{key[:16].hex()}/{int.from_bytes(key[-GROUP_BYTES:], 'big')}",
        status=Status.READY if ready else Status.IN_TRANSIT,
        registered=ready,
        acknowledged=key not in writing,
    )


def transfers(scheduler: Any, stamp_of: Callable[[int], int], *, overlapping: bool) -> tuple[Transfer, ...]:
    """List the pages that are copied now.

    A page that is stored carries one of the keys of its job, or none. The engine waits for a job in the step that
    writes to a page of it that was given away.

    Args:
        scheduler: The engine's scheduler.
        stamp_of: Gives the stamp of a page.
        overlapping: A step may be under way at a safe point: a page that the engine is about to wait for cannot be told
            from one that was given away too early, and is left out.
    """
    side = scheduler.connector.connector_scheduler
    jobs = list(side._jobs.items())
    listed = chain.from_iterable(
        _stored(scheduler, side, number if overlapping else None, job, stamp_of)
        if job.is_store
        else _loaded(scheduler, side, job, stamp_of)
        for number, job in jobs
    )
    return tuple(islice(listed, PAGE_LIMIT))


def unstamped(connector: Any) -> str | None:
    """Say why pages that are stored cannot be told from pages given away; None where they can."""
    pages = connector.connector_scheduler.config.blocks_per_chunk
    return None if pages == 1 else f"entries of {pages} pages carry the key of the last one only"


def _stored(
    scheduler: Any, side: Any, watched: int | None, job: Any, stamp_of: Callable[[int], int]
) -> Iterator[Transfer]:
    pool = scheduler.kv_cache_manager.block_pool
    secondary = getattr(pool, "cached_block_hashes_by_block", {})
    for page in dict.fromkeys((*(job.deferred_fence_block_ids or ()), *(job.fenced_block_ids or ()))):
        block = pool.blocks[page]
        keys = (block._block_hash, *secondary.get(page, ()))
        same = block._block_hash is None or any(key in job.keys for key in keys)
        if not same and watched in side._block_id_to_pending_jobs.get(page, ()):
            continue
        stamp = int(stamp_of(page))
        yield Transfer(page=PageId(page), into=False, stamp=stamp if same else stamp - 1, request=str(job.req_id))


def _loaded(scheduler: Any, side: Any, job: Any, stamp_of: Callable[[int], int]) -> Iterator[Transfer]:
    status = side._req_status.get(job.req_id)
    if status is None:
        return
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    for start, end, key in status.load_key_ranges:
        manager = managers[int.from_bytes(key[-GROUP_BYTES:], "big")]
        table: Iterable[Any] = manager.req_to_blocks.get(job.req_id) or ()
        for block in islice(table, start // manager.block_size, -(-end // manager.block_size)):
            if not block.is_null:
                page = block.block_id
                yield Transfer(page=PageId(page), into=True, stamp=int(stamp_of(page)), request=str(job.req_id))
