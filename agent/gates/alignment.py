"""Gate 4, byte-level alignment: addresses and strides that the hardware can read.

Invariant: a rule is checked only where the worker says that the kernel asks for it (the fields that are not None).
Called by ``agent.gates.runner``.
"""

from collections.abc import Callable
from itertools import combinations

from ..model.evidence import Evidence, WorkerTensor
from .report import GateReport
from .view import View

Reader = Callable[[WorkerTensor], int | None]
"""Reads one number of bytes from a tensor; None where the rule is not asked for."""

_NOBODY = Evidence()
_NO_WORKERS = "the workers' tensors were not read"
_NO_RULE = {
    "KV401": "no kernel of this engine asks for an alignment of addresses",
    "KV402": "no kernel of this engine asks for an alignment of block strides",
    "KV403": "no kernel of this engine asks for pages padded to a unit",
    "KV406": "no kernel of this engine reads rows in bulk copies",
}
_TENSOR_CODES = ("KV401", "KV402", "KV403", "KV404", "KV405", "KV406", "KV407")


def check(view: View, report: GateReport) -> None:
    """Run gate 4."""
    evidence = view.snapshot.evidence or _NOBODY
    if evidence.tensors is None:
        report.cannot(_TENSOR_CODES, evidence.missing.get("tensors", _NO_WORKERS))
    else:
        _rules(report, [tensor for tensor in evidence.tensors if not tensor.host])
        _ends(report, evidence.tensors)
        _overlaps(report, [tensor for tensor in evidence.tensors if not tensor.host])
        _host(report, [tensor for tensor in evidence.tensors if tensor.host], no_host(evidence))
    _files(report, evidence)
    _devices(report, evidence)


def _rules(report: GateReport, tensors: list[WorkerTensor]) -> None:
    """KV401, KV402, KV403, KV406: a number of bytes must be a multiple of another."""
    rules: tuple[tuple[str, Reader, Reader], ...] = (
        ("KV401", lambda tensor: tensor.address_alignment, lambda tensor: tensor.address),
        ("KV402", lambda tensor: tensor.required_alignment, lambda tensor: tensor.block_stride),
        ("KV403", lambda tensor: tensor.page_unit, lambda tensor: tensor.page_bytes),
        ("KV406", lambda tensor: tensor.row_alignment, lambda tensor: tensor.row_bytes),
    )
    for code, required, measured in rules:
        subject = [
            (tensor, unit, size)
            for tensor in tensors
            if (unit := required(tensor)) and (size := measured(tensor)) is not None
        ]
        report.looked(code, len(subject), empty=_NO_RULE[code] if tensors else "no tensor is registered")
        wrong = [(tensor, unit, size) for tensor, unit, size in subject if size % unit]
        if wrong:
            tensor, unit, size = wrong[0]
            report.add(
                code,
                group=tensor.group,
                count=len(wrong),
                layer=tensor.layer,
                rank=tensor.rank,
                required=unit,
                value=size % unit if code == "KV401" else size,
            )


def _extent(tensor: WorkerTensor) -> int:
    return (tensor.pages - 1) * tensor.block_stride + tensor.page_bytes if tensor.pages else 0


def _outside(tensor: WorkerTensor) -> int:
    """Bytes by which a tensor leaves its allocation, at either end; 0 or less: it does not."""
    start, size = tensor.allocation
    return max(tensor.address + _extent(tensor) - (start + size), start - tensor.address)


def _ends(report: GateReport, tensors: tuple[WorkerTensor, ...]) -> None:
    """KV404: the last page ends inside the allocation."""
    report.looked("KV404", len(tensors), empty="no tensor is registered")
    over = [(tensor, excess) for tensor in tensors if (excess := _outside(tensor)) > 0]
    if over:
        tensor, excess = over[0]
        report.add(
            "KV404",
            group=tensor.group,
            count=len(over),
            layer=tensor.layer,
            rank=tensor.rank,
            value=excess,
            address=hex(tensor.address),
            block_stride=tensor.block_stride,
            page_bytes=tensor.page_bytes,
            page_count=tensor.pages,
            allocation=hex(tensor.allocation[0]),
            allocation_bytes=tensor.allocation[1],
        )


