"""What the adapter needs of vLLM, looked at function by function: present, and with the parameters that it relies on.

Invariant: looking changes nothing and never raises; whatever is missing turns off one capability with a reason that
names it, and nothing else. Versions are never compared.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...model.snapshot import Capability
from . import hashing
from .worker import METHODS


@dataclass(frozen=True, slots=True)
class Need:
    """One function or attribute that a capability needs."""

    path: str
    """From the engine core, dots between attributes."""
    parameters: tuple[str, ...] | None = None
    """Leading parameters that a function must have; None: an attribute."""


_SCHEDULER: Final = "scheduler"
_MANAGER: Final = "scheduler.kv_cache_manager"
_POOL: Final = "scheduler.kv_cache_manager.block_pool"
_COORDINATOR: Final = "scheduler.kv_cache_manager.coordinator"

NEEDS: Final[dict[str, tuple[Need, ...]]] = {
    "decisions": (
        Need(f"{_MANAGER}.get_computed_blocks", ("request",)),
        Need(f"{_MANAGER}.record_prefix_cache_stats", ("request", "num_hits")),
        Need(f"{_SCHEDULER}.schedule", ()),
    ),
    "binds": (
        Need(f"{_MANAGER}.get_computed_blocks", ("request",)),
        Need(f"{_MANAGER}.record_prefix_cache_stats", ("request", "num_hits")),
        Need(f"{_COORDINATOR}.single_type_managers"),
        Need(f"{_POOL}.hash_block_size"),
    ),
    "feed": (
        Need(f"{_SCHEDULER}.schedule", ()),
        Need(f"{_SCHEDULER}.update_from_output", ("scheduler_output", "model_runner_output")),
        Need(f"{_POOL}.blocks"),
        Need(f"{_COORDINATOR}.single_type_managers"),
    ),
    "shadow": (Need(f"{_SCHEDULER}.get_grammar_bitmask", ("scheduler_output",)),),
    "pool": (
        Need(f"{_POOL}.blocks"),
        Need(f"{_POOL}.get_num_free_blocks", ()),
        Need(f"{_POOL}.cached_block_hash_to_block"),
    ),
    "hash_table": (Need(f"{_POOL}.cached_block_hash_to_block._cache"),),
    "evidence": (Need("scheduler"),),
    "requests": (Need(f"{_SCHEDULER}.requests"), Need(f"{_COORDINATOR}.single_type_managers")),
    "free_list": (Need(f"{_POOL}.free_block_queue.fake_free_list_head.next_free_block"),),
    "holders": (Need(f"{_COORDINATOR}.single_type_managers"),),
    "tiers": (Need(f"{_SCHEDULER}.connector"),),
    "chain": (Need(f"{_SCHEDULER}.requests"),),
    "engine_hit": (Need(f"{_COORDINATOR}.find_longest_cache_hit", ("block_hashes", "max_cache_hit_length")),),
    "invalidate": (
        Need(f"{_POOL}.evict_blocks", ("block_ids",)),
        Need(f"{_POOL}.cached_block_hash_to_block._cache"),
    ),
    "safe_point": (Need("post_step", ("model_executed",)),),
}
"""What each capability needs."""

IDLE_NEEDS: Final = (
    Need("_handle_client_request", ("request_type", "request")),
    Need("input_queue.put_nowait", ("item",)),
    Need("has_work", ()),
)
"""What safe points of an idle engine core process need."""


def fault(root: Any, need: Need) -> str | None:
    """Say what is wrong with one need; None when it is met."""
    found, owner = root, ""
    name = ""
    for name in need.path.split("."):
        owner = type(found).__name__
        try:
            found = getattr(found, name)
        except AttributeError:
            return f"{owner}.{name} is missing in this vLLM"
    if need.parameters is None:
        return None
    if not callable(found):
        return f"{owner}.{name} is not a function in this vLLM"
    return _signature_fault(found, need.parameters, f"{owner}.{name}")


def _signature_fault(function: Any, wanted: Sequence[str], name: str) -> str | None:
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return f"the parameters of {name} cannot be read"
    if tuple(parameters[: len(wanted)]) != tuple(wanted):
        return f"{name} has other parameters in this vLLM: {', '.join(parameters) or 'none'}"
    return None


def first_fault(root: Any, needs: Sequence[Need]) -> str | None:
    """Return the first fault among needs."""
    return next((found for need in needs if (found := fault(root, need)) is not None), None)


def look(engine: Any, *, served: bool) -> dict[str, str | None]:
    """Return each capability with the reason why it is off, or None.

    Args:
        engine: The ``EngineCore``.
        served: It runs its own loop (``EngineCoreProc``), else a caller drives it.
    """
    reasons = {name: first_fault(engine, needs) for name, needs in NEEDS.items()}
    if served and reasons["safe_point"] is None:
        reasons["safe_point"] = first_fault(engine, IDLE_NEEDS)
    caching = getattr(getattr(getattr(engine, "scheduler", None), "kv_cache_manager", None), "enable_caching", None)
    if caching is False:
        for name in ("engine_hit", "invalidate"):
            reasons[name] = reasons[name] or "this engine runs without prefix caching"
    connector = getattr(getattr(engine, "scheduler", None), "connector", None)
    if connector is None:
        reasons["external"] = "this engine has no KV connector"
    else:
        need = Need("scheduler.connector.update_state_after_alloc", ("request", "blocks"))
        reasons["external"] = fault(engine, need)
        kind = type(connector).__name__
        reasons["holders"] = reasons["holders"] or f"{kind} may hold pages in ways that kvctl cannot attribute"
    for name, method in WORKER_METHODS.items():
        reasons[name] = _worker_fault(engine, method)
    reasons["weights_digest"] = reasons["weights_digest"] or fault(engine, Need("model_executor.is_sleeping"))
    reasons["hash_tokens"] = hashing.fault(engine)
    reasons["binds"] = reasons["binds"] or _pools_fault(engine.scheduler.kv_cache_manager)
    return reasons


def _pools_fault(manager: Any) -> str | None:
    """Say that pages of groups have several numberings; None where one pool serves all."""
    pool = manager.block_pool
    shared = all(getattr(one, "block_pool", pool) is pool for one in manager.coordinator.single_type_managers)
    return None if shared else "groups of this engine have pools of their own"


WORKER_METHODS: Final = {
    "layout": "kvctl_layout",
    "fingerprint": "kvctl_runtime",
    "weights_digest": "kvctl_weights_digest",
}
"""Capability and the worker method that it needs."""


def _worker_fault(engine: Any, method: str) -> str | None:
    """Say why the workers cannot be asked; None where they can."""
    if method not in METHODS:
        return "workers do not answer this in this version of kvctl"
    executor = getattr(engine, "model_executor", None)
    kind = type(executor).__name__
    if "Ray" in kind:
        return f"workers of {kind} were never seen answering"
    if not callable(getattr(executor, "collective_rpc", None)):
        return "this engine has no collective call to its workers"
    return None


def as_capabilities(reasons: dict[str, str | None]) -> tuple[Capability, ...]:
    """Return the findings as values."""
    return tuple(Capability(name=name, on=reason is None, reason=reason) for name, reason in sorted(reasons.items()))
