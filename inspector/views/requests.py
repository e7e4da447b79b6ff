"""Requests: what each computes, holds, and waits for.

Invariant: ids are free text that clients chose; they go to the renderer as they are. Read by ``kvctl inspect
requests``.
"""

from agent.model.snapshot import RequestInfo, Snapshot

from ..format import UNKNOWN
from ..report import Cell, Column, Json, Kind, Prose, Report, Table, Tone
from .common import head, notes

_COLUMNS = (
    Column(header="REQUEST", elastic=True, identity=True),
    Column(header="STATUS"),
    Column(header="PROMPT", kind=Kind.COUNT),
    Column(header="TOKENS", kind=Kind.COUNT),
    Column(header="COMPUTED", kind=Kind.COUNT),
    Column(header="PAGES", kind=Kind.COUNT),
    Column(header="PREEMPTED", kind=Kind.COUNT),
    Column(header="IN FLIGHT", kind=Kind.COUNT, wide=True),
    Column(header="PRIORITY", kind=Kind.COUNT, wide=True),
)


def requests(snapshot: Snapshot) -> Report:
    """Return one row for each request that the engine knows."""
    found = snapshot.requests
    if found is None:
        return Report(
            kind="requests",
            data={**head(snapshot), "requests": None},
            item_kind="request",
            blocks=[Prose(lines=[f"{UNKNOWN}: no requests were read"])],
            notes=notes(snapshot),
        )
    null_page = None if snapshot.pool is None else snapshot.pool.null_page
    items = [_item(request, null_page) for request in found]
    rows = [
        [
            item["id"],
            Cell(item["status"], Tone.GOOD if item["status"] == "running" else Tone.PLAIN),
            item["prompt_tokens"],
            item["tokens"],
            item["computed_tokens"],
            item["pages"],
            item["preemptions"],
            item["in_flight_tokens"],
            item["priority"],
        ]
        for item in items
    ]
    return Report(
        kind="requests",
        data={**head(snapshot), "requests": items},
        items=items,
        item_kind="request",
        names=[f"request:{request.id}" for request in found],
        blocks=[Table(columns=_COLUMNS, rows=rows, empty="the engine has no requests now")],
        notes=notes(snapshot),
    )


def _item(request: RequestInfo, null_page: int | None) -> Json:
    tables = request.tables
    held = None if tables is None else len({page for table in tables for page in table if page != null_page})
    return {
        "id": request.id,
        "status": request.status,
        "prompt_tokens": request.prompt_tokens,
        "tokens": request.tokens,
        "computed_tokens": request.computed_tokens,
        "in_flight_tokens": request.in_flight_tokens,
        "pages": held,
        "pages_by_group": None if tables is None else [sum(page != null_page for page in table) for table in tables],
        "preemptions": request.preemptions,
        "priority": request.priority,
    }
