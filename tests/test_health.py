"""The driver's word on memory errors, read through a small C library that stands in for the driver's."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agent.gates.runner import run
from agent.health import device_health
from agent.model.evidence import DeviceHealth, Evidence
from agent.model.finding import GateName, Verdict
from tests.support import cases

SOURCE = r"""
#include <string.h>
typedef void *device;
static int begun = 0;
int nvmlInit_v2(void) { begun = 1; return INIT; }
int nvmlShutdown(void) { begun = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return begun ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) {
    if (index == 2) return 15;                      /* a device that cannot be reached */
    *handle = (device)(unsigned long)(index + 1); return begun ? 0 : 1;
}
int nvmlDeviceGetUUID(device handle, char *text, unsigned length) {
    strncpy(text, handle == (device)1 ? "GPU-one" : "GPU-two", length); return 0;
}
int nvmlDeviceGetTotalEccErrors(device handle, int type, int counter, unsigned long long *count) {
    if (handle == (device)2) return 3;              /* not supported */
    *count = (type == 1 && counter == 0) ? 5000000000ULL : 1; return 0;
}
int nvmlDeviceGetRemappedRows(device handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    if (handle == (device)2) return 3;
    *corrected = 7; *uncorrected = 0; *pending = 1; *failed = 0; return 0;
}
int nvmlDeviceGetRetiredPages(device handle, int cause, unsigned *count, unsigned long long *pages) {
    if (handle == (device)1) return 3;
    *count = cause == 0 ? 2 : 0; return *count ? 7 : 0;
}
"""


def build(folder: Path, init: int) -> str:
    """Compile the library."""
    compiler = shutil.which("cc")
    assert compiler is not None, "a C compiler is needed"
    source, library = folder / "nvml.c", folder / "libnvml-stand-in.so"
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DINIT={init}", "-o", str(library), str(source)], check=True, timeout=60
    )
    return str(library)


def test_every_figure_reaches_its_field(tmp_path: Path) -> None:
    """64-bit counts, pending remaps and retired pages; what a device does not offer is None, not 0."""
    devices, reason = device_health(build(tmp_path, 0))
    assert reason is None
    assert devices == (
        DeviceHealth(device="0 (GPU-one)", uncorrected_errors=5_000_000_000, pending_remap=True, retired_pages=None),
        DeviceHealth(device="1 (GPU-two)", uncorrected_errors=None, pending_remap=None, retired_pages=2),
    )


def test_failing_memory_is_a_finding(tmp_path: Path) -> None:
    """KV409 for each device with trouble."""
    devices, _ = device_health(build(tmp_path, 0))
    snapshot = replace(cases.case_1(), evidence=Evidence(devices=devices))
    found = [finding for result in run(snapshot, [GateName.ALIGNMENT]) for finding in result.findings]
    assert [finding.values["device"] for finding in found] == ["0 (GPU-one)", "1 (GPU-two)"]
    assert "5000000000 uncorrected" in found[0].sentence


@pytest.mark.parametrize("library", ["no-such-library.so", "broken"])
def test_without_a_driver_there_is_a_reason(tmp_path: Path, library: str) -> None:
    """No library, or a driver that does not answer: no devices and the reason; the code abstains."""
    devices, reason = device_health(build(tmp_path, 9) if library == "broken" else library)
    assert devices is None
    assert reason is not None
    snapshot = replace(cases.case_1(), evidence=Evidence(missing={"devices": reason}))
    (result,) = run(snapshot, [GateName.ALIGNMENT])
    assert (result.verdict, result.abstained["KV409"]) == (Verdict.ABSTAIN, reason)
