"""Cache groups of real models, and random mixes, on vLLM's own cache manager: no model, no GPU.

Invariant: everything that is built here is vLLM's own class; needs vLLM, so only ``tests/engine`` imports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from random import Random
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from tests.support.engine_specs import Absent, has_field, make_manager, make_spec, spec_class

init_none_hash(sha256)

CircularBufferSpec: Any = spec_class("CircularBufferSpec")
HAS_RING = CircularBufferSpec is not Absent
HAS_BOUNDED_REPLAY = has_field("SlidingWindowMLASpec", "bounded_replay")
"""What older versions of vLLM lack. Those without rings refuse several groups of one and the same spec, too."""

_BF16 = torch.bfloat16
_HEADS: dict[str, Any] = {"num_kv_heads": 2, "head_size": 32, "dtype": _BF16}
_V4: dict[str, Any] = {
    "num_kv_heads": 1, "head_size": 512, "dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla", "alignment": 576,
    "model_version": "deepseek_v4", "state_content_bytes": 584,
}  # fmt: skip


def full(block: int, heads: int = 2) -> FullAttentionSpec:
    """Ordinary attention; another number of heads makes another spec."""
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=32, dtype=_BF16)


def mla(block: int) -> MLAAttentionSpec:
    """Latents of DeepSeek-V3."""
    return MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=576, dtype=_BF16)


def rswa(block: int) -> RSWASpec:
    """Prefix always visible, window over the generated tokens."""
    return RSWASpec(block_size=block, rswa_window=64, **_HEADS)


def window(block: int, width: int, heads: int = 2) -> SlidingWindowSpec:
    """Sliding-window attention."""
    return SlidingWindowSpec(block_size=block, num_kv_heads=heads, head_size=32, dtype=_BF16, sliding_window=width)


def chunked(block: int, chunk: int) -> ChunkedLocalAttentionSpec:
    """Chunked-local attention."""
    return ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=chunk, **_HEADS)


def mamba(block: int) -> MambaSpec:
    """Recurrent state, kept at block boundaries."""
    return MambaSpec(block_size=block, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align")


def ring(block: int) -> KVCacheSpec:
    """A ring that is rebuilt for each request."""
    return CircularBufferSpec(block_size=block, **_HEADS)


def v4_main() -> MLAAttentionSpec:
    """DeepSeek-V4: compressed entries, with the indexer's keys in the same group."""
    return make_spec("MLAAttentionSpec", block_size=256, tokens_per_state=4, **_V4)


def v4_window(*, bounded_replay: bool = False) -> SlidingWindowMLASpec:
    """DeepSeek-V4: window of 128 tokens; V4.1 computes it again instead of keeping it."""
    replay = {"bounded_replay": True} if bounded_replay else {}
    return SlidingWindowMLASpec(block_size=64, sliding_window=128, **replay, **_V4)


