"""Faults to plant into the evidence: one for each code of gates 2 and 4, the red lines and the other tiers.

Invariant: as in ``agent.gates.plants``. Evidence that the snapshot lacks is made up, healthy but for the one fault.
"""

from dataclasses import replace
from typing import Any

from ..model.decision import Reason
from ..model.evidence import (
    Admission,
    BindConflict,
    Binds,
    CapturedBatch,
    CapturedBuffer,
    Contract,
    DeviceHealth,
    Graphs,
    IdentityProbe,
    PlanRecord,
    TierEntry,
    TierReport,
    WorkerTensor,
)
from ..model.states import GroupId, PageId, ResumeKind, State
from .editor import Editor
from .plants import Plant, decision

_BASE = 1 << 20


def _tensors(editor: Editor) -> list[WorkerTensor]:
    """Make up one healthy tensor for each layer that the geometry names (two at least), one after the other."""
    names = [(group.id, layer.name) for group in editor.snapshot.geometry.groups for layer in group.layers]
    names = names or [(GroupId(0), "layer 0"), (GroupId(0), "layer 1")]
    page, pages = 576 * 4, 4
    return [
        WorkerTensor(
            rank=0, layer=name, group=group, dtype="uint8", shape=(pages, page), strides=(page, 1),
            address=576 * _BASE + at * pages * page, page_bytes=page, block_stride=page, pages=pages,
            allocation=(576 * _BASE, len(names) * pages * page), spec_dtype="uint8", spec_shape=(pages, page),
            spec_strides=(page, 1), address_alignment=64, required_alignment=576, page_unit=576, row_bytes=576,
            row_alignment=16, layout="blocks outermost",
        )
        for at, (group, name) in enumerate(names)
    ]  # fmt: skip


def _tensor(**fault: Any) -> Plant:
    """Change fields of the first tensor."""

    def plant(editor: Editor) -> str | None:
        tensors = _tensors(editor)
        editor.witness(tensors=(replace(tensors[0], **fault), *tensors[1:]))
        return None

    return plant


def _kv204(editor: Editor) -> str | None:
    tensors = _tensors(editor)
    kernel = editor.snapshot.geometry.groups[tensors[0].group].block_size + 1
    editor.witness(tensors=(replace(tensors[0], kernel_block=kernel), *tensors[1:]))
    return None


def _host(**fault: Any) -> Plant:
    """Add a host pool with a fault."""

    def plant(editor: Editor) -> str | None:
        tensors = _tensors(editor)
        base = 4096 * _BASE
        size = tensors[0].pages * tensors[0].page_bytes
        whole: dict[str, Any] = {"host": True, "pinned": True, "address": base, "allocation": (base, size)}
        editor.witness(tensors=(*tensors, replace(tensors[0], **(whole | fault))))
        return None

    return plant


def _kv210(editor: Editor) -> str | None:
    tensors = _tensors(editor)
    if not any(group.layers for group in editor.snapshot.geometry.groups):
        return "no layers"
    names = [layer.name for group in editor.snapshot.geometry.groups for layer in group.layers]
    if len(set(names)) < 2:
        return "one layer only"
    editor.witness(tensors=tuple(tensor for tensor in tensors if tensor.layer != names[-1]))
    return None


def _kv401(editor: Editor) -> str | None:
    tensors = _tensors(editor)
    # One byte earlier, and an allocation that begins there too: nothing else is wrong.
    moved = replace(tensors[0], address=tensors[0].address - 1)
    start, size = moved.allocation
    editor.witness(tensors=tuple(replace(item, allocation=(start - 1, size + 1)) for item in (moved, *tensors[1:])))
    return None


def _kv402(editor: Editor) -> str | None:
    tensors = _tensors(editor)
    editor.witness(tensors=(replace(tensors[0], block_stride=tensors[0].block_stride - 1), *tensors[1:]))
    return None


def _kv405(editor: Editor) -> str | None:
    tensors = _tensors(editor)
    pair = next(
        ((a, b) for a, one in enumerate(tensors) for b, two in enumerate(tensors) if a < b and one.group == two.group),
        None,
    )
    if pair is None:
        return "no group has two layers"
    first, second = pair
    tensors[second] = replace(tensors[second], address=tensors[first].address)
    editor.witness(tensors=tuple(tensors))
    return None


def _tier(**fault: Any) -> Plant:
    """Add a tier with one entry that has a fault."""

    def plant(editor: Editor) -> str | None:
        states = frozenset({group.state for group in editor.snapshot.geometry.groups} | set(State))
        entry = TierEntry(tier="planted", name="entry", fingerprint="own", bytes=64, expected_bytes=64)
        report = TierReport(name="planted", states=states, entries=(replace(entry, **fault),))
        editor.witness(tiers=(report,), contract=Contract(fields={}, fingerprint="own"))
        return None

    return plant


