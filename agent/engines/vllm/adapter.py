"""vLLM's engine core as the probe sees it.

Invariant: holds the engine weakly (a caller that drops its ``LLM`` gets its memory back), patches instances only, and
every read is a copy. Methods run on the engine's thread between steps unless they say otherwise.
"""

import os
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ... import paths
from ...errors import RefusedError, TargetError, UnsupportedError, UsageError
from ...model.evidence import Evidence, Weights
from ...model.groups import Geometry
from ...model.snapshot import Capability, EngineInfo, PoolInfo, Tier
from ...probe.patches import Patches
from ..base import RequestRow
from ..version import agent_version
from . import capabilities, contract, evidence, hashing, invalidation, requests
from .binds import Bound
from .groups import geometry_of
from .identities import Identities
from .steps import install_step_hooks
from .weights import WeightsWatch


class VllmAdapter:
    """One ``EngineCore`` of this process.

    Args:
        engine: The engine core, fully constructed.
        served: It runs its own loop in a process of its own.
        notes: What the plugin has to say about itself (file digests).
    """

    engine = "vllm"

    def __init__(self, engine: Any, *, served: bool, notes: Mapping[str, str] | None = None) -> None:
        self._engine = weakref.ref(engine)
        self._served = served
        self._notes = dict(notes or {})
        self._patches = Patches()
        self._reasons = capabilities.look(engine, served=served)
        self._geometry: Geometry | None = None
        self._probe: Any = None
        self._weights: WeightsWatch | None = None
        self.quarantine = invalidation.Quarantine(engine.scheduler)
        self.bound: Bound | None = None
        """What compares look-ups with admissions; None where this engine does not show both."""
        self.identities = Identities()
        self.noted: Any = None
        """Look-ups and admissions of the step, where they are hooked."""
        self._wake_item = _wake_item() if served else None

    # -------------------------------------------------------------- the engine

    @property
    def core(self) -> Any:
        """The engine core.

        Raises:
            TargetError: It is gone.
        """
        engine = self._engine()
        if engine is None:
            raise TargetError("the engine is gone", why="its owner dropped it")
        return engine

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler."""
        return self.core.scheduler

    @property
    def _pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # ----------------------------------------------------------- descriptions

    def info(self) -> EngineInfo:
        """Describe the engine."""
        config = self.core.vllm_config
        model = config.model_config
        parallel = config.parallel_config
        served = getattr(model, "served_model_name", None)
        name = served[0] if isinstance(served, list) and served else served
        connector = getattr(self.scheduler, "connector", None)
        details = {
            "processes": "engine core and workers" if self._served else "in process",
            "scheduler": type(self.scheduler).__name__,
            "async_scheduling": str(bool(getattr(config.scheduler_config, "async_scheduling", False))).lower(),
            "executor": type(self.core.model_executor).__name__,
            "tier": "none" if connector is None else type(connector).__name__,
            "dtype": str(getattr(model, "dtype", "")),
            "kv_cache_dtype": str(getattr(config.cache_config, "cache_dtype", "")),
            "hash_algorithm": str(getattr(config.cache_config, "prefix_caching_hash_algo", "")),
            **self._notes,
        }
        return EngineInfo(
            pid=os.getpid(),
            start_ticks=paths.start_ticks(os.getpid()) or 0,
            engine=self.engine,
            version=_version(),
            model=str(model.model),
            name=str(name or model.model),
            agent_version=agent_version(),
            data_parallel_rank=getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
            or 0,
            tensor_parallel_size=getattr(parallel, "tensor_parallel_size", 1),
            allow_changes=os.environ.get("KVCTL_ALLOW_CHANGES") == "1",
            devices=(_device(config),),
            details=details,
        )

    def geometry(self) -> Geometry:
        """Describe the cache groups."""
        self._geometry = geometry_of(self.scheduler)
        return self._geometry

    def capabilities(self) -> tuple[Capability, ...]:
        """Say what works here."""
        return capabilities.as_capabilities(self._reasons)

    def off(self, name: str) -> str | None:
        """Return why a capability is off, or None."""
        return self._reasons.get(name)

    def pool_port(self) -> Any:
        """Return the pool as the feed sees it."""
        from .pool import VllmPool  # noqa: PLC0415 - only where there is a feed

        return VllmPool(self._pool, self.scheduler.kv_cache_manager.coordinator.single_type_managers)

    # ----------------------------------------------------------------- hooks

    def install(self, probe: Any) -> None:
        """Put in the hooks that the capabilities allow."""
        self._probe = probe
        if self.off("binds") is None and self.off("decisions") is None:
            self.bound = Bound(self.scheduler.kv_cache_manager, self._probe.feed.stamps if self.has_feed else None)
        install_step_hooks(self, probe, self._patches, served=self._served)
        if self.off("safe_point") is None:
            self._weights = WeightsWatch(probe)
            self._weights.install(self.core, self._patches)

    def uninstall(self) -> None:
        """Take out every hook."""
        self._patches.remove()

    def wake(self) -> bool:
        """Put the engine's own wake-up into its own input queue. Any thread."""
        engine = self._engine()
        if engine is None or self._wake_item is None or self._reasons["safe_point"] is not None:
            return False
        engine.input_queue.put_nowait(self._wake_item)
        return True

    def idle(self) -> bool:
        """Return whether the engine has nothing to do."""
        core = self.core
        if self._served:
            return not core.has_work()
        return not core.scheduler.has_requests()

    # ----------------------------------------------------------------- reads

    def pool(self) -> PoolInfo:
        """Read the pool's counters."""
        groups = self._geometry.groups if self._geometry is not None else ()
        sizes = [group.page_bytes for group in groups]
        # All groups share the pool's pages: a page is as large as the largest group needs it.
        page_bytes = None if not sizes or None in sizes else max(size for size in sizes if size is not None)
        return requests.pool_info(self.scheduler.kv_cache_manager, page_bytes)

    def requests(self, *, tables: bool) -> list[RequestRow]:
        """Copy the requests."""
        return requests.request_rows(self.scheduler, tables=tables)

    def page_ids(self, pages: Sequence[Any]) -> list[int]:
        """Return block ids. Any thread."""
        return [page.block_id for page in pages]

    def holders(self) -> dict[int, int]:
        """Return references beyond request tables."""
        return requests.holders(self.scheduler)

    def free_pages(self, after: Any | None, limit: int) -> tuple[list[int], Any | None]:
        """Walk a slice of the free list."""
        return requests.free_pages(self._pool, after, limit)

    def tiers(self) -> tuple[Tier, ...]:
        """Describe the connector."""
        return requests.tiers(self.scheduler)

    def evidence(self) -> Evidence:
        """Return what is known beyond the tables."""
        return evidence.Reader(self).read()

    def counters(self) -> dict[str, float]:
        """Return the adapter's own counters. Any thread."""
        return {} if self.bound is None else {"toctou_conflicts": self.bound.total, "pages_bound": self.bound.compared}

    def weights_seen(self) -> Weights | None:
        """Return what was seen of the weights; None without a feed."""
        return None if self._weights is None else self._weights.evidence()

    def groups(self) -> Geometry:
        """Return the geometry as it was read last."""
        return self._geometry if self._geometry is not None else self.geometry()

    @property
    def has_feed(self) -> bool:
        """Pages have stamps."""
        return self._probe is not None and self._probe.feed is not None

    def stamp_of(self, page: int) -> int:
        """Return the stamp of a page; only with a feed."""
        return int(self._probe.feed.stamp_of(page))

    def hash_table(self) -> list[tuple[bytes, Any]]:
        """Copy the engine's hash table: key with group, and its page or a copy of its pages."""
        return invalidation.table_copy(self._pool)

    def chain(self, request: str) -> list[bytes]:
        """Return a request's chained hashes."""
        return requests.chain(self.scheduler, request)

    def engine_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Ask the engine's own finder; it changes nothing."""
        answer = self.scheduler.kv_cache_manager.coordinator.find_longest_cache_hit(list(hashes), limit)
        return int(answer[1])

    def hashing(
        self, tokens: Sequence[int], *, salt: str | None, lora: str | None, path: str | None
    ) -> hashing.Hashing:
        """Begin to hash token ids as the engine would.

        Raises:
            UsageError: The path of the adapter is not known.
        """
        if lora is not None and path is None:
            path = hashing.lora_path(self.scheduler, lora)
            if path is None:
                raise UsageError(
                    "the path of this LoRA adapter is not known",
                    why="no request of the engine uses it now, and the path is part of a key",
                    next_step="name the path, too",
                )
        return hashing.Hashing(
            self.core.request_block_hasher, tokens, salt=salt, lora=None if lora is None else (lora, path or "")
        )

    def fingerprint(self) -> dict[str, Any]:
        """Read the contract, and what is known of the weights without looking at them."""
        fields, missing = contract.contract(self.core, _version())
        workers: list[Any] | None = None
        if (reason := self.off("fingerprint")) is None:
            workers = self.worker_call("kvctl_runtime")
        else:
            missing["workers"] = reason
        return {
            "contract": fields,
            "weights": contract.weights(self.core),
            "workers": workers,
            "missing": missing,
        }

    # --------------------------------------------------------------- changes

    def keys_of(self, pages: Iterable[int]) -> set[tuple[int, bytes]]:
        """Return the keys of pages."""
        return invalidation.keys_of(self._pool, pages)

    def pages_of(self, keys: Iterable[tuple[int, bytes]]) -> Mapping[tuple[int, bytes], list[int]]:
        """Return the pages of keys."""
        return invalidation.pages_of(self._pool, keys)

    def stamps(self, pages: Iterable[int]) -> list[int]:
        """Return the stamps of pages; without a feed there is none, and plans are refused.

        Raises:
            UnsupportedError: The feed is off.
        """
        if not self.has_feed:
            raise UnsupportedError("pages have no generation here", why="the feed is off")
        return list(map(self.stamp_of, pages))

    def evict(
        self, keys: Iterable[tuple[int, bytes]], *, quarantine: bool, groups: Collection[int] | None = None
    ) -> dict[int, int]:
        """Evict every page of these keys."""
        pool = self._pool
        removed: dict[int, int] = {}
        evicted: dict[int, int] = {}
        sizes = {group.id: group.block_size for group in (self._geometry.groups if self._geometry else ())}
        for (group, _), pages in self.pages_of(keys).items():
            removed[group] = removed.get(group, 0) + len(pages)
            for page in pages:
                end = pool.blocks[page]._block_hash_num_tokens or 0
                evicted[page] = max(0, end - sizes.get(group, end))  # type: ignore[call-overload]
        pool.evict_blocks(set(evicted))
        if quarantine:
            self.quarantine.begin(evicted, groups)
        return removed

    def hold_back(self, requests: Collection[str]) -> None:
        """Keep out of the cache what these running requests have computed, until they are computed anew."""
        self.quarantine.hold(requests)

    def worker_call(self, method: str, *args: Any) -> list[Any]:
        """Call a registered method on every worker; no timeout: a late reply would be taken for the next step's."""
        return list(self.core.model_executor.collective_rpc(method, args=args))

    # --------------------------------------------------------------- weights

    def weights_slice(self, *, full: bool, cursors: Mapping[int, Any]) -> list[Any]:
        """Have the workers read a slice of their weights.

        Raises:
            RefusedError: The engine sleeps: its memory may be unmapped, and touching it would end the engine.
        """
        if self.core.model_executor.is_sleeping or (self._weights is not None and self._weights.away):
            raise RefusedError(
                "the engine sleeps", why="its weights are not in memory", next_step="wake it up, then ask again"
            )
        return self.worker_call("kvctl_weights_digest", full, dict(cursors))

    def weights_points(self) -> int:
        """Return the number of changes of weights seen so far."""
        return 0 if self._weights is None else self._weights.points

    def weights_read(self, mode: str, digest: str, *, complete: bool, loras: Mapping[int, str] | None = None) -> None:
        """Compare digests with the last ones."""
        if self._weights is not None:
            self._weights.digested(mode, digest, complete=complete, loras=loras or {})


def _wake_item() -> tuple[Any, None] | None:
    from vllm.v1.engine import EngineCoreRequestType  # noqa: PLC0415 - vLLM is imported inside functions only

    kind = getattr(EngineCoreRequestType, "WAKEUP", None)
    return None if kind is None else (kind, None)


def _version() -> str:
    import vllm  # noqa: PLC0415 - vLLM is imported inside functions only

    return str(getattr(vllm, "__version__", ""))


def _device(config: Any) -> str:
    return str(getattr(getattr(config, "device_config", None), "device_type", "") or "unknown")
