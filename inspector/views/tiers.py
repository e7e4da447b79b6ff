"""Tiers: other places that hold prefixes - host memory, disk, a remote store.

Invariant: no tier and tiers that were not read are told apart. Read by ``kvctl inspect tiers``.
"""

from agent.model.snapshot import Snapshot

from ..format import UNKNOWN, clean
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
            ", ".join(f"{name}={value}" for name, value in item["details"].items()) or None,
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
        notes=notes(snapshot),
    )


def _why_unread(snapshot: Snapshot) -> str:
    """Say why nothing is known of tiers, as far as the snapshot tells."""
    off = next((item for item in snapshot.capabilities if item.name == "tiers" and not item.on), None)
    if off is not None:
        return f"tiers cannot be read from this engine: {clean(off.reason or 'no reason given')}"
    note = next((note for note in snapshot.capture.notes if note.startswith("tiers ")), None)
    return clean(note) if note is not None else "this snapshot was taken without its tiers"
