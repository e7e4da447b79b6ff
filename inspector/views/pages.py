"""Pages: what the pool's memory is doing, and single pages on request.

Invariant: the lines of the breakdown add up to the pool. Read by ``kvctl inspect pages`` and the dashboard.
"""

import numpy as np

from agent.columns import in_transit
from agent.feedformat import STEP_SHIFT
from agent.model.snapshot import Snapshot

from ..columns import columns_of, stale
from ..format import bar, percent
from ..occupancy import Occupancy, occupancy
from ..report import Cell, Column, Json, Kind, Report, Table, Tone, Value
from .common import NO_TABLE, head, key_text, notes

LISTED = 20
"""Pages listed where no limit was given."""

_PARTS = (
    ("working", "held, no key", "partly filled, not shared"),
    ("cached_held", "held, cached", "in use, cannot be evicted now"),
    ("cached_idle", "idle, cached", "reusable, evicted for space"),
    ("empty", "empty", "free at once"),
)

_LIST_COLUMNS = (
    Column(header="PAGE", kind=Kind.COUNT),
    Column(header="GROUP", elastic=True),
    Column(header="ENDS AT", kind=Kind.COUNT, blank="-"),
    Column(header="STATUS"),
    Column(header="HELD BY", kind=Kind.COUNT),
    Column(header="KEY", blank="-"),
    Column(header="REGISTERED", wide=True),
)


def pages(snapshot: Snapshot, *, limit: int = LISTED, reveal: bool = False) -> Report:
    """Return the breakdown of the pool and its first cached pages by position."""
    found = occupancy(snapshot)
    items = [] if found is None else _listed(snapshot, limit, reveal=reveal)
    blocks = [] if found is None else [_breakdown(found, snapshot), _list(items, found)]
    return Report(
        kind="pages",
        data={**head(snapshot), "pool": _pool_data(found), "pages": None if found is None else items},
        items=items,
        item_kind="page",
        names=[f"page:{item['page']}" for item in items],
        blocks=blocks,
        notes=[*notes(snapshot), *([f"note: {NO_TABLE}"] if found is None else [])],
    )


def _pool_data(found: Occupancy | None) -> Json | None:
    if found is None:
        return None
    return {
        "pages": found.pages,
        "cached": found.cached,
        "cached_held": found.cached_held,
        "cached_idle": found.cached_idle,
        "working": found.working,
        "empty": found.empty,
        "stranded": found.stranded,
    }


def _breakdown(found: Occupancy, snapshot: Snapshot) -> Table:
    rows: list[list[Value]] = []
    for name, title, meaning in _PARTS:
        number: int | None = getattr(found, name)
        ratio = None if number is None or not found.pages else number / found.pages
        rows.append([title, number, percent(ratio), bar(ratio, 12), meaning])
    stranded = None if found.stranded is None or not found.pages else found.stranded / found.pages
    tone = Tone.WARN if found.stranded else Tone.PLAIN
    rows.append(
        [
            Cell("stranded", tone),
            found.stranded,
            percent(stranded),
            bar(stranded, 12),
            "cached, but part of no usable hit",
        ]
    )
    columns = (
        Column(header="PAGES"),
        Column(header="NUMBER", kind=Kind.COUNT),
        Column(header="SHARE"),
        Column(header=""),
        Column(header="MEANING", elastic=True),
    )
    return Table(columns=columns, rows=rows, title=f"{found.pages:,} pages of {snapshot.engine.engine}'s pool")


def _list(items: list[Json], found: Occupancy) -> Table:
    rows = [
        [
            str(item["page"]),
            item["group"],
            item["tokens"],
            Cell(item["status"], Tone.PLAIN if item["status"] == "ready" else Tone.BAD),
            item["references"],
            item["key"],
            _step(item["stamp"]),
        ]
        for item in items
    ]
    title = f"cached pages, the furthest first ({len(items)} of {found.cached:,}; --limit shows more)"
    return Table(columns=_LIST_COLUMNS, rows=rows, title=title, empty="no page carries a key: the cache is empty")


def _step(stamp: int | None) -> str | None:
    return None if stamp is None else f"step {stamp >> STEP_SHIFT:,}"


def _listed(snapshot: Snapshot, limit: int, *, reveal: bool) -> list[Json]:
    if snapshot.pages is None:
        return []
    columns = columns_of(snapshot.pages)
    moving, old = in_transit(snapshot.pages), stale(snapshot, columns)

    cached = np.flatnonzero(columns.cached)
    picked = cached[np.lexsort((cached, -columns.tokens[cached].astype(np.int64)))][:limit]
    groups = snapshot.geometry.groups
    listed = []
    for page in picked.tolist():
        group = int(columns.group[page])
        status = "stale" if old[page] else "in_transit" if moving[page] else "ready"
        listed.append(
            {
                "page": page,
                "group": groups[group].name if group < len(groups) else None,
                "tokens": int(columns.tokens[page]),
                "status": status,
                "references": None if columns.references is None else int(columns.references[page]),
                "key": key_text(columns.key[page].tobytes(), reveal=reveal),
                "stamp": int(columns.stamp[page]) or None,
            }
        )
    return listed
