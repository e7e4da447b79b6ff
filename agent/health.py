"""What the NVIDIA driver says of this host's memory: uncorrected errors, pending row remaps, retired pages.

Invariant: the management library is asked directly (C interface of NVML, driver documentation), read-only, and let
go of at once; without library, driver or device there is a reason and no value. Outside the engine only.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint, c_ulonglong, c_void_p

from .model.evidence import DeviceHealth

LIBRARY = "libnvidia-ml.so.1"

_SUCCESS = 0
_UNCORRECTED = 1
"""``NVML_MEMORY_ERROR_TYPE_UNCORRECTED``."""
_VOLATILE = 0
"""``NVML_VOLATILE_ECC``: since the driver was loaded; older errors were dealt with by a reset."""
_RETIREMENT_CAUSES = (0, 1)
"""``NVML_PAGE_RETIREMENT_CAUSE_*``: several single-bit errors, one double-bit error."""


def device_health(library: str = LIBRARY) -> tuple[tuple[DeviceHealth, ...] | None, str | None]:
    """Ask the driver about every device.

    Args:
        library: Name or path of the management library.

    Returns:
        The devices, or None and the reason.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None, "no NVIDIA driver library (NVML) on this host"
    with _session(nvml) as begun:
        if begun != _SUCCESS:
            return None, f"the NVIDIA driver does not answer (NVML error {begun})"
        count = c_uint()
        code = nvml.nvmlDeviceGetCount_v2(byref(count))
        if code != _SUCCESS:
            return None, f"the NVIDIA driver lists no devices (NVML error {code})"
        return tuple(_devices(nvml, count.value)), None


@contextmanager
def _session(nvml: ctypes.CDLL) -> Iterator[int]:
    code = int(nvml.nvmlInit_v2())
    try:
        yield code
    finally:
        if code == _SUCCESS:
            nvml.nvmlShutdown()


def _devices(nvml: ctypes.CDLL, count: int) -> Iterator[DeviceHealth]:
    for index in range(count):
        handle = c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle)) == _SUCCESS:
            yield DeviceHealth(
                device=_name(nvml, handle, index),
                uncorrected_errors=_uncorrected(nvml, handle),
                pending_remap=_pending(nvml, handle),
                retired_pages=_retired(nvml, handle),
            )


def _name(nvml: ctypes.CDLL, handle: c_void_p, index: int) -> str:
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlDeviceGetUUID(handle, text, c_uint(96)) == _SUCCESS:
        return f"{index} ({text.value.decode('ascii', 'replace')})"
    return str(index)


def _uncorrected(nvml: ctypes.CDLL, handle: c_void_p) -> int | None:
    """Errors since the driver was loaded; None where the device has no ECC."""
    errors = c_ulonglong()
    code = nvml.nvmlDeviceGetTotalEccErrors(handle, c_uint(_UNCORRECTED), c_uint(_VOLATILE), byref(errors))
    return errors.value if code == _SUCCESS else None


def _pending(nvml: ctypes.CDLL, handle: c_void_p) -> bool | None:
    """Whether rows wait to be remapped, or could not be; None where the device does not remap rows."""
    rows = [c_uint() for _ in range(4)]
    code = nvml.nvmlDeviceGetRemappedRows(handle, *(byref(number) for number in rows))
    return bool(rows[2].value or rows[3].value) if code == _SUCCESS else None


def _retired(nvml: ctypes.CDLL, handle: c_void_p) -> int | None:
    """Pages retired for errors; None where the device remaps rows instead."""
    total = 0
    for cause in _RETIREMENT_CAUSES:
        count = c_uint(0)
        code = nvml.nvmlDeviceGetRetiredPages(handle, c_uint(cause), byref(count), None)
        # With no buffer the call says how many there are; "insufficient size" (7) means that there are some.
        if code not in {_SUCCESS, 7}:
            return None
        total += count.value
    return total
