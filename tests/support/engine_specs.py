"""Specs and configurations of vLLM's cache core, made in whichever version is installed.

Invariant: what is made is the engine's own class with the fields that this version has; a field that is only named
differently is translated, anything else that a version lacks is an error. Only ``tests/engine`` uses it.
"""

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

RENAMED = {"tokens_per_state": "compress_ratio"}
"""Field, and its name in versions that lack it."""
RETENTION = "prefix_cache_retention_interval"
RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


class Absent:
    """A class that this version does not have: nothing is an instance of it."""


def spec_class(name: str) -> Any:
    """Return a class of ``kv_cache_interface``, or :class:`Absent`."""
    from vllm.v1 import kv_cache_interface

    return getattr(kv_cache_interface, name, Absent)


def has_field(name: str, field: str) -> bool:
    """Tell whether a spec of this version has a field."""
    return field in {each.name for each in fields(spec_class(name))}


def make_spec(name: str, **values: Any) -> Any:
    """Make a spec."""
    return spec_class(name)(
        **{field if has_field(name, field) else RENAMED.get(field, field): value for field, value in values.items()}
    )


def make_manager(groups: Sequence[Any], *, pages: int, retention: int | None, **options: Any) -> Any:
    """Make a cache manager over ``groups``.

    Args:
        groups: ``KVCacheGroupSpec`` of each group.
        pages: Pages of the pool.
        retention: Tokens between kept windows and recurrent states. A version that reads it from the environment finds
            it there while the manager is made, and refuses it where no group is sparse.
        options: Further arguments of ``KVCacheManager``.
    """
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec, SlidingWindowSpec

    values: dict[str, Any] = {"num_blocks": pages, "kv_cache_tensors": [], "kv_cache_groups": list(groups)}
    sparse = any(isinstance(group.kv_cache_spec, SlidingWindowSpec | MambaSpec) for group in groups)
    if has_field("KVCacheConfig", RETENTION):
        values[RETENTION] = retention
    elif retention is not None and sparse:
        os.environ[RETENTION_VARIABLE] = str(retention)
    try:
        return KVCacheManager(KVCacheConfig(**values), **options)
    finally:
        os.environ.pop(RETENTION_VARIABLE, None)
