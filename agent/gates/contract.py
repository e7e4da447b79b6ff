"""Gate 2, operator contract: layout, precision, page size and weights are what the kernel and the cache agree on.

Invariant: what only a worker, a tier or an active probe can say comes from ``Snapshot.evidence``; where that is None
the code abstains. Called by ``agent.gates.runner``.
"""

from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..columns import of_older_weights
from ..model.evidence import Evidence, TierReport, Weights, WorkerTensor
from ..model.states import State
from .alignment import no_host
from .limits import MIN_PROMPTS
from .report import GateReport
from .view import View

_NOBODY = Evidence()
_NO_WORKERS = "the workers' tensors were not read"


def check(view: View, report: GateReport) -> None:
    """Run gate 2."""
    evidence = view.snapshot.evidence or _NOBODY
    _weights(view, report, evidence)
    _pinned(report, evidence)
    _tensors(view, report, evidence)
    _tiers(view, report, evidence)
    _identities(report, evidence)
    _granularity(view, report)
    _rewind(view, report, evidence)


def _weights(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV201: pages registered before the last change of all weights, or with older bytes of their adapter.

    A page stamped 0 was registered before the agent came, so before every change that the agent saw.
    """
    weights = evidence.weights
    if weights is None:
        report.cannot(["KV201"], evidence.missing.get("weights", "changes of the weights are not watched here"))
        return
    if view.snapshot.pages is None:
        report.cannot(["KV201"], "no page table was read")
        return
    if not weights.watched:  # what is found is stale all the same; that there is no more of it cannot be said
        report.cannot(["KV201"], "a call to the workers may have changed weights, and no digest of all has cleared it")
    elif weights.changes:
        report.looked("KV201", int(view.keyed.sum()), empty="no page carries a key")
    else:
        report.looked("KV201", max(int(view.keyed.sum()), 1))
    stale = np.flatnonzero(view.keyed & of_older_weights(view.columns, weights))
    if not weights.changes or not len(stale):
        return
    change = weights.changes[-1]
    good = change if weights.last_good is None else weights.last_good
    doubtful = int(((view.stamp[stale] >= np.uint64(good)) & (view.stamp[stale] < np.uint64(change))).sum())
    cause = _cause(weights, view.stamp[stale])
    report.add("KV201", pages=stale, count=len(stale), cause=cause, doubtful=doubtful, change=change)


def _cause(weights: Weights, stamps: NDArray[np.uint64]) -> str:
    """Name the change that made these pages stale: one of all weights if it made any of them so."""
    last = weights.last_of_all
    of_all = last is not None and bool((stamps < np.uint64(weights.changes[last])).any())
    place = last if of_all and last is not None else len(weights.changes) - 1
    return weights.causes[place] if place < len(weights.causes) else "unknown change"


def _pinned(report: GateReport, evidence: Evidence) -> None:
    """KV202: the contract in force against the pinned one, field by field."""
    contract = evidence.contract
    if contract is None or contract.pinned is None:
        report.cannot(["KV202"], evidence.missing.get("contract", "no contract was pinned (kvctl fingerprint pin)"))
        return
    names = sorted({*contract.fields, *contract.pinned})
    report.looked("KV202", len(names), empty="the pinned contract has no fields")
    different = [name for name in names if contract.fields.get(name) != contract.pinned.get(name)]
    if different:
        first = different[0]
        report.add(
            "KV202",
            count=len(different),
            field=first,
            pinned=contract.pinned.get(first),
            value=contract.fields.get(first),
            fields=", ".join(different),
        )


def _tensors(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV203, KV204, KV208, KV210: worker tensors against the specs of their groups."""
    tensors = evidence.tensors
    if tensors is None:
        report.cannot(("KV203", "KV204", "KV208", "KV210"), evidence.missing.get("tensors", _NO_WORKERS))
        return
    device = [tensor for tensor in tensors if not tensor.host]
    _against_spec(report, device)
    _kernel_blocks(view, report, device)
    _layouts(report, device, [tensor for tensor in tensors if tensor.host], no_host(evidence))
    _registered(view, report, device, evidence.ranks)


def _difference(tensor: WorkerTensor) -> tuple[str, str, str] | None:
    """What differs: name, value, and what the spec says. Axes of extent 1 do not count: backends drop them."""
    if tensor.spec_dtype is not None and tensor.dtype != tensor.spec_dtype:
        return "dtype", tensor.dtype, tensor.spec_dtype
    if tensor.spec_shape is not None:
        shape, planned = _long(tensor.shape, tensor.shape), _long(tensor.spec_shape, tensor.spec_shape)
        if shape != planned:
            return "shape", str(tensor.shape), str(tensor.spec_shape)
    if tensor.spec_strides is not None:
        strides = _long(tensor.strides, tensor.shape)
        planned = _long(tensor.spec_strides, tensor.spec_shape or tensor.shape)
        if strides != planned:
            return "strides", str(tensor.strides), str(tensor.spec_strides)
    return None


def _long(values: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, ...]:
    """Keep the values of axes longer than 1."""
    return tuple(value for value, extent in zip(values, extents, strict=False) if extent != 1)


def _against_spec(report: GateReport, tensors: list[WorkerTensor]) -> None:
    described = [
        tensor
        for tensor in tensors
        if tensor.spec_dtype is not None or tensor.spec_shape is not None or tensor.spec_strides is not None
    ]
    report.looked("KV203", len(described), empty="no tensor could be compared with a spec")
    wrong = [(tensor, found) for tensor in described if (found := _difference(tensor)) is not None]
    if wrong:
        tensor, (what, now, spec) = wrong[0]
        report.add(
            "KV203",
            group=tensor.group,
            count=len(wrong),
            layer=tensor.layer,
            rank=tensor.rank,
            what=what,
            value=now,
            expected=spec,
        )


def _kernel_blocks(view: View, report: GateReport, tensors: list[WorkerTensor]) -> None:
    kernels = {(tensor.group, kernel) for tensor in tensors if (kernel := tensor.kernel_block)}
    report.looked("KV204", len(kernels), empty="no worker told its kernel's block size")
    for group in view.groups:
        for owner, kernel in sorted(kernels):
            if owner == group.id and group.block_size % kernel:
                report.add("KV204", group=group.id, kernel=kernel, value=group.block_size)


def _layouts(report: GateReport, device: list[WorkerTensor], host: list[WorkerTensor], absent: str) -> None:
    here = {(tensor.layer, tensor.rank): tensor for tensor in device}
    pairs = [
        (here[tensor.layer, tensor.rank], tensor)
        for tensor in host
        if (tensor.layer, tensor.rank) in here and tensor.layout is not None
    ]
    pairs = [(one, other) for one, other in pairs if one.layout is not None]
    report.looked("KV208", len(pairs), empty=absent)
    for one, other in pairs:
        if one.layout != other.layout and one.page_bytes == other.page_bytes:
            report.add(
                "KV208",
                group=one.group,
                layer=one.layer,
                value=one.page_bytes,
                device=one.layout,
                host=other.layout,
            )


def _registered(view: View, report: GateReport, tensors: list[WorkerTensor], answered: tuple[int, ...] | None) -> None:
    """KV210: every layer has a tensor on every rank, ranks that answered and named none among them.

    A rank that names none of these layers but others is a stage of a pipeline: the scheduler's copy of the groups,
    which is what was read, lists those of the first stage only.
    """
    layers = [layer.name for group in view.groups for layer in group.layers]
    if not layers:
        report.cannot(["KV210"], "the layers of the groups were not read")
        return
    known = {tensor.rank for tensor in tensors} | set(answered or ())
    for rank in sorted(known) or (None,):
        there = {tensor.layer for tensor in tensors if tensor.rank == rank}
        if there and there.isdisjoint(layers):
            continue
        report.looked("KV210", len(layers))
        absent = [name for name in layers if name not in there]
        if absent:
            report.add("KV210", rank=rank, count=len(absent), checked=len(layers), layer=absent[0])
    report.looked("KV210", 0, empty="the workers hold other layers than those that the scheduler lists")


def _tiers(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV205, KV206: what other tiers hold, and under which fingerprint."""
    if evidence.tiers is None:
        report.cannot(("KV205", "KV206"), evidence.missing.get("tiers", "no other tier was looked through"))
        return
    silent = "no tier says which states it has a pool for" if evidence.tiers else "there is no other tier"
    report.looked("KV205", sum(tier.states is not None for tier in evidence.tiers), empty=silent)
    # A tail is as needed as the rest: one page of a compressor's open group that is not there, and nothing resumes.
    needed = {state for group in view.required for state in group.states if state is not State.UNKNOWN}
    for tier in evidence.tiers:
        for state in sorted(needed - tier.states if tier.states is not None else set()):
            report.add("KV205", tier=tier.name, state=state)
    own = None if evidence.contract is None else evidence.contract.fingerprint
    bare = [tier.name for tier in evidence.tiers if not tier.fingerprinted]
    if not evidence.tiers:
        report.looked("KV206", 0, empty="there is no other tier")
        return
    if len(bare) == len(evidence.tiers):
        report.cannot(
            ["KV206"], f"entries of {', '.join(bare)} carry no fingerprint: nothing says whose bytes they are"
        )
        return
    if own is None:
        report.cannot(["KV206"], "this engine's fingerprint was not taken")
        return
    for tier in evidence.tiers:
        _foreign(report, tier, own)
    report.looked("KV206", 0, empty="no tier holds an entry")


def _foreign(report: GateReport, tier: TierReport, own: str) -> None:
    if not tier.fingerprinted:
        return
    report.looked("KV206", len(tier.entries), empty="no tier holds an entry")
    foreign = [entry for entry in tier.entries if entry.fingerprint != own]
    if foreign:
        report.add(
            "KV206",
            tier=tier.name,
            count=len(foreign),
            checked=len(tier.entries),
            name=foreign[0].name,
            foreign=foreign[0].fingerprint or "none",
            own=own,
            folder="" if tier.folder is None else f" ({tier.folder})",
        )


_PAIRS = {
    "salt": "a request with a salt and one without",
    "another salt": "two requests with different salts",
    "lora": "a request with a LoRA adapter and one without",
    "another lora": "two requests with different LoRA adapters",
    "lora from another path": "two requests with LoRA adapters of one name from different paths",
    "lora named like the salt": "a request with a salt and one with a LoRA adapter of that name",
    "lora named like salt": "a request with a salt and one with a LoRA adapter of that name",
    "image": "a request with an image and one without",
    "another image": "two requests with different images",
    "image named like the salt": "a request with a salt and one with an image of that name",
}
"""Who would share a prefix, by the name of the pair that was hashed."""


def _identities(report: GateReport, evidence: Evidence) -> None:
    """KV207: pairs of synthetic requests that must not share a key."""
    if evidence.identities is None:
        reason = evidence.missing.get("identities", "an active probe: nobody hashed the synthetic requests")
        report.cannot(["KV207"], reason)
        return
    report.looked("KV207", len(evidence.identities), empty="this engine separates nothing")
    for probe in evidence.identities:
        if probe.left == probe.right:
            pair = _PAIRS.get(probe.name.replace("_", " "), f"two requests that differ in {probe.name}")
            report.add("KV207", name=probe.name, pair=pair)


def _granularity(view: View, report: GateReport) -> None:
    """KV209: the unit of hits against the usual prompt."""
    decisions = view.snapshot.decisions
    if decisions is None:
        report.cannot(["KV209"], "no decisions were read")
        return
    if not view.snapshot.geometry.caching:
        report.cannot(["KV209"], "this engine runs without prefix caching")
        return
    if len(decisions) < MIN_PROMPTS:
        report.looked("KV209", 0, empty=f"fewer than {MIN_PROMPTS} decisions: the usual prompt is not known")
        return
    report.looked("KV209", len(decisions))
    unit = view.snapshot.geometry.alignment
    usual = median(decision.lookup_tokens for decision in decisions)
    if usual <= unit:
        blocks = ", ".join(str(group.block_size) for group in view.groups)
        report.add("KV209", value=unit, checked=len(decisions), median=int(usual), blocks=blocks)


def _rewind(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV211: drafts need every sparse group to be rewindable."""
    if evidence.rewindable is None:
        report.cannot(
            ["KV211"], evidence.missing.get("rewindable", "this engine does not say which groups can be rewound")
        )
        return
    report.looked("KV211", len(evidence.rewindable), empty="no group is sparse")
    if evidence.drafts or any(group.draft for group in view.groups):
        for group, able in sorted(evidence.rewindable.items()):
            if not able:
                report.add("KV211", group=group)
