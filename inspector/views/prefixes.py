"""Prefixes: the tree of what is cached, with the five-state row of each.

Invariant: a row is the end of a chain that the table proves; pieces without a beginning are counted as fragments.
Read by ``kvctl inspect prefixes`` and the dashboard.
"""

from agent.model.snapshot import Snapshot

from ..format import plural
from ..prefixes import Prefixes, PrefixRow
from ..report import Cell, Column, Json, Kind, Prose, Report, Table, Tone, Value
from ..symbols import FIVE, LEGEND, SHORT, sign
from .common import NO_TABLE, group_name, head, key_text, notes

_NAMED_GROUPS = 3

LISTED = 20
"""Prefixes shown where no limit was given."""

_COLUMNS = (
    Column(header="PREFIX"),
    Column(header="TOKENS", kind=Kind.COUNT),
    Column(header="LOGICAL", kind=Kind.COUNT),
    Column(header="USABLE", kind=Kind.COUNT),
    *(Column(header=SHORT[state]) for state in FIVE),
    Column(header="LIMITED BY", elastic=True, blank="-"),
    Column(header="PAGES", kind=Kind.COUNT, wide=True),
    Column(header="STRANDED", kind=Kind.COUNT, wide=True),
    Column(header="SHARES", kind=Kind.COUNT, wide=True),
)


def prefixes(snapshot: Snapshot, *, limit: int = LISTED, reveal: bool = False) -> Report:
    """Return the longest cached prefixes, those with a common beginning together."""
    if snapshot.pages is None:
        return Report(
            kind="prefixes",
            data={**head(snapshot), "prefixes": None, "total": None, "fragments": None},
            item_kind="cached_prefix",
            blocks=[Prose(lines=["unknown: no page table was read"])],
            notes=[*notes(snapshot), f"note: {NO_TABLE}"],
        )
    found = Prefixes(snapshot)
    rows = found.rows(limit)
    items = [item_of(snapshot, row, reveal=reveal) for row in rows]
    table = Table(
        columns=_COLUMNS,
        rows=[_row(snapshot, row, reveal=reveal) for row in rows],
        title=f"{len(rows)} of {plural(len(found.ends), 'cached prefix', 'cached prefixes')}, the longest first",
        empty="no prefix is cached: the cache is empty, or every cached piece is shorter than one hit",
    )
    return Report(
        kind="prefixes",
        data={**head(snapshot), "prefixes": items, "total": len(found.ends), "fragments": found.fragments},
        items=items,
        item_kind="cached_prefix",
        names=[key_text(row.key, reveal=True) for row in rows] if reveal else [item["key"] for item in items],
        blocks=[table, Prose(lines=_legend(found, rows))],
        notes=notes(snapshot),
    )


def item_of(snapshot: Snapshot, row: PrefixRow, *, reveal: bool) -> Json:
    """Return one prefix as JSON."""
    return {
        "key": key_text(row.key, reveal=reveal),
        "tokens": row.tokens,
        "logical_tokens": row.logical,
        "usable_tokens": row.usable,
        "shared_tokens": row.shared,
        "limiting_group": group_name(snapshot.geometry, row.limiting),
        "pages": row.pages,
        "pages_stranded": row.stranded,
        "states": {state.value: None if status is None else status.value for state, status in row.states.items()},
        "groups": {group_name(snapshot.geometry, group): status.value for group, status in row.groups.items()},
    }


def _row(snapshot: Snapshot, row: PrefixRow, *, reveal: bool) -> list[Value]:
    lead = "" if not row.shared else "· " if row.shared == row.tokens else "└ "
    usable = Cell(row.usable, Tone.PLAIN if row.usable == row.logical else Tone.BAD)
    return [
        lead + key_text(row.key, reveal=reveal).removeprefix("hash:"),
        row.tokens,
        row.logical,
        usable,
        *(sign(row.states[state]) for state in FIVE),
        group_name(snapshot.geometry, row.limiting),
        row.pages,
        row.stranded,
        row.shared,
    ]


def _legend(found: Prefixes, rows: list[PrefixRow]) -> list[str | Cell]:
    lines: list[str | Cell] = [Cell(LEGEND, Tone.DIM)]
    if any(row.shared == row.tokens for row in rows):
        lines.append(Cell("· is the beginning of the prefix above; a page between the two is gone", Tone.DIM))
    if any(0 < row.shared < row.tokens for row in rows):
        lines.append(Cell("└ branches off the prefix above (-o wide says where)", Tone.DIM))
    if found.unlinked:
        pages = plural(found.unlinked, "page")
        lines.append(
            Cell(
                f"{pages} cached before this reader joined: the engine keeps no chain, so what lies before is unknown",
                Tone.DIM,
            )
        )
    if found.fragments:
        lines.append(Cell(_fragments(found), Tone.DIM))
    return lines


def _fragments(found: Prefixes) -> str:
    """Say how many pieces are no prefixes, of which groups they are, and why they are none."""
    names = [group_name(found.snapshot.geometry, group) or "" for group in found.fragment_groups]
    of = ", ".join(names[:_NAMED_GROUPS]) + (", ..." if len(names) > _NAMED_GROUPS else "")
    why = "its beginning is gone, or it is" if found.fragments == 1 else "their beginning is gone, or they are"
    return f"{plural(found.fragments, 'fragment')} of {of} not shown: {why} shorter than one hit"
