"""vLLM's real cache core without a model: managers of the group mixes that the feed is tested on, and requests.

Needs vLLM; nothing here replaces any part of it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.engine_specs import make_manager, make_spec

KINDS = ("gemma3", "deepseek_v4", "mamba_partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One cache manager and what requests for it need."""

    kind: str
    manager: Any
    hasher: Any
    hash_unit: int

    @property
    def pool(self) -> Any:
        """Its block pool."""
        return self.manager.block_pool

    @property
    def managers(self) -> Sequence[Any]:
        """Its managers, one a group."""
        managers: Sequence[Any] = self.manager.coordinator.single_type_managers
        return managers

    def request(self, name: str, tokens: Sequence[int], **options: Any) -> Any:
        """Make a request; it is not added anywhere."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        return Request(
            name,
            list(tokens),
            SamplingParams(max_tokens=64, ignore_eos=True),
            None,
            block_hasher=self.hasher,
            **options,
        )


def _gemma3() -> tuple[list[Any], int, int]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    common = {"block_size": 16, "num_kv_heads": 2, "head_size": 32, "dtype": torch.bfloat16}
    window = SlidingWindowSpec(sliding_window=1024, **common)
    return [window, window, FullAttentionSpec(**common)], 16, 16


def _deepseek_v4() -> tuple[list[Any], int, int]:
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

    fp8 = {
        "num_kv_heads": 1,
        "head_size": 512,
        "dtype": torch.uint8,
        "cache_dtype_str": "fp8_ds_mla",
        "alignment": 576,
        "model_version": "deepseek_v4",
        "state_content_bytes": 584,
    }
    state = {"num_kv_heads": 1, "dtype": torch.float32, "alignment": 576}
    main = make_spec("MLAAttentionSpec", block_size=256, tokens_per_state=4, **fp8)
    window = SlidingWindowMLASpec(block_size=64, sliding_window=128, **fp8)
    ratio_4 = SlidingWindowMLASpec(block_size=4, head_size=2048, sliding_window=8, **state)
    ratio_128 = SlidingWindowMLASpec(block_size=8, head_size=1024, sliding_window=128, **state)
    return [window, window, main, ratio_4, ratio_128], 256, 4


def _mamba_partial() -> tuple[list[Any], int, int]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    full = FullAttentionSpec(block_size=64, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    mamba = MambaSpec(block_size=64, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    return [full, mamba], 64, 16


_GROUPS: dict[str, Callable[[], tuple[list[Any], int, int]]] = {
    "gemma3": _gemma3,
    "deepseek_v4": _deepseek_v4,
    "mamba_partial": _mamba_partial,
}


def group_specs(kind: str) -> tuple[list[Any], int, int]:
    """Return the spec of each group of ``kind``, the scheduler's block and the unit of its hashes. Tokens."""
    return _GROUPS[kind]()


def make_core(kind: str, pages: int, *, retention: int | None = 0, max_tokens: int = 65536) -> Core:
    """Make the real manager for the groups of ``kind`` over a pool of ``pages``."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    init_none_hash(sha256)
    specs, scheduler_block, hash_unit = group_specs(kind)
    manager = make_manager(
        [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)],
        pages=pages,
        retention=retention,
        max_model_len=max_tokens,
        scheduler_block_size=scheduler_block,
        hash_block_size=hash_unit,
        max_in_flight_tokens=8192,
    )
    return Core(kind=kind, manager=manager, hasher=get_request_block_hasher(hash_unit, sha256), hash_unit=hash_unit)


@dataclass(slots=True)
class Totals:
    """What a workload did."""

    requests: int = 0
    hits: int = 0
    resets: int = 0
    evictions: int = 0
    copies: int = 0
    """Copy-on-write copies of partial pages."""


class Workload:
    """Random arrivals with shared prefixes, chunked prefills, decoding, frees, evictions and resets.

    Args:
        core: The manager to drive.
        rng: Source of all choices.
        before_lookup: Called before each look-up with the request.
        prompt_tokens: Longest shared prefix.
    """

    def __init__(
        self,
        core: Core,
        rng: random.Random,
        *,
        before_lookup: Callable[[Any], object] = id,
        prompt_tokens: int = 2500,
    ) -> None:
        self.core = core
        self.totals = Totals()
        self.running: list[Any] = []
        self._rng = rng
        self._before_lookup = before_lookup
        self._prompt = prompt_tokens
        self._texts = [[rng.randint(1, 1000) for _ in range(prompt_tokens + 1500)] for _ in range(6)]

    def schedule(self) -> list[str]:
        """Do what one schedule call does to the cache; return the requests it scheduled."""
        rng, manager = self._rng, self.core.manager
        manager.new_step_starts()
        scheduled = [request.request_id for request in list(self.running) if self._advance(request)]
        scheduled += [name for _ in range(rng.randint(0, 3)) if (name := self._admit()) is not None]
        self._copy_on_write()
        if rng.random() < 0.02:
            self.core.pool.evict_blocks(set(rng.sample(range(1, len(self.core.pool.blocks)), 20)))
            self.totals.evictions += 1
        if rng.random() < 0.01:
            self.finish_all()
            self.totals.resets += bool(manager.reset_prefix_cache())
        return scheduled

    def _admit(self) -> str | None:
        rng, manager = self._rng, self.core.manager
        self.totals.requests += 1
        text = rng.choice(self._texts)[: rng.randint(50, self._prompt)]
        tail = [rng.randint(1, 1000) for _ in range(rng.randint(1, 200))]
        request = self.core.request(str(self.totals.requests), text + tail)
        self._before_lookup(request)
        blocks, hit, boundary = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        self.totals.hits += hit > 0
        count = self._chunk(request, hit, rng.choice([512, 4096]))
        if manager.allocate_slots(request, count, hit, blocks) is None:
            return None
        request.num_computed_tokens = hit + count
        self.running.append(request)
        return str(request.request_id)

    def _advance(self, request: Any) -> bool:
        manager = self.core.manager
        if request.num_computed_tokens >= request.num_tokens:
            request.append_output_token_ids(self._rng.randint(1, 1000))
        count = self._chunk(request, request.num_computed_tokens, 1024)
        if manager.allocate_slots(request, count) is None or self._rng.random() < 0.06:
            manager.free(request)
            self.running.remove(request)
            return False
        request.num_computed_tokens += count
        return True

    def _chunk(self, request: Any, start: int, most: int) -> int:
        """Return how many tokens to schedule; Mamba's states are cached where a chunk of the prompt ends."""
        end = min(start + most, int(request.num_tokens))
        if self.core.kind == "mamba_partial" and start < request.num_prompt_tokens:
            unit, block = self.core.hash_unit, int(self.core.managers[0].block_size)
            boundary = (int(request.num_prompt_tokens) - 1) // unit * unit
            for stop in (boundary // block * block, boundary):
                if start < stop < end:
                    end = stop
            if end < boundary and end - end % block > start:
                end -= end % block
        return end - start

    def _copy_on_write(self) -> None:
        """Release both ends of each pending copy, as the scheduler does once the step has run."""
        for manager in self.core.managers:
            for source, target in manager.take_pending_cow_copies():
                self.core.pool.free_blocks([source])
                self.core.pool.free_blocks([target])
                self.totals.copies += 1

    def finish_all(self) -> None:
        """End every request."""
        for request in self.running:
            self.core.manager.free(request)
        self.running.clear()
