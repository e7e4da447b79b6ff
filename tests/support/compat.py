"""What a CPU without Triton needs to run the tiny DeepSeek-V4 and Nemotron-H: torch stand-ins and two engine repairs.

Invariant: self-contained (torch and vllm only, imported inside functions), because a copy of this file is also loaded
as a vLLM plugin into server processes; see ``tests.support.server``. Test equipment for vLLM 0.32: one context
parallel rank, no images.

DeepSeek-V4 plans its batches with Triton kernels that read and write small integer tensors. Each stand-in below does
the same with torch, for the whole launch grid at once, and is bound by the parameter names of the kernel it replaces.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

Arguments = Mapping[str, Any]
StandIn = Callable[[int, Arguments], None]


class TorchKernel:
    """Looks like a Triton kernel (``kernel[grid](...)``) and runs a stand-in."""

    def __init__(self, kernel: Any, stand_in: StandIn) -> None:
        names = getattr(kernel, "arg_names", None)
        self.func = stand_in
        self.constexprs = None
        self.arg_names = tuple(names or inspect.signature(getattr(kernel, "func", kernel)).parameters)
        self.__name__ = stand_in.__name__

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return the launcher for a grid; its first dimension is what the stand-ins need."""

        def launch(*positional: Any, **named: Any) -> None:
            self.func(int(grid[0]), dict(zip(self.arg_names, positional, strict=False)) | named)

        return launch


def _store(target: Any, values: Any) -> None:
    target.copy_(values.to(target.dtype))


def _request_of(starts: Any, tokens: Any, requests: int) -> Any:
    """Return the request that each token position belongs to; positions beyond the last token get the last request."""
    import torch

    return torch.searchsorted(starts[1 : requests + 1].contiguous(), tokens, right=True).clamp(max=requests - 1)


def token_requests(_grid: int, a: Arguments) -> None:
    """Map tokens to requests; tokens past ``num_mapped`` to request 0."""
    import torch

    tokens = torch.arange(a["num_tokens"], dtype=a["query_start_loc"].dtype)
    owner = _request_of(a["query_start_loc"], tokens, a["num_reqs"])
    _store(a["output"][: a["num_tokens"]], torch.where(tokens < a["num_mapped"], owner, 0))


def indexer_decode(_grid: int, a: Arguments) -> None:
    """Give every decode token of the indexer a row of its own: context length and block table."""
    import torch

    count, starts = a["num_tokens"], a["query_start_loc"][: a["num_reqs"] + 1].long()
    tokens = torch.arange(count)
    owner = _request_of(starts, tokens, a["num_reqs"])
    live = tokens < starts[-1]
    length = a["seq_lens"][owner].long() - starts[owner + 1] + tokens + 1
    _store(a["output_seq_lens"][:count], torch.where(live, length, 0))
    a["output_seq_lens"][count : a["capacity"]] = 0
    a["decode_lens"][:count] = 1
    _store(a["indices"][:count], torch.where(live, owner, a["num_reqs"] + tokens - starts[-1]))
    width = a["BLOCK_COLS"]
    rows = a["block_table"][owner, :width]
    _store(a["output_block_table"][:count, :width], torch.where(live[:, None], rows, 0))
    _store(a["per_req_lens"][: a["num_reqs"]], starts.diff())


def prefill_lengths(_grid: int, a: Arguments) -> None:
    """Tokens to gather for each prefill: its new tokens and at most a window before them."""
    first, count = a["num_decodes"], a["num_prefills"]
    new = a["query_start_loc_ptr"].diff()[first : first + count]
    before = a["seq_lens_ptr"][first : first + count] - new - a["replay_start_ptr"][first : first + count]
    _store(a["prefill_gather_lens_ptr"][:count], new + before.clamp(min=0, max=a["window_size"] - 1))