def _overlaps(report: GateReport, tensors: list[WorkerTensor]) -> None:
    """KV405: layers of one group must not share bytes; layers of different groups do by design."""
    homes: dict[tuple[int, int], list[WorkerTensor]] = {}
    for tensor in tensors:
        homes.setdefault((tensor.rank, tensor.group), []).append(tensor)
    pairs = [pair for home in homes.values() for pair in combinations(home, 2) if pair[0].layer != pair[1].layer]
    report.looked("KV405", len(pairs), empty="no group has tensors of two layers on one rank")
    for one, other in pairs:
        if _share_bytes(one, other):
            report.add(
                "KV405",
                group=one.group,
                layer=one.layer,
                other=other.layer,
                rank=one.rank,
                address=hex(one.address),
                page_bytes=one.page_bytes,
                other_address=hex(other.address),
                other_page_bytes=other.page_bytes,
            )


def _share_bytes(one: WorkerTensor, other: WorkerTensor) -> bool:
    if one.address >= other.address + _extent(other) or other.address >= one.address + _extent(one):
        return False
    if one.block_stride != other.block_stride:
        return True
    shift = (other.address - one.address) % one.block_stride if one.block_stride else 0
    return shift < one.page_bytes or one.block_stride - shift < other.page_bytes


def no_host(evidence: Evidence) -> str:
    """Why no host pool could be looked at."""
    if evidence.tiers is None:
        return evidence.missing.get("tiers", "no other tier was looked through")
    if not evidence.tiers:
        return "there is no other tier"
    return f"no worker describes the host pool of {evidence.tiers[0].name}"


def _host(report: GateReport, tensors: list[WorkerTensor], absent: str) -> None:
    """KV407: host pools are page-locked and start on a page of the operating system."""
    known = [tensor for tensor in tensors if tensor.pinned is not None]
    report.looked("KV407", len(known), empty="copies of this host pool need no locked pages" if tensors else absent)
    loose = [tensor for tensor in known if not tensor.pinned]
    if loose:
        report.add("KV407", count=len(loose), what="not page-locked", layer=loose[0].layer)
    crooked = [tensor for tensor in known if tensor.allocation[0] % 4096]
    if crooked:
        report.add("KV407", count=len(crooked), what="not page-aligned", layer=crooked[0].layer)


def _files(report: GateReport, evidence: Evidence) -> None:
    """KV408: files of a tier are as long as a page."""
    if evidence.tiers is None:
        report.cannot(["KV408"], evidence.missing.get("tiers", "no other tier was looked through"))
        return
    for tier in evidence.tiers:
        sized = [entry for entry in tier.entries if entry.bytes is not None and entry.expected_bytes is not None]
        report.looked("KV408", len(sized), empty="no tier lists a file and its size")
        wrong = [entry for entry in sized if entry.bytes != entry.expected_bytes]
        if wrong:
            first = wrong[0]
            report.add(
                "KV408",
                tier=tier.name,
                count=len(wrong),
                name=first.name,
                value=first.bytes,
                expected=first.expected_bytes,
            )
    if not evidence.tiers:
        report.looked("KV408", 0, empty="there is no other tier")


def _devices(report: GateReport, evidence: Evidence) -> None:
    """KV409: what the driver says of the memory."""
    if evidence.devices is None:
        report.cannot(["KV409"], evidence.missing.get("devices", "no device library (NVML) was asked"))
        return
    report.looked("KV409", len(evidence.devices), empty="the driver lists no device")
    for device in evidence.devices:
        troubles = []
        if device.uncorrected_errors:
            errors = device.uncorrected_errors
            troubles.append(f"{errors} uncorrected memory error{'' if errors == 1 else 's'}")
        if device.pending_remap:
            troubles.append("row remap pending")
        if device.retired_pages:
            troubles.append(f"{device.retired_pages} retired pages")
        if troubles:
            report.add("KV409", device=device.device, what=", ".join(troubles))
