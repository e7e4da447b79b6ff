"""Tiers: other places that hold prefixes - host memory, disk, a remote store.

Invariant: no tier and tiers that were not read are told apart. Read by ``kvctl inspect tiers``.
"""

from agent.model.evidence import TierReport
from agent.model.snapshot import Snapshot, Tier
from agent.model.states import State

from ..format import UNKNOWN, clean, count
from ..report import Column, Json, Kind, Prose, Report, Table
from .common import head, notes

_COLUMNS = (
    Column(header="TIER", elastic=True),
    Column(header="KIND"),
    Column(header="ENTRIES", kind=Kind.COUNT),
    Column(header="SIZE", kind=Kind.BYTES),
    Column(header="DETAILS", elastic=True, blank="-"),
)


def tiers(snapshot: Snapshot) -> Report:
    """Return one row for each tier."""
    found = snapshot.tiers
    listed = None if snapshot.evidence is None or found is not None else snapshot.evidence.tiers
    if listed is not None:
        found = tuple(_of_report(tier) for tier in listed)
    items: list[Json] = [
        {
            "name": tier.name,
            "tier_kind": tier.kind,
            "entries": tier.entries,
            "bytes": tier.bytes,
            "details": dict(tier.details),
        }
        for tier in found or ()
    ]
    rows = [
        [
            item["name"],
            item["tier_kind"],
            item["entries"],
            item["bytes"],
            ", ".join(f"{name}={_number(value)}" for name, value in item["details"].items()) or None,
        ]
        for item in items
    ]
    block: Table | Prose = Table(columns=_COLUMNS, rows=rows, empty="this engine has no other tier")
    if found is None:
        block = Prose(lines=[f"{UNKNOWN}: {_why_unread(snapshot)}"])
    return Report(
        kind="tiers",
        data={**head(snapshot), "tiers": None if found is None else items},
        items=items,
        item_kind="tier",
        names=[item["name"] for item in items],
        blocks=[block],
        notes=[*notes(snapshot), *([_LISTED] if listed else [])],
    )


_LISTED = "note: what a tier holds in all was not read; these are the entries that were listed for kvctl validate"


def _of_report(tier: TierReport) -> Tier:
    """Return a tier as it was listed for the gates: entries one by one, perhaps the latest only, and no totals."""
    details = {"listed": count(len(tier.entries))}
    if tier.states is not None:
        details["states"] = "+".join(sorted(state.value for state in tier.states if state is not State.UNKNOWN))
    if not tier.fingerprinted:
        details["fingerprint"] = "none"
    return Tier(name=tier.name, kind=UNKNOWN, details=details)


def _number(text: str) -> str:
    """Return a whole number as tables show it; anything else as it is."""
    return count(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _why_unread(snapshot: Snapshot) -> str:
    """Say why nothing is known of tiers, as far as the snapshot tells."""
    off = next((item for item in snapshot.capabilities if item.name == "tiers" and not item.on), None)
    if off is not None:
        return f"tiers cannot be read from this engine: {clean(off.reason or 'no reason given')}"
    note = next((note for note in snapshot.capture.notes if note.startswith("tiers ")), None)
    return clean(note) if note is not None else "this snapshot was taken without its tiers"