def window_slots(grid: int, a: Arguments) -> None:
    """Slots of the window that each token attends to, and how many there are."""
    import torch

    if a["HAS_IMAGE"]:
        raise NotImplementedError("images are not part of the tiny model")
    tokens = torch.arange(a["token_offset"], a["token_offset"] + grid)
    live = a["is_valid_token_ptr"][tokens].bool()
    owner = a["token_to_req_indices_ptr"][tokens].long()
    starts = a["query_start_loc_ptr"].long()
    position = a["seq_lens_ptr"][owner].long() - starts[owner + 1] + tokens
    oldest = (position - a["window_size"] + 1).clamp(min=0).maximum(a["replay_start_ptr"][owner].long())
    length = torch.where(live, position + 1 - oldest, 0)
    column = torch.arange(a["index_width"])
    seen = oldest[:, None] + column
    table, size = a["block_table_ptr"], a["block_size"]
    page = table[owner[:, None], (seen // size).clamp(max=table.shape[1] - 1)].long()
    slots = torch.where(column < length[:, None], page * size + seen % size, -1)
    flat = a["swa_indices_ptr"].view(a["swa_indices_ptr"].shape[0], -1)
    _store(flat[:grid, : a["index_width"]], slots)
    _store(a["swa_lens_ptr"][:grid], length)


def uniform_decode(grid: int, a: Arguments) -> None:
    """Split requests of equal decode length into single-token rows."""
    import torch

    row = torch.arange(grid)
    per_request = a["max_decode_len"]
    owner = row // per_request
    length = a["seq_lens_ptr"][owner] - per_request + row % per_request + 1
    _store(a["decode_seq_lens_ptr"][:grid], length.clamp(min=0))
    source, target = a["block_table_ptr"], a["expanded_block_table_ptr"]
    width = min(source.shape[1], target.shape[1])
    target[:grid, :width] = source[owner, :width]
    a["decode_lens_ptr"][:grid] = 1


def prefill_chunks(grid: int, a: Arguments) -> None:
    """Range of compressed keys that each query token of a chunk may see, and the sequence of each compressed key."""
    import torch

    if a["DCP_WORLD"] != 1:
        raise NotImplementedError("one context parallel rank")
    first, last = a["query_slice_start"], a["query_slice_stop"]
    for sequence in range(grid):
        begin, end = (int(value) for value in a["query_start_loc_ptr"][sequence : sequence + 2])
        keys = a["cu_compressed_seq_lens_ptr"][sequence : sequence + 2]
        a["token_to_seq_ptr"][int(keys[0]) : int(keys[1])] = sequence
        low, high = max(begin, first), min(end, last)
        if high <= low:
            continue
        base = int(a["row_start_cu_compressed_seq_lens_ptr"][sequence])
        context = int(a["uncompressed_seq_lens_ptr"][sequence]) - end + torch.arange(low, high) + 1
        a["cu_compressed_seq_len_ks_ptr"][low - first : high - first] = base
        _store(a["cu_compressed_seq_len_ke_ptr"][low - first : high - first], base + context // a["COMPRESS_RATIO"])


def compressed_slots(grid: int, a: Arguments) -> None:
    """Slot of the compressed entry that each token completes; the pad id where it completes none."""
    import torch

    if a["dcp_world_size"] != 1:
        raise NotImplementedError("one context parallel rank")
    ratio, pad, size, table = a["COMPRESS_RATIO"], a["PAD_ID"], a["block_size"], a["block_table_ptr"]
    for sequence in range(grid):
        begin, end = (int(value) for value in a["query_start_loc_ptr"][sequence : sequence + 2])
        if end <= begin:
            continue
        position = torch.arange(end - begin) + int(a["seq_lens_ptr"][sequence]) - (end - begin)
        entry = position // ratio
        page = table[sequence, (entry // size).clamp(max=table.shape[1] - 1)].long()
        completes = ((position + 1) % ratio == 0) & (a["slot_mapping_ptr"][begin:end] != pad)
        slots = torch.where(completes, page * size + entry % size, pad)
        _store(a["compressed_slot_mapping_ptr"][begin:end], slots)


def install_deepseek_v4() -> None:
    """Replace the planning kernels where there is no Triton, and complete the CPU builder's dictionary."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        return
    from vllm.models.deepseek_v4.cpu.cpu_mla import DeepseekV4CPUSparseSWAMetadataBuilder as Builder
    from vllm.v1.attention.backends.mla import compressor_utils, indexer, sparse_swa
    from vllm.v1.attention.ops import metadata

    for module, name, stand_in in (
        (metadata, "_token_request_mapping_kernel", token_requests),
        (metadata, "_indexer_decode_metadata_kernel", indexer_decode),
        (sparse_swa.ComputePrefillMetadataKernel, "kernel", prefill_lengths),
        (sparse_swa.ComputeSWAIndicesAndLensKernel, "kernel", window_slots),
        (indexer.PrepareUniformDecodeKernel, "kernel", uniform_decode),
        (indexer.BuildPrefillChunkMetadataKernel, "kernel", prefill_chunks),
        (compressor_utils.CompressedSlotMappingKernel, "kernel", compressed_slots),
    ):
        setattr(module, name, TorchKernel(getattr(module, name), stand_in))

    # The CPU builder forgets two of the keys that the code it shares with the GPU reads on every step.
    planned = Builder.build_tile_scheduler

    def with_all_keys(self: Any, decode_tokens: int) -> Any:
        return {"c1a": None, "c2a": None} | planned(self, decode_tokens)

    Builder.build_tile_scheduler = with_all_keys


def keep_caching_without_amx() -> None:
    """Keep prefix caching for DeepSeek-V4 on processors without AMX.

    The platform switches it off for every latent-attention model there, because the plain latent backend cannot resume;
    DeepSeek-V4 has a backend of its own, which can.
    """
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        cache, scheduler, model = vllm_config.cache_config, vllm_config.scheduler_config, vllm_config.model_config
        wanted = (cache.enable_prefix_caching, scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens)
        checked(cls, vllm_config)
        if model is not None and model.hf_config.model_type == "deepseek_v4":
            cache.enable_prefix_caching, scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def install_nemotron_h() -> None:
    """Withdraw a promise: the Mamba-2 layer announces checkpoints inside a prefill that its CPU scan never returns."""
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    promised = MambaMixer2.get_kv_cache_spec

    def without_prefill_checkpoints(self: Any, config: Any) -> Any:
        spec = promised(self, config)
        if not hasattr(spec, "num_prefill_checkpoint_blocks"):
            return spec
        return dataclasses.replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    MambaMixer2.get_kv_cache_spec = without_prefill_checkpoints


def install() -> None:
    """Install everything; the entry point of the copy that runs in server processes."""
    install_deepseek_v4()
    keep_caching_without_amx()
    install_nemotron_h()
