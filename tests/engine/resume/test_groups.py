"""vLLM's own specs and managers, mapped to states and rules."""

import pytest
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, UniformTypeKVCacheSpecs

from agent.engines.vllm.groups import geometry_of
from agent.model.groups import Group
from agent.model.states import Requirement, ResumeKind, State
from tests.support import vllm_groups as make


def only(setup: make.Setup, number: int = 0) -> Group:
    """Read one group of a configuration."""
    return geometry_of(setup.manager()).groups[number]


def test_deepseek_v4() -> None:
    """Five groups: windows, entries with the indexer, two tails; the indexer's own compressor is noted in the first."""
    geometry = geometry_of(make.deepseek_v4().manager())
    assert (geometry.hash_unit, geometry.alignment, geometry.partial_hits) == (4, 256, False)
    assert [group.states for group in geometry.groups] == [
        (State.SWA,),
        (State.SWA,),
        (State.COMPRESSED, State.INDEXER),
        (State.TAIL, State.INDEXER),
        (State.TAIL,),
    ]
    assert [group.kind for group in geometry.groups] == [
        ResumeKind.WINDOW,
        ResumeKind.WINDOW,
        ResumeKind.FULL,
        ResumeKind.WINDOW,
        ResumeKind.WINDOW,
    ]
    assert [group.block_size for group in geometry.groups] == [64, 64, 256, 4, 8]
    assert [group.window_past_tokens for group in geometry.groups] == [127, 127, None, 7, 127]
    assert [group.tokens_per_entry for group in geometry.groups][2:] == [4, 4, 128]
    assert geometry.groups[0].lookup_class == geometry.groups[1].lookup_class
    assert len({group.lookup_class for group in geometry.groups}) == 4
    assert [layer.state for layer in geometry.groups[2].layers] == [
        State.INDEXER,
        State.COMPRESSED,
        State.COMPRESSED,
    ]
    assert len({group.name for group in geometry.groups}) == 5


def test_bytes_of_a_mixed_group_are_unknown_to_the_scheduler() -> None:
    """The scheduler shows the first layer's spec for a mixed group: no bytes are made up from it."""
    geometry = geometry_of(make.deepseek_v4().manager())
    assert geometry.groups[2].page_bytes is None
    assert {layer.page_bytes for layer in geometry.groups[2].layers} == {None}
    assert geometry.groups[0].page_bytes == 2 * 37_440


def test_bytes_of_a_mixed_group_come_from_a_workers_copy() -> None:
    """With the worker's configuration every layer has its own spec and bytes."""
    setup = make.deepseek_v4()
    names = setup.layers[2]
    entries, keys = make.v4_main(), make.mla(256)
    mixed = UniformTypeKVCacheSpecs(
        block_size=256, kv_cache_specs=dict(zip(names, (keys, entries, entries), strict=True))
    )
    groups = [
        KVCacheGroupSpec(list(layers), mixed if i == 2 else spec)
        for i, (layers, spec) in enumerate(zip(setup.layers, setup.groups, strict=True))
    ]
    worker = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=groups)
    group = geometry_of(setup.manager(), worker).groups[2]
    assert [layer.page_bytes for layer in group.layers] == [keys.page_size_bytes, *[entries.page_size_bytes] * 2]
    assert group.page_bytes == keys.page_size_bytes + 2 * entries.page_size_bytes
    assert group.states == (State.COMPRESSED, State.INDEXER)


@pytest.mark.parametrize(
    ("spec", "kind", "state"),
    [
        (make.full(16), ResumeKind.FULL, State.COMPRESSED),
        (make.mla(16), ResumeKind.FULL, State.COMPRESSED),
        (make.rswa(16), ResumeKind.FULL, State.COMPRESSED),
        (make.window(16, 100), ResumeKind.WINDOW, State.SWA),
        (make.chunked(16, 64), ResumeKind.CHUNKED, State.SWA),
        (make.mamba(16), ResumeKind.RECURRENT, State.COMPRESSED),
    ],
)
def test_each_kind_alone(spec: object, kind: ResumeKind, state: State) -> None:
    """Every cacheable spec has its rule and its state, and one group aligns to its block."""
    setup = make.Setup(name="one", groups=(spec,), unit=16, retention=None)
    geometry = geometry_of(setup.manager())
    group = geometry.groups[0]
    assert (group.kind, group.state, group.requirement) == (kind, state, Requirement.REQUIRED)
    assert (geometry.alignment, geometry.hash_unit) == (16, 16)
    assert group.spec == type(spec).__name__


