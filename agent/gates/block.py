"""Gate 1, block level: the page exists, is counted right, and was not taken away.

Invariant: every check is vectorised over the pool and says what it looked at; holders of a page are request tables and
everything in ``Snapshot.holders``. Called by ``agent.gates.runner``.
"""

import numpy as np

from ..model.snapshot import Snapshot
from ..model.states import ResumeKind
from .block_content import check_content
from .index import Flags, Ints
from .report import GateReport
from .view import Tables, View

_COUNTS = ("KV103", "KV104", "KV105", "KV109", "KV110")
_NO_TABLE = "no page table was read"
_CONTENT_LEVEL = "reference counts were not read (content level); validate reads them"
_NO_FREE = "the free list was not walked"
_NO_TABLES = "request tables were not read"
_NAMED = 3
"""Requests that a finding names; more are counted."""


def check(view: View, report: GateReport, previous: Snapshot | None) -> None:
    """Run gate 1.

    Args:
        view: The snapshot.
        report: Where to say it.
        previous: An earlier snapshot of the same engine, for KV113.
    """
    if view.snapshot.pages is None or view.count == 0:
        report.cannot([f"KV{number}" for number in range(101, 120)], _NO_TABLE)
        return
    _references(view, report)
    _free_list(view, report)
    _use(view, report)
    _ownership(view, report)
    _range(view, report)
    check_content(view, report, previous)


def _where(mask: Flags) -> Ints:
    return np.flatnonzero(mask)


def _references(view: View, report: GateReport) -> None:
    """KV103, KV104, KV105: count against free list."""
    counts, free = view.references, view.free_counts
    if counts is None:
        report.cannot(_COUNTS, _CONTENT_LEVEL)
        return
    pages = int(view.real.sum())
    negative = _where((counts < 0) & view.real)
    report.looked("KV103", pages)
    if len(negative):
        report.add("KV103", pages=negative, count=len(negative), value=int(counts[negative[0]]))
    if free is None:
        report.cannot(("KV104", "KV105"), _NO_FREE)
        return
    report.looked("KV104", pages)
    report.looked("KV105", pages)
    held = _where((counts > 0) & (free > 0) & view.real)
    if len(held):
        report.add("KV104", pages=held, count=len(held))
    leaked = _where((counts == 0) & (free == 0) & view.real)
    if len(leaked):
        report.add("KV105", pages=leaked, count=len(leaked))


def _free_list(view: View, report: GateReport) -> None:
    """KV106, KV107, KV108: the free list itself."""
    free = view.free_counts
    null_keyed = view.null is not None and bool(view.tokens[view.null])
    if free is None:
        report.cannot(("KV106", "KV107"), _CONTENT_LEVEL if view.references is None else _NO_FREE)
    else:
        distinct = int(((free > 0) & view.real).sum())
        pool = view.snapshot.pool
        if pool is None or pool.free is None:
            report.cannot(["KV106"], "the free counter was not read")
        else:
            report.looked("KV106", max(distinct, 1))
            if pool.free != distinct:
                report.add("KV106", counter=pool.free, distinct=distinct, difference=pool.free - distinct)
        _repeated(view, report, free)
    if view.null is None:
        report.cannot(["KV108"], "this pool has no null page")
        return
    report.looked("KV108", 1)
    if free is not None and free[view.null]:
        report.add("KV108", pages=[view.null], where="in the free list")
    if null_keyed:
        report.add("KV108", pages=[view.null], where="in the hash table")


def _repeated(view: View, report: GateReport, free: Ints) -> None:
    """KV107: needs the walked list; flags cannot show a repetition."""
    if view.free_ids is None:
        report.cannot(["KV107"], "the free list was read as flags, which cannot show a repetition")
        return
    report.looked("KV107", len(view.free_ids), empty="the free list is empty")
    twice = _where(free > 1)
    if len(twice):
        report.add("KV107", pages=twice, count=len(twice))


