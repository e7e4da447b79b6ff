"""Map vLLM's cache groups to kvctl's geometry.

Invariant: reads attributes only, changes nothing, and drops no group: one that is not understood is ``unknown`` and
makes ``usable`` unknown with it. Runs in the engine, on the engine thread, once; standard library only. Written for
vLLM 0.28 to 0.33: what a version lacks is derived or left out.

Trap: the scheduler's copy of a mixed group shows its first layer's spec only. Layer names are complete; bytes of a
mixed group are therefore read from a worker's copy (``config``) or not at all.
"""

import sys
from collections.abc import Mapping
from math import lcm
from typing import Any

from ...model.groups import Geometry, Group, Layer
from ...model.states import GroupId, Requirement, ResumeKind, State, Tokens
from . import layers as layer_rules

_FINDERS: Mapping[str, ResumeKind] = {
    "FullAttentionManager": ResumeKind.FULL,
    "SlidingWindowManager": ResumeKind.WINDOW,
    "ChunkedLocalAttentionManager": ResumeKind.CHUNKED,
    "MambaManager": ResumeKind.RECURRENT,
    "CircularBufferManager": ResumeKind.NONE,
    "CrossAttentionManager": ResumeKind.NONE,
    "_HiSparseAuxiliaryManager": ResumeKind.NONE,
}
"""Class that *defines* the look-up of a group -> rule. A manager that brings a look-up of its own is unknown."""


def geometry_of(source: Any, config: Any = None) -> Geometry:
    """Read the geometry of an engine.

    Args:
        source: A ``Scheduler`` or its ``KVCacheManager``.
        config: A worker's ``KVCacheConfig``, where one is at hand: it has the specs of all layers of mixed groups.

    Returns:
        All groups, in order of their ids.
    """
    manager = getattr(source, "kv_cache_manager", source)
    coordinator = manager.coordinator
    managers = tuple(coordinator.single_type_managers)
    specs = tuple(_group_specs(coordinator, manager))
    classes = _lookup_classes(coordinator, len(managers))
    draft_ids = _draft_ids(coordinator, managers)
    unit = _hash_unit(coordinator, managers)
    groups = tuple(
        _group(number, managers[number], specs[number], _layers(number, specs[number], config), unit, classes[number],
               number in draft_ids)
        for number in range(len(managers))
    )  # fmt: skip
    return Geometry(
        groups=groups,
        hash_unit=unit,
        alignment=_alignment(coordinator, managers),
        partial_hits=bool(getattr(coordinator, "enable_partial_hash_hits", False)),
        caching=bool(getattr(manager, "enable_caching", True)),
        retention_interval=getattr(coordinator, "retention_interval", None),
        max_model_tokens=getattr(manager, "max_model_len", None),
        margin_beyond_limit=_margin_beyond_limit(coordinator),
    )


def _group_specs(coordinator: Any, manager: Any) -> Any:
    config = getattr(coordinator, "kv_cache_config", None) or manager.kv_cache_config
    return config.kv_cache_groups


def _layers(number: int, group_spec: Any, config: Any) -> list[tuple[str, Any, bool]]:
    """Layers of a group with the best spec there is for each, and whether it is the layer's own."""
    names = list(getattr(group_spec, "layer_names", ()))
    best = group_spec
    if config is not None and number < len(config.kv_cache_groups):
        best = config.kv_cache_groups[number]
    spec = best.kv_cache_spec
    own: Mapping[str, Any] | None = getattr(spec, "kv_cache_specs", None)
    if own is not None:
        return [(name, own.get(name, group_spec.kv_cache_spec), name in own) for name in names]
    uniform = best is not group_spec or not _may_be_mixed(names, spec)
    return [(name, spec, uniform) for name in names]


def _may_be_mixed(names: list[str], spec: Any) -> bool:
    """Tell whether the one spec of a group may hide others: compressors and indexers share groups with other widths."""
    special = [name for name in names if layer_rules.is_indexer(name, spec)]
    return 0 < len(special) < len(names) or layer_rules.tokens_per_entry(State.COMPRESSED, [spec]) > 1


def _kind(manager: Any, spec: Any) -> ResumeKind:
    if not getattr(spec, "prefix_cacheable", True):
        return ResumeKind.NONE
    finder = getattr(type(manager), "find_longest_cache_hit", None)
    owner = getattr(finder, "__qualname__", "").split(".")[0]
    return _FINDERS.get(owner, ResumeKind.UNKNOWN)


