"""Gate 1, the content side: keys, positions, stamps and generations.

Invariant: nothing here needs reference counts, so it works at content level too. Called by ``agent.gates.block``.
"""

import numpy as np

from ..model.evidence import BindConflict
from ..model.snapshot import Consistency, PageColumns, Snapshot
from .report import GateReport
from .view import View, instance

FENCE = "commit_fence"
"""Capability of the probe without which nobody knows what was computed."""


def check_content(view: View, report: GateReport, previous: Snapshot | None) -> None:
    """Run the content half of gate 1."""
    _hash_table(view, report)
    _collisions(view, report)
    _partial(view, report)
    _fence(view, report)
    _transfers(view, report)
    _generations(view, report, previous)


def _hash_table(view: View, report: GateReport) -> None:
    """KV101, KV102: the engine's hash table against the pages, both ways."""
    evidence = view.snapshot.evidence
    table = None if evidence is None else evidence.hash_table
    if table is None:
        _count_keys(view, report)
        return
    page = np.frombuffer(table.page, dtype="<i4", count=table.count).astype(np.int64)
    key = np.frombuffer(table.key, dtype="<u8", count=2 * table.count).reshape(-1, 2)
    group = np.frombuffer(table.group, dtype="u1", count=table.count)
    good = (page >= 0) & (page < view.count)
    page, key, group = page[good], key[good], group[good]
    same = view.keyed[page] & (view.key[page] == key).all(axis=1) & (view.group[page] == group)
    report.looked("KV101", len(page), empty="the hash table is empty")
    strange = np.flatnonzero(~same)
    secondary = _secondary_rows(view.columns)
    wrong = [
        int(page[row]) for row in strange if (int(page[row]), key[row].tobytes(), int(group[row])) not in secondary
    ]
    if wrong:
        report.add("KV101", pages=sorted(set(wrong)), count=len(set(wrong)))
    report.looked("KV102", int(view.keyed.sum()), empty="no page carries a key")
    known = np.zeros(view.count, dtype=np.bool_)
    known[page[same]] = True
    orphans = np.flatnonzero(view.keyed & ~known)
    if len(orphans):
        report.add("KV102", pages=orphans, count=len(orphans))


def _count_keys(view: View, report: GateReport) -> None:
    """Without the hash table itself its length must still be the number of different keys that pages carry.

    Equal numbers prove little, so the codes abstain; different ones are a fault.
    """
    pool = view.snapshot.pool
    evidence = view.snapshot.evidence
    reason = None if evidence is None else evidence.missing.get("hash_table")
    if pool is None or pool.keys is None or view.snapshot.capture.consistency is Consistency.TORN:
        report.cannot(("KV101", "KV102"), reason or "the engine's hash table was not read beside its pages")
        return
    index = view.index
    primary = int((index.canonical == np.arange(len(index.pages))).sum())
    extra = {(key[:16], int.from_bytes(key[16:20], "big")) for keys in view.columns.extra_keys.values() for key in keys}
    heads = np.frombuffer(b"".join(key for key, _ in extra), dtype="<u8").reshape(-1, 2)
    known = sum(
        bool(index.carries(index.find(heads[at : at + 1, 0], group), heads[at : at + 1, 1])[0])
        for at, (_, group) in enumerate(extra)
    )
    carried = primary + len(extra) - known
    if carried == pool.keys:
        report.cannot(("KV101", "KV102"), reason or "the engine's hash table was only counted: its length is right")
        return
    code = "KV101" if pool.keys > carried else "KV102"
    report.looked(code, 1)
    report.add(code, page=None, count=abs(pool.keys - carried), keys=pool.keys, carried=carried)
    report.cannot(("KV101", "KV102"), "the engine's hash table was only counted")


def _secondary_rows(columns: PageColumns) -> set[tuple[int, bytes, int]]:
    return {
        (int(page), key[:16], int.from_bytes(key[16:20], "big"))
        for page, keys in columns.extra_keys.items()
        for key in keys
    }


def _collisions(view: View, report: GateReport) -> None:
    """KV114: one key of one group at two positions. A chained hash stands for one prefix, so for one position."""
    index = view.index
    report.looked("KV114", len(index.pages), empty="no page carries a key")
    canonical = index.canonical
    doubles = np.flatnonzero(canonical != np.arange(len(canonical)))
    first = canonical[doubles]
    moved = view.tokens[index.pages[doubles]] != view.tokens[index.pages[first]]
    for row in np.flatnonzero(moved & index.same(first, doubles))[:16]:
        one, other = int(index.pages[first[row]]), int(index.pages[doubles[row]])
        report.add(
            "KV114",
            pages=(one, other),
            group=int(view.group[one]),
            other=other,
            first=int(view.tokens[one]),
            second=int(view.tokens[other]),
        )