def v4_state(block: int, width: int, size: int) -> SlidingWindowMLASpec:
    """DeepSeek-V4: open group of a compressor, kv and score in float32."""
    return SlidingWindowMLASpec(
        block_size=block, num_kv_heads=1, head_size=size, dtype=torch.float32, sliding_window=width, alignment=576
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One engine configuration."""

    name: str
    groups: tuple[KVCacheSpec, ...]
    layers: tuple[tuple[str, ...], ...] = ()
    """Layer names of each group; made up where empty."""
    unit: int
    """Hash unit in tokens."""
    retention: int | None = 0
    drafts: frozenset[int] = frozenset()
    pages: int = 3000
    longest: int = 2048
    """Longest prompt worth trying, in tokens."""

    @property
    def alignment(self) -> int:
        """What vLLM calls the scheduler block size."""
        return lcm(*(spec.block_size for spec in self.groups))

    def manager(self) -> KVCacheManager:
        """Build vLLM's cache manager with these groups."""
        layers = self.layers or tuple((f"layer{i}",) for i in range(len(self.groups)))
        specs = [
            KVCacheGroupSpec(list(names), spec, is_eagle_group=i in self.drafts)
            for i, (names, spec) in enumerate(zip(layers, self.groups, strict=True))
        ]
        return make_manager(
            specs,
            pages=self.pages,
            retention=self.retention,
            max_model_len=1 << 20,
            scheduler_block_size=self.alignment,
            hash_block_size=self.unit,
            max_in_flight_tokens=8192,
            use_eagle=bool(self.drafts),
            log_stats=True,
        )


def deepseek_v4(retention: int | None = 0, **more: Any) -> Setup:
    """DeepSeek-V4's five groups as vLLM 0.32 makes them (two window groups of equal spec)."""
    return Setup(
        name="deepseek-v4",
        groups=(v4_window(), v4_window(), v4_main(), v4_state(4, 8, 2048), v4_state(8, 128, 1024)),
        layers=(
            ("model.layers.0.attn.swa_cache", "model.layers.2.attn.swa_cache"),
            ("model.layers.1.attn.swa_cache", "model.layers.3.attn.swa_cache"),
            ("model.layers.2.attn.indexer.k_cache", "model.layers.2.attn", "model.layers.3.attn"),
            ("model.layers.2.attn.compressor.state_cache", "model.layers.2.attn.indexer.compressor.state_cache"),
            ("model.layers.3.attn.compressor.state_cache",),
        ),
        unit=4,
        retention=retention,
        **more,
    )


def deepseek_v4_1(retention: int | None = 0, **more: Any) -> Setup:
    """Like DeepSeek-V4.1: windows are computed again after a hit instead of being kept, tails are kept."""
    groups = (v4_window(bounded_replay=True), v4_main(), v4_state(4, 8, 2048), v4_state(8, 128, 1024))
    layers = (
        ("model.layers.0.attn.swa_cache",),
        ("model.layers.2.attn.indexer.k_cache", "model.layers.2.attn"),
        ("model.layers.2.attn.compressor.state_cache",),
        ("model.layers.3.attn.compressor.state_cache",),
    )
    return Setup(name="deepseek-v4.1", groups=groups, layers=layers, unit=4, retention=retention, **more)


def gemma3(retention: int | None = 0, block: int = 16, width: int = 1024, **more: Any) -> Setup:
    """Gemma-3: two window groups, one full."""
    groups = (window(block, width), window(block, width), full(block))
    return Setup(name="gemma-3", groups=groups, unit=block, retention=retention, **more)


def gpt_oss(retention: int | None = 0, **more: Any) -> Setup:
    """gpt-oss: windows of 128 and full attention."""
    return Setup(name="gpt-oss", groups=(window(16, 128), full(16)), unit=16, retention=retention, **more)


def llama4(**more: Any) -> Setup:
    """Llama-4: three chunked-local groups, one full. The chunk is scaled down from 8,192 tokens."""
    groups = (chunked(16, 256), chunked(16, 256), chunked(16, 256), full(16))
    return Setup(name="llama-4", groups=groups, unit=16, **more)


def mamba_hybrid(retention: int | None = 0, unit: int | None = None, **more: Any) -> Setup:
    """Qwen3-Next-like: three recurrent groups and one full; a smaller unit turns partial hits on."""
    groups = (mamba(64), mamba(64), mamba(64), full(64))
    name = "mamba-hybrid" if unit is None else "mamba-hybrid/partial"
    return Setup(name=name, groups=groups, unit=unit or 64, retention=retention, **more)


def random_setup(random: Random) -> Setup:
    """Make up a configuration that vLLM accepts."""
    makers = (_random_single, _random_equal_blocks, _random_blocks, _random_blocks, _random_partial, _random_partial)
    while True:
        setup = random.choice(makers)(random)
        first, *others = setup.groups
        if HAS_RING or not others or any(other != first for other in others):
            return setup


def _random_width(random: Random, block: int) -> int:
    return (
        random.choice([1, 2, block - 1, block, block + 1, 2 * block, 3 * block + 1, random.randint(1, 9 * block)]) or 1
    )


def _random_kind(random: Random, block: int, kinds: Sequence[str]) -> KVCacheSpec:
    match random.choice(kinds):
        case "full":
            return random.choice([full(block), full(block), mla(block), full(block, 4), rswa(block)])
        case "window":
            return window(block, _random_width(random, block), random.choice([2, 4]))
        case "mamba":
            return mamba(block)
        case "chunked":
            # A chunk that is no multiple of the block is what the engine gets wrong.
            odd = random.random() < 0.15
            return chunked(block, random.randint(2, 6 * block) if odd else block * random.randint(1, 6))
        case _:
            return ring(block) if HAS_RING else full(block)


def _finish(random: Random, name: str, groups: list[KVCacheSpec], unit: int) -> Setup:
    alignment = lcm(*(spec.block_size for spec in groups))
    sparse = any(isinstance(spec, SlidingWindowSpec | MambaSpec) for spec in groups)
    retention = random.choice([None, 0, alignment * random.randint(1, 4)]) if sparse else random.choice([None, 0])
    drafts: frozenset[int] = frozenset()
    # vLLM refuses margins for chunked-local groups; a ring has none.
    possible = [
        i for i, spec in enumerate(groups) if not isinstance(spec, ChunkedLocalAttentionSpec | CircularBufferSpec)
    ]
    if random.random() < 0.35 and possible:
        drafts = frozenset(random.sample(possible, random.randint(1, min(2, len(possible)))))
        # A margin is decided for all groups of equal spec.
        if any(isinstance(spec, CircularBufferSpec) for spec in groups):
            drafts = frozenset()
    return Setup(
        name=name, groups=tuple(groups), unit=unit, retention=retention, drafts=drafts,
        longest=random.randint(4, 24) * alignment, pages=1200,
    )  # fmt: skip


def _random_single(random: Random) -> Setup:
    block = random.choice([2, 4, 8, 16])
    kind = random.choice(["full", "window", "window", "mamba", "chunked"])
    return _finish(random, "one group", [_random_kind(random, block, [kind])], block)


def _random_equal_blocks(random: Random) -> Setup:
    block = random.choice([2, 4, 8, 16])
    kinds = ["full", "window", "window", "mamba", "chunked", "ring"]
    groups = [_random_kind(random, block, kinds) for _ in range(random.randint(2, 5))]
    return _with_cacheable(random, "equal blocks", groups, block)


def _random_blocks(random: Random) -> Setup:
    base = random.choice([2, 4])
    groups = [
        _random_kind(random, base * random.choice([1, 2, 3, 4, 8]), ["full", "window", "window", "mamba"])
        for _ in range(random.randint(2, 5))
    ]
    unit = gcd(*(spec.block_size for spec in groups))
    if any(isinstance(spec, MambaSpec) and spec.block_size > unit for spec in groups):
        # A unit below a recurrent block would turn partial hits on: another family does that.
        groups = [spec for spec in groups if not isinstance(spec, MambaSpec)] or [full(base), window(base, 5)]
        unit = gcd(*(spec.block_size for spec in groups))
    if len(groups) == 1:
        groups.append(full(groups[0].block_size))
        unit = groups[0].block_size
    return _finish(random, "mixed blocks", groups, unit)


def _random_partial(random: Random) -> Setup:
    unit = random.choice([2, 4])
    block = unit * random.choice([2, 3, 4, 8])
    groups: list[KVCacheSpec] = [mamba(block)]
    for _ in range(random.randint(1, 3)):
        other = unit * random.choice([1, 2, 4, 8])
        groups.append(_random_kind(random, random.choice([block, block, other]), ["full", "full", "mamba"]))
        if random.random() < 0.3:
            groups.append(window(unit, _random_width(random, unit)))
    random.shuffle(groups)
    return _finish(random, "partial hits", groups, unit)


def _with_cacheable(random: Random, name: str, groups: list[KVCacheSpec], block: int) -> Setup:
    if all(isinstance(spec, CircularBufferSpec) for spec in groups):
        groups.append(full(block))
    return _finish(random, name, groups, block)
