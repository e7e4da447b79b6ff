"""What changed between two snapshots.

Invariant: numbers are compared only where both sides have them; prefixes are compared by key only where both files
hold raw keys, because the keys of an anonymised file mean nothing outside it. Used by ``kvctl snapshot diff`` and the
dashboard.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agent.model.snapshot import Snapshot

from .columns import columns_of
from .occupancy import Occupancy, occupancy
from .report import Cell, Column, Json, Kind, Report, Table, Tone, Value
from .reuse import Reuse, sum_up
from .views.common import head

_COLUMNS = (
    Column(header="WHAT", elastic=True),
    Column(header="BEFORE", kind=Kind.COUNT, elastic=True),
    Column(header="AFTER", kind=Kind.COUNT, elastic=True),
    Column(header="CHANGE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs."""

    what: str
    before: str | int | float | None
    after: str | int | float | None


def changes(before: Snapshot, after: Snapshot, *, keys_comparable: bool) -> list[Change]:
    """Return everything that differs.

    Args:
        before: The older one.
        after: The newer one.
        keys_comparable: Both hold raw keys.
    """
    pairs = [*_identity(before, after), *_pool(before, after), *_reuse(before, after), *_groups(before, after)]
    if keys_comparable:
        pairs.extend(_prefixes(before, after))
    return [pair for pair in pairs if pair.before != pair.after]


def _identity(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for name in ("engine", "version", "model", "name", "pid", "start_ticks", "agent_version", "allow_changes"):
        was, now = getattr(before.engine, name), getattr(after.engine, name)
        texts = [str(value) for value in (was, now)]
        yield Change(what=f"engine {name.replace('_', ' ')}", before=texts[0], after=texts[1])
    for name in ("alignment", "hash_unit", "partial_hits", "caching", "retention_interval"):
        was, now = (str(getattr(side.geometry, name)) for side in (before, after))
        yield Change(what=f"geometry {name.replace('_', ' ')}", before=was, after=now)
    shapes = [
        {group.name: (group.kind, group.block_size, len(group.layers)) for group in side.geometry.groups}
        for side in (before, after)
    ]
    for name in sorted(shapes[0].keys() ^ shapes[1].keys()):
        yield Change(what=f"group {name}", before=_there(name in shapes[0]), after=_there(name in shapes[1]))
    states = [{item.name: item.on for item in side.capabilities} for side in (before, after)]
    for name in sorted(states[0].keys() & states[1].keys()):
        yield Change(what=f"capability {name}", before=_on(states[0][name]), after=_on(states[1][name]))


def _there(there: bool) -> str:
    return "present" if there else "absent"


def _on(on: bool) -> str:
    return "on" if on else "off"


def _pool(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    if before.pool is not None and after.pool is not None:
        for name, title in (("pages", "pages"), ("free", "free pages"), ("keys", "keys cached")):
            yield Change(what=title, before=getattr(before.pool, name), after=getattr(after.pool, name))
    if before.requests is not None and after.requests is not None:
        yield Change(what="requests", before=len(before.requests), after=len(after.requests))
        for status in sorted({item.status for item in (*before.requests, *after.requests)}):
            numbers = [sum(item.status == status for item in side) for side in (before.requests, after.requests)]
            yield Change(what=f"requests {status}", before=numbers[0], after=numbers[1])


def _reuse(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    if before.decisions is None or after.decisions is None:
        return
    sums: list[Reuse] = [sum_up(before.decisions), sum_up(after.decisions)]
    for name in ("lookup", "logical", "usable", "external"):
        yield Change(what=f"{name} tokens", before=getattr(sums[0], name), after=getattr(sums[1], name))
    for reason in sorted({reason for one in sums for reason, _ in one.lost}):
        lost = [sum(number for (why, _), number in one.lost.items() if why is reason) for one in sums]
        yield Change(what=f"tokens lost: {reason}", before=lost[0], after=lost[1])


def _groups(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    found: list[Occupancy | None] = [occupancy(before), occupancy(after)]
    if found[0] is None or found[1] is None:
        return
    names = [{group.name: group.id for group in side.geometry.groups} for side in (before, after)]
    for name in sorted(names[0].keys() & names[1].keys()):
        pages = [one.groups[ids[name]] for one, ids in zip(found, names, strict=True) if one is not None]
        for field, title in (("cached", "cached pages"), ("stranded", "stranded pages"), ("stale", "stale pages")):
            yield Change(what=f"{name} {title}", before=getattr(pages[0], field), after=getattr(pages[1], field))


def _prefixes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    if before.pages is None or after.pages is None:
        return
    heads = []
    for side in (before.pages, after.pages):
        columns = columns_of(side)
        heads.append(np.unique(columns.key_head[columns.cached]))
    common = len(np.intersect1d(heads[0], heads[1], assume_unique=True))
    yield Change(what="keys only before", before=len(heads[0]) - common, after=0)
    yield Change(what="keys only after", before=0, after=len(heads[1]) - common)


def report(before: Snapshot, after: Snapshot, *, keys_comparable: bool) -> Report:
    """Return the differences as a report."""
    found = changes(before, after, keys_comparable=keys_comparable)
    items: list[Json] = [{"what": one.what, "before": one.before, "after": one.after} for one in found]
    notes = []
    if not keys_comparable:
        notes.append("note: prefixes were not compared by key: that needs two files saved with --reveal")
    return Report(
        kind="diff",
        data={
            "before": head(before),
            "after": head(after),
            "keys_compared": keys_comparable,
            "differences": items,
        },
        items=items,
        item_kind="difference",
        names=[one.what for one in found],
        blocks=[Table(columns=_COLUMNS, rows=[_row(one) for one in found], empty="no differences")],
        notes=notes,
    )


def _row(one: Change) -> list[Value]:
    number = isinstance(one.before, int | float) and isinstance(one.after, int | float)
    change: Value = "differs"
    if number:
        delta = (one.after or 0) - (one.before or 0)  # type: ignore[operator]
        change = Cell(f"{delta:+,}", Tone.PLAIN)
    return [one.what, one.before, one.after, change]