def _partial(view: View, report: GateReport) -> None:
    """KV116: keys that end inside a page, one finding a group."""
    report.looked("KV116", int(view.keyed.sum()), empty="no page carries a key")
    inside = view.keyed & (view.tokens % view.block_sizes.astype(np.uint32)[view.group] != 0)
    if not inside.any():
        return
    for group in view.groups:
        pages = np.flatnonzero(inside & (view.group == group.id))
        if not len(pages) or (view.snapshot.geometry.partial_hits and group.fine_grained):
            continue
        report.add("KV116", pages=pages, group=group.id, count=len(pages), value=int(view.tokens[pages[0]]))


def _fence(view: View, report: GateReport) -> None:
    """KV118, KV119: registered but never computed, and what was computed on top."""
    columns = view.columns
    fence = next((item for item in view.snapshot.capabilities if item.name == FENCE and not item.on), None)
    if fence is not None:
        report.cannot(("KV118", "KV119"), fence.reason or "the commit fence is off")
        return
    keyed = int(view.keyed.sum())
    report.looked("KV118", keyed, empty="no page carries a key")
    report.looked("KV119", keyed, empty="no page carries a key")
    if columns.never_computed:
        never = np.array(sorted(columns.never_computed), dtype=np.uint64)
        pages = np.flatnonzero(view.keyed & np.isin(view.stamp, never) & (view.stamp != 0))
        if len(pages):
            report.add("KV118", pages=pages, count=len(pages), value=int(view.tokens[pages[0]]))
    if columns.tainted:
        ids = view.inside(np.array(sorted(columns.tainted), dtype=np.int64))
        ids = ids[view.keyed[ids]]
        if len(ids):
            report.add("KV119", pages=ids, count=len(ids))


def _transfers(view: View, report: GateReport) -> None:
    """KV115: a page written while somebody may read it, or read while somebody else owns it by now."""
    evidence = view.snapshot.evidence
    if evidence is None or evidence.transfers is None:
        reason = None if evidence is None else evidence.missing.get("transfers")
        report.cannot(["KV115"], reason or "transfers in flight were not read")
        return
    report.looked("KV115", len(evidence.transfers), empty="no transfer is in flight")
    running: set[int] = set()
    for request in view.requests or ():
        if request.status == "running":
            running.update(page for row in request.tables or () for page in row)
    free = view.free_counts
    into, out = [], []
    for transfer in evidence.transfers:
        page = int(transfer.page)
        if not 0 <= page < view.count:
            continue
        if transfer.into and (page in running or (free is not None and free[page] > 0)):
            into.append(page)
        if not transfer.into and int(view.stamp[page]) != transfer.stamp and bool(view.keyed[page]):
            out.append(page)
    if into:
        report.add("KV115", pages=into, direction="into it")
    if out:
        report.add("KV115", pages=out, direction="out of it")


def _how(moved: BindConflict) -> str:
    """Say what is another one: a generation rises with the next key, which a page that lost its key need not have."""
    before, after = moved.stamp_checked, moved.stamp_bound
    if before != after:
        return f"generation {before or 'unknown'} when checked, {after or 'unknown'} when bound"
    end = f"still under generation {after}" if after else "its generation is unknown"
    return f"the key that it was checked for was gone when it was bound, {end}"


def _generations(view: View, report: GateReport, previous: Snapshot | None) -> None:
    """KV113: conflicts that the probe counted, and content that changed under one generation."""
    evidence = view.snapshot.evidence
    binds = None if evidence is None else evidence.binds
    if binds is not None:
        report.looked("KV113", binds.compared, empty="no page was bound yet")
        moved = [item for item in binds.conflicts if item.checked == item.bound]
        if moved:
            first = moved[0]
            report.add(
                "KV113",
                pages=[item.bound for item in moved],
                count=len(moved),
                whose=f" of request {first.request}",
                how=_how(first),
                request=first.request,
            )
    if previous is None or previous.pages is None or instance(previous) != instance(view.snapshot):
        if binds is None:
            reason = None if evidence is None else evidence.missing.get("binds")
            alone = "there is no earlier snapshot to compare with"
            report.cannot(["KV113"], f"{reason or 'binds are not compared by this probe'}, and {alone}")
        return
    before = View(previous)
    if before.count != view.count:
        report.cannot(["KV113"], "the pool had another size in the earlier snapshot")
        return
    both = before.keyed & view.keyed & (view.stamp != 0) & (before.stamp == view.stamp)
    report.looked("KV113", int(both.sum()), empty="no page carries a key in both snapshots")
    silent = np.flatnonzero(both & ((before.key != view.key).any(axis=1) | (before.group != view.group)))
    if len(silent):
        how = f"another key under the same generation {int(view.stamp[silent[0]])}"
        report.add("KV113", pages=silent, count=len(silent), whose="", how=how)
