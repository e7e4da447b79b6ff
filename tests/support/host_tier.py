"""A host tier that vLLM 0.32's offloading connector can use on CPU: its own refuses every device but a GPU.

Invariant: copies rows between the engine's cache tensors and a second set in the same memory, at once and in order, so
a transfer is finished when it was submitted. Self-contained (torch and vllm only): a server loads it by module name.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


def transfer_config(entries_bytes: int = 64 << 20) -> dict[str, Any]:
    """Return the value of ``--kv-transfer-config`` for a server that has this file as module ``kvctl_test_tier``."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTier",
            "spec_module_path": "kvctl_test_tier",
            "cpu_bytes_to_use": entries_bytes,
        },
    }


def register() -> None:
    """Do nothing: being a plugin only puts this file on the server's path."""


class CopyWorker(OffloadingWorker):  # type: ignore[misc] # no types beside the linter
    """Moves pages between the cache and the host rows."""

    def __init__(self, caches: Any, pages_per_chunk: int, chunks: int) -> None:
        self._per_chunk = pages_per_chunk
        self._layers = caches.group_data_refs
        self._device = [entry.tensor.view(torch.int8) for entry in caches.tensors]
        self._row = [entry.page_size_bytes for entry in caches.tensors]
        self._host = [torch.zeros((chunks, row * pages_per_chunk), dtype=torch.int8) for row in self._row]
        self._finished: list[TransferResult] = []

    def _places(self, device: Any, host: Any) -> Iterator[tuple[int, int, int, int]]:
        """Yield (group, page, chunk, place in the chunk) for every page of a transfer."""
        pages, chunks = iter(device.block_ids), list(host.block_ids)
        used = 0
        for group, (count, first) in enumerate(zip(device.group_sizes, device.block_indices, strict=True)):
            skipped = first % self._per_chunk
            for number in range(count):
                at = skipped + number
                yield group, int(next(pages)), int(chunks[used + at // self._per_chunk]), at % self._per_chunk
            used += -(-(count + skipped) // self._per_chunk) if count else 0

    def _move(self, job: int, device: Any, host: Any, *, store: bool) -> bool:
        begin, moved = time.perf_counter(), 0
        for group, page, chunk, place in self._places(device, host):
            for layer in self._layers[group]:
                row, size = self._row[layer.tensor_idx], layer.page_size_bytes
                inside = self._device[layer.tensor_idx][page, :size]
                outside = self._host[layer.tensor_idx][chunk, place * row : place * row + size]
                if store:
                    outside.copy_(inside)
                else:
                    inside.copy_(outside)
                moved += size
        self._finished.append(TransferResult(job, True, moved, time.perf_counter() - begin))  # noqa: FBT003
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy pages out."""
        return self._move(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy pages in."""
        return self._move(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        """Return what was finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: nothing is ever pending."""


class HostTier(CPUOffloadingSpec):  # type: ignore[misc] # no types beside the linter
    """vLLM's own specification with our worker."""

    def get_worker(self, kv_caches: Any) -> Any:
        """Return the worker, made at the first call."""
        made: Any = getattr(self, "_copies", None)
        if made is None:
            made = self._copies = CopyWorker(kv_caches, self.blocks_per_chunk, self.num_chunks)
        return made


class SlowCopyWorker(CopyWorker):
    """Keeps what it finished to itself while ``hold`` is set, unless it is waited for."""

    hold = False

    def get_finished(self) -> list[TransferResult]:
        """Return what was finished since the last call, or nothing yet."""
        return [] if SlowCopyWorker.hold else super().get_finished()

    def wait(self, job_ids: set[int]) -> None:
        """Give these jobs out at the next call."""
        if SlowCopyWorker.hold and job_ids:
            SlowCopyWorker.hold = False


class SlowHostTier(HostTier):
    """A host tier whose copies are acknowledged when a test says so."""

    def get_worker(self, kv_caches: Any) -> Any:
        """Return the worker, made at the first call."""
        made: Any = getattr(self, "_copies", None)
        if made is None:
            made = self._copies = SlowCopyWorker(kv_caches, self.blocks_per_chunk, self.num_chunks)
        return made