def _group(
    number: int,
    manager: Any,
    group_spec: Any,
    members: list[tuple[str, Any, bool]],
    unit: Tokens,
    lookup_class: int,
    draft: bool,
) -> Group:
    spec = group_spec.kv_cache_spec
    kind = _kind(manager, spec)
    pairs = [(name, each) for name, each, _ in members] or [("", spec)]
    states = layer_rules.states_of(pairs)
    if kind is ResumeKind.UNKNOWN and State.UNKNOWN not in states:
        states = (State.UNKNOWN, *states)
    window = getattr(spec, "sliding_window", None) if kind is ResumeKind.WINDOW else None
    chunk = getattr(spec, "attention_chunk_size", None) if kind is ResumeKind.CHUNKED else None
    ratio = layer_rules.tokens_per_entry(states[0], [each for _, each in pairs])
    described = tuple(layer_rules.describe(name, each, own_spec=own) for name, each, own in members)
    block = int(manager.block_size)
    return Group(
        id=GroupId(number),
        name=_name(number, states[0], kind, block, ratio, window, chunk),
        states=states,
        kind=kind,
        block_size=block,
        tokens_per_entry=ratio,
        window_past_tokens=None if window is None else max(0, window - 1),
        chunk_tokens=chunk,
        draft=draft,
        fine_grained=bool(getattr(manager, "supports_fine_grained_hash_lookup", False)) and block > unit,
        requirement=_requirement(kind, draft, [name for name, _ in pairs]),
        layers=described,
        page_bytes=_group_bytes(described),
        spec=type(spec).__name__,
        replay_tokens=int(getattr(spec, "prefix_replay_tokens", 0) or 0),
        lookup_class=lookup_class,
    )


def _requirement(kind: ResumeKind, draft: bool, names: list[str]) -> Requirement:
    if kind is ResumeKind.NONE:
        return Requirement.TRANSIENT
    if draft and all(layer_rules.is_draft(name) for name in names):
        return Requirement.OPTIONAL
    return Requirement.REQUIRED


def _group_bytes(described: tuple[Layer, ...]) -> int | None:
    sizes = [layer.page_bytes for layer in described]
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _name(
    number: int, state: State, kind: ResumeKind, block: Tokens, ratio: int, window: Tokens | None, chunk: Tokens | None
) -> str:
    if state is State.UNKNOWN or kind is ResumeKind.UNKNOWN:
        stem = "unknown"
    elif kind is ResumeKind.NONE:
        stem = "ring" if state is State.TAIL else "scratch"
    elif kind is ResumeKind.RECURRENT:
        stem = "recurrent"
    elif state is State.COMPRESSED and ratio == 1:
        stem = "full"
    else:
        stem = str(state)
    detail = f"/w{window}" if window else f"/c{chunk}" if chunk else f"/m{ratio}" if ratio > 1 else ""
    return f"{stem}{block}{detail}#{number}"


def _lookup_classes(coordinator: Any, count: int) -> list[int]:
    """Number of the look-up class of each group; a group outside every class has one of its own."""
    numbers = list(range(count, 2 * count))
    for index, entry in enumerate(getattr(coordinator, "attention_groups", ())):
        for member in getattr(entry, "group_ids", None) or entry[1]:
            numbers[member] = index
    return numbers


def _draft_ids(coordinator: Any, managers: tuple[Any, ...]) -> frozenset[int]:
    """Groups that are looked up with a margin; groups of equal spec are marked together, as the engine does."""
    ids = getattr(coordinator, "eagle_group_ids", None)
    if ids is None:
        ids = range(len(managers)) if getattr(coordinator, "use_eagle", False) else ()
    marked = {number for number, manager in enumerate(managers) if getattr(manager, "use_eagle", False)}
    return frozenset(ids) | marked


def _margin_beyond_limit(coordinator: Any) -> bool:
    """Tell whether a margin is proved up to the last key: the look-up that does so brought a helper for its margins."""
    return hasattr(sys.modules.get(type(coordinator).__module__), "eagle_proof_margin")


def _hash_unit(coordinator: Any, managers: tuple[Any, ...]) -> Tokens:
    pool = getattr(coordinator, "block_pool", None)
    unit = getattr(pool, "hash_block_size", None) or getattr(coordinator, "hash_block_size", None)
    return int(unit or (managers[0].block_size if managers else 1))


def _alignment(coordinator: Any, managers: tuple[Any, ...]) -> Tokens:
    if len(managers) == 1:
        return int(managers[0].block_size)
    for name in ("_cache_hit_alignment_tokens", "scheduler_block_size", "lcm_block_size"):
        value = getattr(coordinator, name, None)
        if value:
            return int(value)
    return lcm(*(int(manager.block_size) for manager in managers)) if managers else 1
