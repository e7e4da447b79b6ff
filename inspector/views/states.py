"""States: the five kinds of cache state, how much of each is there, and what its loss costs.

Invariant: all five rows are always shown; one that this engine does not have says so. Read by ``kvctl inspect states``.
"""

from agent.model.snapshot import Snapshot
from agent.model.states import State

from ..explain import STATES
from ..occupancy import GroupPages, Occupancy, occupancy
from ..report import Cell, Column, Json, Kind, Prose, Report, Table, Tone, Value
from ..reuse import Reuse, sum_up
from ..symbols import FIVE
from .common import NO_TABLE, head, notes

_COLUMNS = (
    Column(header="STATE"),
    Column(header="PAGES", kind=Kind.COUNT, blank="-"),
    Column(header="READY", kind=Kind.COUNT, blank="-"),
    Column(header="IN TRANSIT", kind=Kind.COUNT, blank="-"),
    Column(header="STALE", kind=Kind.COUNT, blank="-"),
    Column(header="LOST", kind=Kind.COUNT, blank="-"),
    Column(header="GROUPS", elastic=True, blank="unknown"),
    Column(header="HOLDS", wide=True, elastic=True),
    Column(header="LOSS MEANS", wide=True, elastic=True),
)


def states(snapshot: Snapshot) -> Report:
    """Return one row for each of the five states."""
    found = occupancy(snapshot)
    reuse = None if snapshot.decisions is None else sum_up(snapshot.decisions)
    kinds = list(FIVE)
    if any(State.UNKNOWN in group.states for group in snapshot.geometry.groups):
        kinds.append(State.UNKNOWN)
    items = [_item(snapshot, state, found, reuse) for state in kinds]
    return Report(
        kind="states",
        data={**head(snapshot), "states": items},
        items=items,
        item_kind="state",
        names=[state.value for state in kinds],
        blocks=[Table(columns=_COLUMNS, rows=[_row(item) for item in items]), *_remarks(snapshot)],
        notes=[*notes(snapshot), *([f"note: {NO_TABLE}"] if found is None else [])],
    )


def _remarks(snapshot: Snapshot) -> list[Prose]:
    both = [group.name for group in snapshot.geometry.groups if len(group.states) > 1]
    text = f"A page of {' and '.join(both)} holds two states and is counted for both."
    return [Prose(lines=[Cell(text, Tone.DIM)])] if both else []


def _item(snapshot: Snapshot, state: State, found: Occupancy | None, reuse: Reuse | None) -> Json:
    own = [group for group in snapshot.geometry.groups if state in group.states]
    pages: list[GroupPages] | None = None if found is None else found.of_state(state, snapshot)
    holds, cost = STATES[state]
    disk = state is State.ON_DISK
    tiers = snapshot.tiers
    entries = None if tiers is None else sum(tier.entries or 0 for tier in tiers)
    lost = None
    if reuse is not None and reuse.explained:
        ids = {group.id for group in own if group.state is state}
        lost = sum(tokens for (_, group), tokens in reuse.lost.items() if group in ids)
    return {
        "state": state.value,
        "present": (None if tiers is None else bool(tiers)) if disk else bool(own),
        "groups": [group.name for group in own],
        "tiers": None if tiers is None or not disk else [tier.name for tier in tiers],
        "pages": entries if disk else None if pages is None else sum(item.cached for item in pages),
        "pages_ready": None if disk or pages is None else sum(item.ready for item in pages),
        "pages_in_transit": None if disk or pages is None else sum(item.in_transit for item in pages),
        "pages_stale": None if disk or pages is None else sum(item.stale for item in pages),
        "lost_tokens": None if disk else lost,
        "holds": holds,
        "cost_of_loss": cost,
    }


def _row(item: Json) -> list[Value]:
    if item["present"] is False:
        tier = "no other tier on this engine" if item["state"] == State.ON_DISK else "not in this model"
        return [item["state"], None, None, None, None, None, Cell(tier, Tone.DIM), item["holds"], item["cost_of_loss"]]

    def known(name: str) -> Value:
        return "unknown" if item[name] is None else item[name]

    lost = known("lost_tokens")
    return [
        item["state"],
        known("pages"),
        known("pages_ready"),
        known("pages_in_transit"),
        known("pages_stale"),
        Cell(lost, Tone.BAD) if isinstance(lost, int) and lost else lost,
        ", ".join(item["groups"] or item["tiers"] or ()) or None,
        item["holds"],
        item["cost_of_loss"],
    ]
