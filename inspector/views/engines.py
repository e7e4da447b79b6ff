"""Engines: one row for each engine on this host.

Invariant: an engine that does not answer has a row that says so; nothing is left out silently. Read by ``kvctl ps``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.model.snapshot import Snapshot

from ..format import plural
from ..report import Cell, Column, Json, Kind, Report, Table, Tone, Value
from ..reuse import sum_up
from .common import essential_off, head, usable_pages
from .danger import WRONG_REUSE, beyond, wrong_among

COLUMNS = (
    Column(header="PID"),
    Column(header="ENGINE", elastic=True),
    Column(header="MODEL", elastic=True),
    Column(header="NAME", wide=True),
    Column(header="GPU", elastic=True, blank="-", wide=True),
    Column(header="AGENT"),
    Column(header="PAGES", kind=Kind.COUNT),
    Column(header="USED", kind=Kind.RATIO),
    Column(header="USABLE/LOGICAL", kind=Kind.RATIO),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine: what it answered, or why it did not."""

    pid: int
    snapshot: Snapshot | None = None
    error: str | None = None


def engines(rows: Sequence[Row], *, empty: str, notes: Sequence[str] = ()) -> Report:
    """Return one row for each engine."""
    items = [_item(row) for row in rows]
    return Report(
        kind="engines",
        data={"engines": items},
        items=items,
        item_kind="engine",
        names=[str(row.pid) for row in rows],
        blocks=[Table(columns=COLUMNS, rows=[_row(row) for row in rows], empty=empty)],
        notes=[*notes, *(line for row in rows if row.snapshot is not None for line in _danger(row.snapshot))],
    )


def _danger(snapshot: Snapshot) -> list[str]:
    """Say of an engine that it reused wrongly: its share of usable tokens leaves that out."""
    wrong = wrong_among(snapshot.geometry, snapshot.decisions)
    if not wrong:
        return []
    told = f"{plural(len(wrong), 'decision')} reused more than every group can resume ({WRONG_REUSE})"
    return [f"note: engine {snapshot.engine.pid}: {told}; kvctl validate says which"]


def _usable_ratio(snapshot: Snapshot) -> float | None:
    if snapshot.decisions is None:
        return None
    reuse = sum_up(snapshot.decisions)
    usable = reuse.usable - beyond(wrong_among(snapshot.geometry, snapshot.decisions))
    return usable / reuse.logical if reuse.logical else None


def _agent(snapshot: Snapshot) -> str:
    off = essential_off(snapshot.capabilities)
    mode = "changes" if snapshot.engine.allow_changes else "read-only"
    return f"{mode}, {len(off)} off" if off else mode


def _row(row: Row) -> list[Value]:
    snapshot = row.snapshot
    if snapshot is None:
        silent = Cell("no answer", Tone.BAD)
        return [str(row.pid), None, row.error, None, None, silent, None, None, None]
    engine = snapshot.engine
    pool = snapshot.pool
    return [
        str(row.pid),
        f"{engine.engine} {engine.version}",
        engine.model,
        engine.name,
        ", ".join(engine.devices) or None,
        _agent(snapshot),
        None if pool is None else usable_pages(pool),
        None if pool is None else pool.usage_ratio,
        _usable_ratio(snapshot),
    ]


def _item(row: Row) -> Json:
    snapshot = row.snapshot
    if snapshot is None:
        return {"pid": row.pid, "answers": False, "error": row.error, **dict.fromkeys(_FIELDS)}
    pool = snapshot.pool
    return {
        "pid": row.pid,
        "answers": True,
        "error": None,
        "engine": head(snapshot)["engine"],
        "pages": None if pool is None else usable_pages(pool),
        "usage_ratio": None if pool is None else pool.usage_ratio,
        "usable_of_logical_ratio": _usable_ratio(snapshot),
        "wrong_reuses": len(wrong_among(snapshot.geometry, snapshot.decisions)),
        "capabilities_off": [item.name for item in snapshot.capabilities if not item.on],
    }


_FIELDS = ("engine", "pages", "usage_ratio", "usable_of_logical_ratio", "wrong_reuses", "capabilities_off")
