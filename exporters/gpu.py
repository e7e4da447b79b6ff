"""Memory and memory errors of the host's devices, from the vendor's management library.

Invariant: without a library, a driver or a device there are no samples and no complaint; a figure that a device does
not offer makes no sample. Called by :mod:`exporters.fleet` as it ticks, never by a scrape: a driver may take its time.
"""

from collections.abc import Callable
from typing import Any

from .catalogue import CATALOGUE, Sample


class Devices:
    """The devices of this host.

    Args:
        library: The management library; the installed one by default.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._open = False

    def samples(self) -> list[Sample]:
        """Read all devices."""
        nvml = self._started()
        if nvml is None:
            return []
        count = _read(nvml, nvml.nvmlDeviceGetCount) or 0
        return [sample for index in range(int(count)) for sample in _of_device(nvml, index)]

    def close(self) -> None:
        """Let go of the library."""
        if self._open:
            self._open = False
            _read(self._library, self._library.nvmlShutdown)

    def _started(self) -> Any:
        if self._library is None:
            try:
                import pynvml  # noqa: PLC0415 - a host without devices does without it
            except ImportError:
                return None
            self._library = pynvml
        if not self._open:
            try:
                self._library.nvmlInit()
            except (self._library.NVMLError, OSError):
                return None
            self._open = True
        return self._library


def _read(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except nvml.NVMLError:
        return None


def _of_device(nvml: Any, index: int) -> list[Sample]:
    handle = _read(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return []
    gpu = str(index)
    samples = []
    memory = _read(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is not None:
        samples.append(Sample(metric=CATALOGUE["gpu_memory_used_bytes"], labels=(gpu,), value=int(memory.used)))
    kinds = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    for kind, code in kinds.items():
        count = _read(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, code, nvml.NVML_VOLATILE_ECC)
        if count is not None:
            samples.append(Sample(metric=CATALOGUE["gpu_ecc_errors"], labels=(gpu, kind), value=int(count)))
    return samples