def test_windows_and_chunks_in_tokens() -> None:
    """A window of W looks at W - 1 past tokens; a chunk keeps its size."""
    assert only(make.Setup(name="w", groups=(make.window(16, 100),), unit=16)).window_past_tokens == 99
    assert only(make.Setup(name="c", groups=(make.chunked(16, 64),), unit=16)).chunk_tokens == 64


def test_a_ring_is_shown_and_never_required() -> None:
    """A circular buffer is a tail that is rebuilt for each request."""
    setup = make.Setup(name="ring", groups=(make.ring(16), make.full(16), make.window(16, 40)), unit=16)
    group = only(setup)
    assert (group.kind, group.state, group.requirement) == (ResumeKind.NONE, State.TAIL, Requirement.TRANSIENT)


def test_bounded_replay_is_not_kept() -> None:
    """DeepSeek-V4.1 keeps no windows: the group is transient and its replay is named."""
    setup = make.Setup(name="v4.1", groups=(make.v4_window(bounded_replay=True), make.v4_main()), unit=64)
    group = only(setup)
    assert (group.kind, group.state, group.replay_tokens) == (ResumeKind.NONE, State.SWA, 128)


def test_partial_hits() -> None:
    """A unit below the recurrent block turns hits inside blocks on, and the alignment is the unit."""
    geometry = geometry_of(make.mamba_hybrid(unit=16).manager())
    assert (geometry.partial_hits, geometry.alignment, geometry.hash_unit) == (True, 16, 16)
    assert all(group.fine_grained for group in geometry.groups)


def test_draft_groups() -> None:
    """A flagged group is speculative, and with it every group of equal spec; nothing flagged marks them all."""
    groups = (make.full(16), make.window(16, 40), make.window(16, 40))
    flagged = make.Setup(name="d", groups=groups, unit=16, drafts=frozenset({1}))
    assert [group.draft for group in geometry_of(flagged.manager()).groups] == [False, True, True]


def test_a_draft_layer_is_optional_by_its_name() -> None:
    """A speculative group of draft layers only is optional; one that shares layers with the model is required."""
    groups = (make.full(16), make.full(16, heads=4))
    layers = (("model.layers.0.attn",), ("mtp.layers.0.attn",))
    setup = make.Setup(name="d", groups=groups, layers=layers, unit=16, drafts=frozenset({1}))
    assert [group.requirement for group in geometry_of(setup.manager()).groups] == [
        Requirement.REQUIRED,
        Requirement.OPTIONAL,
    ]


def test_deepseek_v3_2_indexer_shares_the_group() -> None:
    """One group holds latents and indexer keys: both states are named although the spec is the latents'."""
    layers = (("model.layers.0.self_attn.attn", "model.layers.0.self_attn.indexer.k_cache"),)
    group = only(make.Setup(name="v3.2", groups=(make.mla(64),), layers=layers, unit=64))
    assert group.states == (State.COMPRESSED, State.INDEXER)
    assert group.page_bytes is None


def test_an_engine_without_prefix_caching() -> None:
    """Without caching the geometry says so."""
    config = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], make.full(16))])
    manager = KVCacheManager(
        config, max_model_len=64, scheduler_block_size=16, hash_block_size=16, enable_caching=False
    )
    assert geometry_of(manager).caching is False


def test_a_manager_with_a_look_up_of_its_own_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that overrides the look-up is shown as unknown, with its spec, and never dropped."""
    manager = make.gemma3().manager()
    inner = manager.coordinator.single_type_managers[0]

    class NewManager(type(inner)):  # type: ignore[misc]
        """A manager that kvctl has never seen."""

        @classmethod
        def find_longest_cache_hit(cls, *args: object, **more: object) -> object:
            """Look up by a rule that nobody knows."""
            return super().find_longest_cache_hit(*args, **more)

    monkeypatch.setattr(inner, "__class__", NewManager)
    group = geometry_of(manager).groups[0]
    assert (group.kind, group.state, group.spec) == (ResumeKind.UNKNOWN, State.UNKNOWN, "SlidingWindowSpec")
