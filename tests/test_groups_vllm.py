"""The mapping of vLLM's groups where its real objects cannot be had here: other versions, and specs of other builds."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.layers import layer_state
from agent.model.states import ResumeKind, State


class FullAttentionSpec:
    """Named like vLLM's."""

    block_size = 16
    page_size_bytes = 1_024


class SlidingWindowSpec:
    """Named like vLLM's."""

    block_size = 16
    sliding_window = 64
    page_size_bytes = 1_024


class TurboSpec:
    """A spec that only another build has."""

    block_size = 16


class FullAttentionManager:
    """Named like vLLM's."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def find_longest_cache_hit(self) -> None:
        """Stand for the look-up."""


class SlidingWindowManager(FullAttentionManager):
    """Named like vLLM's."""

    def find_longest_cache_hit(self) -> None:
        """Stand for the look-up."""


class TurboManager(FullAttentionManager):
    """A manager with a look-up of its own."""

    def find_longest_cache_hit(self) -> None:
        """Stand for the look-up."""


class HeirManager(FullAttentionManager):
    """A manager that inherits its look-up."""


@dataclass(slots=True)
class Coordinator:
    """What all versions have."""

    single_type_managers: tuple[Any, ...]
    kv_cache_config: Any
    extra: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.extra[name]
        except KeyError:
            raise AttributeError(name) from None


def engine(*pairs: tuple[Any, Any], **extra: Any) -> Any:
    """Make a cache manager of these (manager, spec) pairs; ``extra`` is what its version's coordinator has."""
    groups = [
        SimpleNamespace(layer_names=[f"model.layers.{i}.attn"], kv_cache_spec=spec) for i, (_, spec) in enumerate(pairs)
    ]
    coordinator = Coordinator(tuple(manager for manager, _ in pairs), SimpleNamespace(kv_cache_groups=groups), extra)
    return SimpleNamespace(coordinator=coordinator, enable_caching=True)


def test_an_old_coordinator() -> None:
    """Without margins, retention, partial hits and hash unit the geometry is derived from the groups."""
    full, window = FullAttentionSpec(), SlidingWindowSpec()
    source = engine(
        (FullAttentionManager(16), full),
        (SlidingWindowManager(32), window),
        attention_groups=[(full, [0], FullAttentionManager), (window, [1], SlidingWindowManager)],
    )
    geometry = geometry_of(source)
    assert (geometry.alignment, geometry.hash_unit, geometry.partial_hits) == (32, 16, False)
    assert geometry.retention_interval is None
    assert [group.lookup_class for group in geometry.groups] == [0, 1]
    assert [group.draft for group in geometry.groups] == [False, False]


def test_an_old_margin_flag() -> None:
    """A coordinator with one flag for all marks every group."""
    source = engine((FullAttentionManager(16), FullAttentionSpec()), use_eagle=True)
    assert geometry_of(source).groups[0].draft


def test_a_scheduler_is_as_good_as_its_cache_manager() -> None:
    """The manager is found through the scheduler."""
    source = SimpleNamespace(kv_cache_manager=engine((FullAttentionManager(16), FullAttentionSpec())))
    assert geometry_of(source).groups[0].kind is ResumeKind.FULL


def test_an_unknown_manager_is_not_dropped() -> None:
    """Its group keeps its place, its spec is named, and its kind and state are unknown."""
    source = engine((FullAttentionManager(16), FullAttentionSpec()), (TurboManager(16), TurboSpec()))
    geometry = geometry_of(source)
    unknown = geometry.groups[1]
    assert (unknown.id, unknown.kind, unknown.state, unknown.spec) == (
        1,
        ResumeKind.UNKNOWN,
        State.UNKNOWN,
        "TurboSpec",
    )
    assert unknown.name == "unknown16#1"


def test_an_inherited_look_up_is_known() -> None:
    """A manager of another build that inherits vLLM's look-up follows its rule."""
    assert geometry_of(engine((HeirManager(16), FullAttentionSpec()))).groups[0].kind is ResumeKind.FULL


def test_layers_of_deepseek_v4_by_name() -> None:
    """Indexer keys, the indexer's compressor, compressors and windows are told apart by their names."""
    window = SlidingWindowSpec()
    full = FullAttentionSpec()
    prefix = "model.layers.2.attn"
    assert layer_state(f"{prefix}.indexer.k_cache", full) is State.INDEXER
    assert layer_state(f"{prefix}.indexer.compressor.state_cache", window) is State.TAIL
    assert layer_state(f"{prefix}.compressor.state_cache", window) is State.TAIL
    assert layer_state(f"{prefix}.swa_cache", window) is State.SWA
    assert layer_state(prefix, full) is State.COMPRESSED
    assert layer_state(prefix, TurboSpec()) is State.UNKNOWN
