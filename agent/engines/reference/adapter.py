"""The reference engine as the probe sees it: descriptions, hooks, small tables, changes.

Invariant: holds the engine weakly, patches instances only, and every read is a copy. Methods run on the engine's thread
between steps unless they say otherwise.
"""

import os
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ... import paths
from ...errors import TargetError, UnsupportedError
from ...model.evidence import Evidence
from ...model.groups import Geometry
from ...model.snapshot import Capability, EngineInfo, PoolInfo, Tier
from ...model.states import PageId
from ...probe.counters import histogram
from ...probe.patches import Patches
from ...probe.port import GROUP_BYTES
from ..base import RequestRow
from ..version import agent_version
from . import evidence, lookups
from .pool import ReferencePool

WORKS = (
    "overview",
    "geometry",
    "pool",
    "requests",
    "holders",
    "free_list",
    "hash_table",
    "tiers",
    "chain",
    "engine_hit",
    "decisions",
    "feed",
    "safe_point",
    "invalidate",
    "external",
    "evidence",
    "fingerprint",
    "hash_tokens",
)
SLICE_TOKENS = 8192
"""Tokens hashed at one safe point."""
OFF: Mapping[str, str] = {
    "layout": "the reference engine has no workers; its tensors are described by its own report",
    "weights_digest": "the reference engine has no workers; its own report names the digest",
}