def _use(view: View, report: GateReport) -> None:
    """KV109, KV110: count against holders."""
    counts, tables, in_tables = view.references, view.tables, view.table_holders
    if counts is None:
        return
    if tables is None or in_tables is None:
        report.cannot(("KV109", "KV110"), _NO_TABLES)
        return
    report.looked("KV109", len(tables.page), empty="no request holds a page")
    dead = _where((in_tables > 0) & (counts <= 0))
    if len(dead):
        owner = tables.request[np.flatnonzero(tables.page == dead[0])[0]]
        report.add("KV109", pages=dead, count=len(dead), request=view.request_name(owner))
    holders = in_tables.copy()
    if view.snapshot.holders is not None:
        ids = np.array(view.holder_ids(), dtype=np.int64)
        extra = np.array(list(view.snapshot.holders.values()), dtype=np.int64)
        good = (ids >= 0) & (ids < view.count)
        np.add.at(holders, ids[good], extra[good])
    report.looked("KV110", int(view.real.sum()))
    # Without the other holders a count may well be higher than the tables say; lower it must never be.
    wrong = (holders > counts) if view.snapshot.holders is None else (holders != counts)
    pages = _where(wrong & (counts > 0) & view.real)
    if len(pages):
        first = pages[0]
        report.add(
            "KV110",
            pages=pages,
            count=len(pages),
            value=int(counts[first]),
            holders=int(holders[first]),
            requests=_holding(view, tables, int(first)),
            others_known="yes" if view.snapshot.holders is not None else "no",
        )


def _holding(view: View, tables: Tables, page: int) -> str:
    """Name the requests whose tables hold a page, some of them where they are many."""
    names = [view.request_name(number) for number in np.unique(tables.request[tables.page == page])]
    if not names:
        return "in no request's table"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'request' if len(names) == 1 else 'requests'} {', '.join(names[:_NAMED])}{more}"


def _ownership(view: View, report: GateReport) -> None:
    """KV111, KV117: what the tables say against what the page says."""
    tables = view.tables
    if tables is None:
        report.cannot(("KV111", "KV117"), _NO_TABLES)
        return
    report.looked("KV111", len(tables.page), empty="no request holds a page")
    lowest = np.full(view.count, 256, dtype=np.int64)
    highest = np.full(view.count, -1, dtype=np.int64)
    np.minimum.at(lowest, tables.page, tables.group)
    np.maximum.at(highest, tables.page, tables.group)
    keyed = view.keyed
    lowest[keyed & (highest >= 0)] = np.minimum(lowest, view.group)[keyed & (highest >= 0)]
    highest[keyed & (highest >= 0)] = np.maximum(highest, view.group)[keyed & (highest >= 0)]
    shared = _where((highest >= 0) & (lowest != highest))
    if len(shared):
        first = shared[0]
        pair = (int(lowest[first]), int(highest[first]))
        report.add(
            "KV111",
            pages=shared,
            count=len(shared),
            first=pair[0],
            second=pair[1],
            owners=" and ".join(view.group_name(group) for group in pair),
            requests=_holding(view, tables, int(first)),
        )
    _positions(view, report, tables, shared)


def _positions(view: View, report: GateReport, tables: Tables, shared: Ints) -> None:
    """KV117 for kinds whose table index is the position; recurrent tables are not laid out so."""
    straight = np.zeros(256, dtype=np.bool_)
    for group in view.groups:
        straight[group.id] = group.kind in {ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED}
    owned = np.ones(view.count, dtype=np.bool_)
    owned[shared] = False
    mask = view.keyed[tables.page] & straight[tables.group] & owned[tables.page]
    rows = tables.only(mask)
    report.looked("KV117", len(rows.page), empty="no request holds a page that carries a key")
    size = view.block_sizes[rows.group]
    position = view.tokens[rows.page].astype(np.int64)
    wrong = np.flatnonzero((position <= rows.place * size) | (position > (rows.place + 1) * size))
    if len(wrong):
        first = wrong[0]
        report.add(
            "KV117",
            pages=np.unique(rows.page[wrong]),
            page=int(rows.page[first]),
            count=len(np.unique(rows.page[wrong])),
            request=view.request_name(rows.request[first]),
            table=int((rows.place[first] + 1) * size[first]),
            value=int(position[first]),
        )


def _range(view: View, report: GateReport) -> None:
    """KV112: ids outside the pool, in any table."""
    named = view.all_named_ids()
    if not named:
        report.cannot(["KV112"], "no table that names pages was read")
        return
    report.looked("KV112", sum(len(ids) for _, ids in named), empty="no table names a page")
    outside = [(where, ids[(ids < 0) | (ids >= view.count)]) for where, ids in named]
    count = sum(len(ids) for _, ids in outside)
    if count:
        where, ids = next((where, ids) for where, ids in outside if len(ids))
        report.add("KV112", page=int(ids[0]), count=count, size=view.count, where=where)