def _kv205(editor: Editor) -> str | None:
    needed = [
        group.state
        for group in editor.snapshot.geometry.groups
        if group.kind not in {ResumeKind.NONE, ResumeKind.UNKNOWN} and group.state is not State.UNKNOWN
    ]
    if not needed:
        return "no group needs a pool"
    first = needed[0]
    states = frozenset(set(State) - {first})
    editor.witness(tiers=(TierReport(name="planted", states=states),))
    return None


def _kv202(editor: Editor) -> str | None:
    editor.witness(contract=Contract(fields={"dtype": "fp8"}, pinned={"dtype": "bf16"}))
    return None


def _kv207(editor: Editor) -> str | None:
    editor.witness(identities=(IdentityProbe(name="lora and salt", left=bytes(16), right=bytes(16)),))
    return None


def _kv209(editor: Editor) -> str | None:
    short = editor.snapshot.geometry.alignment // 2
    if not editor.snapshot.geometry.caching or not short:
        return "no caching, or hits of one token"
    decisions = tuple(decision(editor, id=at, lookup_tokens=short, reason=Reason.BELOW_GRANULARITY) for at in range(64))
    editor.snapshot = replace(editor.snapshot, decisions=decisions)
    return None


def _kv211(editor: Editor) -> str | None:
    draft = next((group for group in editor.snapshot.geometry.groups if group.draft), None)
    if draft is None:
        return "no draft model"
    editor.witness(rewindable={GroupId(0): False})
    return None


def _kv308(editor: Editor) -> str | None:
    return _tier(acknowledged=False)(editor)


def _kv311(editor: Editor) -> str | None:
    return _tier(pages={State.COMPRESSED: 10, State.SWA: 7}, page_tokens=256)(editor)


def _kv409(editor: Editor) -> str | None:
    editor.witness(devices=(DeviceHealth(device="0", uncorrected_errors=1, pending_remap=False),))
    return None


def _admission(admission: Admission) -> Plant:
    def plant(editor: Editor) -> str | None:
        if editor.pool is None:
            return "no pool"
        editor.witness(admission=admission)
        return None

    return plant


def _kv511(editor: Editor) -> str | None:
    editor.witness(recovery={State.SWA: "replay", State.TAIL: "replay"})
    return None


def _kv521(editor: Editor) -> str | None:
    plan = PlanRecord(id="planted", planned={PageId(1): 17}, found={PageId(1): 19}, executed=False)
    editor.witness(plans=(plan,))
    return None


def _kv522(editor: Editor) -> str | None:
    conflict = BindConflict(request="planted", checked=PageId(1), bound=PageId(2), stamp_checked=1, stamp_bound=1)
    editor.witness(binds=Binds(compared=1, conflicts=(conflict,)))
    return None


def _kv531(editor: Editor) -> str | None:
    editor.witness(graphs=Graphs(buffers=(CapturedBuffer(name="block table", captured=4096, now=8192),)))
    return None


def _kv532(editor: Editor) -> str | None:
    page = 1 if editor.null == 0 else 0
    batch = CapturedBatch(name="planted", live=1, rows=((PageId(page),), (PageId(page),)))
    editor.witness(graphs=Graphs(batches=(batch,)))
    return None


_HUGE = 1 << 40

EVIDENCE_PLANTS: dict[str, Plant] = {
    "KV202": _kv202, "KV203": _tensor(dtype="bfloat16"), "KV204": _kv204, "KV205": _kv205,
    "KV206": _tier(fingerprint="foreign"), "KV207": _kv207, "KV208": _host(layout="layers outermost"),
    "KV209": _kv209, "KV210": _kv210, "KV211": _kv211, "KV308": _kv308, "KV311": _kv311,
    "KV401": _kv401, "KV402": _kv402, "KV403": _tensor(page_bytes=576 * 4 - 8),
    "KV404": _tensor(allocation=(576 * _BASE, 8)),
    "KV405": _kv405, "KV406": _tensor(row_bytes=584), "KV407": _host(pinned=False), "KV408": _tier(bytes=32),
    "KV409": _kv409,
    "KV501": _admission(Admission(cap_ratio=0.5, pinned=_HUGE, needs={"planted": 1})),
    "KV502": _admission(Admission(needs={"planted": _HUGE})), "KV503": _admission(Admission(returned={"planted": 99})),
    "KV511": _kv511, "KV521": _kv521, "KV522": _kv522, "KV531": _kv531, "KV532": _kv532,
}  # fmt: skip
"""Plants by code."""