class ReferenceAdapter:
    """One reference engine of this process.

    Args:
        engine: The engine, fully constructed.
        name: Name that the operator selects it by.
    """

    engine = "reference"

    def __init__(self, engine: Any, *, name: str = "reference") -> None:
        self._engine = weakref.ref(engine)
        self._name = name
        self._patches = Patches()
        self._probe: Any = None
        self._won: dict[str, int] = {}

    @property
    def core(self) -> Any:
        """The engine.

        Raises:
            TargetError: It is gone.
        """
        engine = self._engine()
        if engine is None:
            raise TargetError("the engine is gone", why="its owner dropped it")
        return engine

    # ----------------------------------------------------------- descriptions

    def info(self) -> EngineInfo:
        """Describe the engine."""
        core = self.core
        return EngineInfo(
            pid=os.getpid(),
            start_ticks=paths.start_ticks(os.getpid()) or 0,
            engine=self.engine,
            version="1",
            agent_version=agent_version(),
            model="+".join(core.model.layers),
            name=self._name,
            allow_changes=os.environ.get("KVCTL_ALLOW_CHANGES") == "1",
            devices=(core.config.device,),
            details={"dtype": core.model.dtype, "processes": "in process"},
        )

    def geometry(self) -> Geometry:
        """Describe the cache groups."""
        described: Geometry = self.core.describe()
        return described

    def capabilities(self) -> tuple[Capability, ...]:
        """Say what works here."""
        on = tuple(Capability(name=name, on=True) for name in WORKS)
        return on + tuple(Capability(name=name, on=False, reason=reason) for name, reason in OFF.items())

    def pool_port(self) -> Any:
        """Return the pool as the feed sees it."""
        return ReferencePool(self.core)

    # ----------------------------------------------------------------- hooks

    def install(self, probe: Any) -> None:
        """Put in the hooks: steps, look-ups, admissions, safe points, changes of weights."""
        self._probe = probe
        core, guard, patches = self.core, probe.guard, self._patches
        scheduler, schedule, execute = core.scheduler, core.scheduler.schedule, core.execute

        def scheduled(step: int) -> Any:
            if not guard.on:
                return schedule(step)
            guard.call(probe.begin_schedule)
            batch = schedule(step)
            guard.call(lambda: probe.end_schedule(batch, {item.request.id for item in batch.work}))
            return batch

        def executed(batch: Any) -> Any:
            if not guard.on:
                return execute(batch)
            guard.call(probe.dispatched)
            guard.call(probe.begin_update, batch)
            finished = execute(batch)
            guard.call(probe.end_update, batch)
            return finished

        patches.set(scheduler, "schedule", scheduled)
        patches.set(core, "execute", executed)
        patches.set(core, "between", guard.after(core.between, self._between))
        lookups.hook(probe, core, patches, self._won)
        self._hook_weights(probe, core)

    def _between(self, *_args: Any, **_kwargs: Any) -> None:
        self._probe.between_steps(idle=self.idle())

    def _hook_weights(self, probe: Any, core: Any) -> None:
        def loaded(*_args: Any, **_kwargs: Any) -> None:
            if probe.feed is not None:
                probe.feed.note_weights_change(probe.recorder.step)

        self._patches.set(core, "load_weights", probe.guard.after(core.load_weights, loaded))

    def uninstall(self) -> None:
        """Take out every hook."""
        self._patches.remove()

    def wake(self) -> bool:
        """Make an idle engine pass a safe point soon. Any thread."""
        engine = self._engine()
        if engine is None:
            return False
        engine.woken.set()
        return True

    def idle(self) -> bool:
        """Return whether the engine has nothing to do."""
        return bool(self.core.idle)

    # ----------------------------------------------------------------- reads

    def pool(self) -> PoolInfo:
        """Read the pool's counters."""
        pages = self.core.pages
        sizes = [group.page_bytes or 0 for group in self.core.describe().groups]
        return PoolInfo(
            pages=pages.count,
            null_page=PageId(0),
            free=pages.free_count,
            keys=len(pages.index),
            page_bytes=max(sizes, default=None),
        )

    def requests(self, *, tables: bool) -> list[RequestRow]:
        """Copy the requests."""
        return [_row(request, self.core.pools.specs if tables else None) for request in self.core.requests.values()]

    def page_ids(self, pages: Sequence[Any]) -> list[int]:
        """Return the ids of pages: pages are their ids. Any thread."""
        return list(pages)

    def holders(self) -> dict[int, int]:
        """Return references that transfers hold."""
        held: dict[int, int] = self.core.prefetcher.holders()
        return held

    def free_pages(self, after: Any | None, limit: int) -> tuple[list[int], Any | None]:
        """Walk a slice of the free lists: pool by pool, free pages first, then those to be evicted next."""
        pages, start = self.core.pages, after or 0
        order = [page for pool in pages.sizes for page in (*pages.free[pool], *pages.evictable[pool])]
        stop = start + limit
        return order[start:stop], stop if stop < len(order) else None

    def tiers(self) -> tuple[Tier, ...]:
        """Describe host memory and disk."""
        tiers, prefetcher, found = self.core.tiers, self.core.prefetcher, []
        loads = {"pages_brought_back": str(prefetcher.loaded), "loads_given_up": str(prefetcher.given_up)}
        loads |= {f"loads_failed_{reason}": str(count) for reason, count in prefetcher.failed.items()}
        lost = {f"stores_lost_{reason}": str(count) for reason, count in tiers.lost.items()}
        if tiers.pool is not None:
            details = loads if tiers.disk is not None else loads | lost
            found.append(Tier(name="host", kind="host", entries=len(tiers.host), details=details))
            loads = {}
        if tiers.disk is not None:
            details = loads | lost | {f"unusable_{reason}": str(count) for reason, count in tiers.disk.unusable.items()}
            details["foreign"] = str(len(tiers.disk.foreign))
            details["restarts"] = str(self.core.counters.restarts)
            found.append(Tier(name="disk", kind="disk", entries=len(tiers.disk.ready), details=details))
        return tuple(found)

    def counters(self) -> dict[str, float]:
        """Return what recovery won, and what the engine counts of its loads, by catalogue name. Any thread."""
        values = {f'recovered_tokens{{route="{route}"}}': float(won) for route, won in self._won.copy().items()}
        engine = self._engine()
        if engine is None or not engine.tiers.on:
            return values
        from ...reference.prefetch import WAIT_BUCKETS_S  # noqa: PLC0415 - only an engine of this kind has them

        loads = engine.prefetcher
        values |= {f'prefetch{{result="{result}"}}': float(count) for result, count in loads.results.items()}
        return values | histogram("prefetch_wait_seconds", WAIT_BUCKETS_S, loads.waits, loads.waited_s)

    def hash_table(self) -> list[tuple[bytes, Any]]:
        """Copy the engine's index: key with its group behind it, and the pages that carry it."""
        index = self.core.pages.index
        return [(key + group.to_bytes(GROUP_BYTES, "big"), list(pages)) for (group, key), pages in index.items()]

    def chain(self, request: str) -> list[bytes]:
        """Return a request's chained hashes.

        Raises:
            TargetError: The engine does not know this request any more.
        """
        found = self.core.requests.get(request)
        if found is None:
            raise TargetError("the engine does not know this request", why="it has finished, or never came here")
        return [bytes(key) for key in found.keys().keys]

    def engine_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Ask the engine's own finder; it changes nothing."""
        return int(self.core.reuser.usable([key[:16] for key in hashes], limit))

    def evidence(self) -> Evidence:
        """Read what the gates need beyond the tables."""
        feed = None if self._probe is None else self._probe.feed
        return evidence.read(self.core, changes=() if feed is None else feed.weights_changes)

    def hashing(self, tokens: Sequence[int], *, salt: str | None, lora: str | None, path: str | None) -> Any:
        """Begin to hash token ids as the engine would."""
        del path
        return _Hashing(self.core, tokens, salt=salt or "", adapter=lora or "")

    def fingerprint(self) -> dict[str, Any]:
        """Read the contract and the digest of the weights; there are no workers to ask."""
        core = self.core
        return {
            "contract": {"engine": self.engine, "version": "1", **core.contract},
            "weights": {"model": "+".join(core.model.layers), "digest": core.weights.digest()},
            "workers": [],
            "missing": {},
        }

    # --------------------------------------------------------------- changes

    def pages_of(self, keys: Iterable[tuple[int, bytes]]) -> Mapping[tuple[int, bytes], list[int]]:
        """Return the pages of keys."""
        index = self.core.pages.index
        return {(group, key): list(index[group, key]) for group, key in keys if (group, key) in index}

    def keys_of(self, pages: Iterable[int]) -> set[tuple[int, bytes]]:
        """Return the keys of pages."""
        table = self.core.pages
        return {(table.group[page], table.key[page]) for page in pages if table.key[page] is not None}

    def stamps(self, pages: Iterable[int]) -> list[int]:
        """Return the stamps of pages.

        Raises:
            UnsupportedError: The feed is off.
        """
        feed = None if self._probe is None else self._probe.feed
        if feed is None:
            raise UnsupportedError("pages have no generation here", why="the feed is off")
        return [int(feed.stamp_of(page)) for page in pages]

    def evict(
        self, keys: Iterable[tuple[int, bytes]], *, quarantine: bool, groups: Collection[int] | None = None
    ) -> dict[int, int]:
        """Take every page of these keys out of the cache and out of the tiers.

        A request that holds such a page keeps it and never registers it again: quarantine needs nothing else here.
        """
        del quarantine, groups
        core, removed = self.core, dict[int, int]()
        with core.pages.lock:
            for (group, key), pages in self.pages_of(keys).items():
                removed[group] = removed.get(group, 0) + len(pages)
                for page in pages:
                    core.pages.invalidate(page)
                core.tiers.drop(group, key)
        return removed

    def worker_call(self, method: str, *_args: Any) -> list[Any]:
        """There are no workers.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(f"`{method}` cannot be asked here", why="the reference engine has no workers")


class _Hashing:
    """Hash one list of tokens in slices."""

    def __init__(self, core: Any, tokens: Sequence[int], *, salt: str, adapter: str) -> None:
        self._tokens, self._done = tokens, 0
        from ...reference.keys import Chain, Identity  # noqa: PLC0415 - only an engine of this kind has them

        self._chain = Chain(core.describe().hash_unit, Identity(salt=salt, adapter=adapter))

    def advance(self) -> bool:
        """Hash one slice; True when the end is reached."""
        self._done = min(self._done + SLICE_TOKENS, len(self._tokens))
        self._chain.extend(self._tokens[: self._done])
        return self._done == len(self._tokens)

    def keys(self) -> list[bytes]:
        """Return the keys, one a hash unit."""
        return list(self._chain.keys)


def _row(request: Any, specs: Sequence[Any] | None) -> RequestRow:
    tables = None if specs is None else tuple(list(request.tables.get(spec.name, ())) for spec in specs)
    return RequestRow(
        id=request.id,
        status=str(request.status),
        tokens=len(request.tokens),
        prompt_tokens=len(request.prompt),
        computed_tokens=request.computed,
        in_flight_tokens=0,
        preemptions=request.preemptions,
        priority=0,
        tables=tables,
    )
