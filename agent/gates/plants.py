"""Faults to plant into a copy of a snapshot: one for each code of gates 1 and 3 and of the page side of gate 2.

Invariant: a plant makes exactly its own code appear, and says why not where the snapshot cannot carry the fault. For
the self-test and for tests; nothing is ever planted into an engine.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from ..model.decision import Decision, Outcome, Phase, Reason, WaterfallStep
from ..model.evidence import BindConflict, Binds, EngineLookup, HashTable, Transfer, Weights
from ..model.groups import Group
from ..model.states import PageId, ResumeKind
from .editor import Editor, hash_rows
from .intersection import may_deviate

Plant = Callable[[Editor], str | None]
"""Plants one fault; gives the reason where this snapshot cannot carry it."""

_STRAIGHT = frozenset({ResumeKind.FULL, ResumeKind.WINDOW, ResumeKind.CHUNKED})
_NO_COUNTS = "no reference counts"
_NO_ROOM = "no page without a holder"
_STAMP = (1 << 60) | 7
"""A stamp that no engine reaches: step 2^40."""


def _key(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def _straight(editor: Editor) -> Group | None:
    return next((group for group in editor.snapshot.geometry.groups if group.kind in _STRAIGHT), None)


def _keyed(editor: Editor, number: int = 1) -> list[int]:
    """Give vacant pages a proper key each."""
    pages = editor.vacant(number)
    block = editor.snapshot.geometry.groups[0].block_size
    for at, page in enumerate(pages):
        editor.put_key(page, 0, _key(f"planted {at}"), block)
    return pages


def _hash_table(editor: Editor, *, strange: bool) -> str | None:
    pages = _keyed(editor, 2)
    if len(pages) < 2:
        return _NO_ROOM
    rows = hash_rows(editor)
    at = int(np.flatnonzero(rows["page"] == pages[0])[0])
    if strange:
        rows = {name: np.concatenate([column, column[at : at + 1]]) for name, column in rows.items()}
        rows["key"][-1] = np.frombuffer(_key("somebody else"), dtype="u1")
    else:
        rows = {name: np.delete(column, at, axis=0) for name, column in rows.items()}
    table = HashTable(
        count=len(rows["page"]),
        key=memoryview(rows["key"].tobytes()),
        group=memoryview(rows["group"].tobytes()),
        page=memoryview(rows["page"].tobytes()),
    )
    editor.witness(hash_table=table)
    return None


def _kv101(editor: Editor) -> str | None:
    return _hash_table(editor, strange=True)


def _kv102(editor: Editor) -> str | None:
    return _hash_table(editor, strange=False)


def _counted(editor: Editor) -> int | str:
    if editor.references is None:
        return _NO_COUNTS
    pages = editor.vacant(1)
    return pages[0] if pages else _NO_ROOM


def _kv103(editor: Editor) -> str | None:
    page = _counted(editor)
    if isinstance(page, str) or editor.references is None:
        return str(page)
    editor.references[page] = -1
    return None


def _kv104(editor: Editor) -> str | None:
    page = _counted(editor)
    if isinstance(page, str) or editor.references is None:
        return str(page)
    if editor.free_list is None and editor.free is None:
        return "no free list"
    editor.references[page] = 1
    if editor.holders is not None:
        editor.holders[PageId(page)] = 1
    return None


def _kv105(editor: Editor) -> str | None:
    page = _counted(editor)
    if isinstance(page, str):
        return page
    if editor.free_list is None and editor.free is None:
        return "no free list"
    editor.unlist(page)
    return None


def _kv106(editor: Editor) -> str | None:
    if editor.pool is None or editor.pool.free is None or (editor.free_list is None and editor.free is None):
        return "no free counter, or no free list"
    editor.count_free(1)
    return None


def _kv107(editor: Editor) -> str | None:
    if not editor.free_list:
        return "the free list was not walked, or is empty"
    editor.free_list.append(editor.free_list[0])
    return None


def _kv108(editor: Editor) -> str | None:
    if editor.null is None:
        return "no null page"
    editor.put_key(editor.null, 0, _key("null"), editor.snapshot.geometry.groups[0].block_size)
    return None


def _kv109(editor: Editor) -> str | None:
    page = _counted(editor)
    if isinstance(page, str):
        return page
    editor.add_request("planted", {0: [page]})
    return None


def _kv110(editor: Editor) -> str | None:
    page = _counted(editor)
    if isinstance(page, str):
        return page
    editor.hold(page, 1)
    editor.add_request("planted 1", {0: [page]})
    editor.add_request("planted 2", {0: [page]})
    return None


def _kv111(editor: Editor) -> str | None:
    pages = editor.vacant(1)
    if not pages or len(editor.snapshot.geometry.groups) < 2:
        return "one group only, or no room"
    editor.hold(pages[0], 2)
    editor.add_request("planted", {0: pages, 1: pages})
    return None


def _kv112(editor: Editor) -> str | None:
    editor.add_request("planted", {0: [editor.count + 5]})
    return None


def _kv113(editor: Editor) -> str | None:
    conflict = BindConflict(request="planted", checked=PageId(1), bound=PageId(1), stamp_checked=1, stamp_bound=2)
    editor.witness(binds=Binds(compared=1, conflicts=(conflict,)))
    return None


def _kv114(editor: Editor) -> str | None:
    pages = _keyed(editor, 2)
    if len(pages) < 2:
        return _NO_ROOM
    block = editor.snapshot.geometry.groups[0].block_size
    editor.put_key(pages[1], 0, _key("planted 0"), 2 * block)
    return None


def _kv115(editor: Editor) -> str | None:
    pages = _keyed(editor)
    if not pages:
        return _NO_ROOM
    editor.witness(transfers=(Transfer(page=PageId(pages[0]), into=False, stamp=_STAMP),))
    return None


def _kv116(editor: Editor) -> str | None:
    geometry = editor.snapshot.geometry
    group = next(
        (
            group
            for group in geometry.groups
            if group.block_size > 1 and not (geometry.partial_hits and group.fine_grained)
        ),
        None,
    )
    pages = editor.vacant(1)
    if group is None or not pages:
        return "every group may be hit inside its pages, or no room"
    editor.put_key(pages[0], group.id, _key("planted"), group.block_size - 1)
    return None


def _kv117(editor: Editor) -> str | None:
    group, pages = _straight(editor), editor.vacant(1)
    if group is None or not pages:
        return "no group whose table is laid out by position, or no room"
    editor.hold(pages[0], 1)
    editor.put_key(pages[0], group.id, _key("planted"), 5 * group.block_size)
    editor.add_request("planted", {group.id: pages})
    return None


def _kv118(editor: Editor) -> str | None:
    pages = _keyed(editor)
    if not pages:
        return _NO_ROOM
    editor.stamp[pages[0]] = _STAMP
    editor.never_computed.add(_STAMP)
    return None


def _kv119(editor: Editor) -> str | None:
    pages = _keyed(editor)
    editor.tainted.update(PageId(page) for page in pages)
    return None if pages else _NO_ROOM


def _kv201(editor: Editor) -> str | None:
    pages = _keyed(editor)
    if not pages:
        return _NO_ROOM
    change = 1 << 40
    editor.stamp[(editor.tokens != 0) & (editor.stamp < change)] += np.uint64(change)
    editor.stamp[pages[0]] = 1
    editor.never_computed = {stamp + change if stamp < change else stamp for stamp in editor.never_computed}
    editor.witness(weights=Weights(changes=(change,), causes=("planted",)))
    return None


def decision(editor: Editor, **fields: object) -> Decision:
    """Make a decision that lost nothing, with some fields changed."""
    count = len(editor.snapshot.geometry.groups)
    plain = Decision(
        id=1, time_ns=0, step=1, request="planted", phase=Phase.FIRST, outcome=Outcome.PARTIAL, lookup_tokens=1 << 30,
        engine_usable=0, logical=0, usable=0, external=0, limiting_group=None, limiting_state=None, reason=None,
        per_group=(0,) * count,
    )  # fmt: skip
    return replace(plain, **fields)  # type: ignore[arg-type]


def _loss(reason: Reason) -> Plant:
    def plant(editor: Editor) -> str | None:
        unit = editor.snapshot.geometry.alignment
        group = editor.snapshot.geometry.groups[0]
        step = WaterfallStep(group=group.id, reason=reason, from_tokens=unit, to_tokens=0)
        lost = decision(
            editor, logical=unit, lost=((reason, group.id, unit),), limiting_group=group.id,
            limiting_state=group.state, reason=reason, waterfall=(step,),
        )  # fmt: skip
        _decide(editor, lost)
        return None

    return plant


def _decide(editor: Editor, *decisions: Decision) -> None:
    editor.snapshot = replace(editor.snapshot, decisions=(*(editor.snapshot.decisions or ()), *decisions))


def _kv305(editor: Editor) -> str | None:
    geometry = editor.snapshot.geometry
    if not geometry.caching or any(group.kind is ResumeKind.UNKNOWN for group in geometry.groups):
        return "no caching, or a group of unknown kind"
    if editor.capture.epoch is None:
        return "the snapshot has no epoch"
    if not any(group.kind is not ResumeKind.NONE for group in geometry.groups):
        return "no group is cacheable"
    chain = tuple(_key(f"never cached {at}") for at in range(2 * geometry.alignment // geometry.hash_unit))
    # More than was asked for: no rule allows that, whatever the kinds (a chunk's start needs nothing cached).
    unit = geometry.alignment
    look = EngineLookup(request="planted", chain=chain, limit=2 * unit - 1, answer=2 * unit, epoch=editor.capture.epoch)
    editor.witness(lookups=(*(editor.evidence.lookups or ()), look))
    return None


def _kv306(editor: Editor) -> str | None:
    _decide(editor, decision(editor, usable=editor.snapshot.geometry.alignment))
    geometry = editor.snapshot.geometry
    if (
        may_deviate(geometry)
        or not geometry.caching
        or any(group.kind is ResumeKind.UNKNOWN for group in geometry.groups)
    ):
        return "the engine may deviate on these groups, or does not cache"
    return None


def _kv309(editor: Editor) -> str | None:
    groups = editor.snapshot.geometry.groups
    unit = editor.snapshot.geometry.alignment
    victim = next((group for group in groups if group.kind not in {ResumeKind.NONE, ResumeKind.UNKNOWN}), None)
    if victim is None or len(groups) < 2:
        return "one group only"
    own = tuple(0 if group.id == victim.id else unit for group in groups)
    keep = editor.snapshot.decisions or ()
    editor.snapshot = replace(
        editor.snapshot,
        decisions=tuple(replace(item, per_group=None) for item in keep)
        + tuple(decision(editor, id=at, per_group=own, logical=unit) for at in range(64)),
    )
    return None


def _kv312(editor: Editor) -> str | None:
    if not any(group.kind is ResumeKind.RECURRENT for group in editor.snapshot.geometry.groups):
        return "no group is recurrent"
    evidence = editor.snapshot.evidence
    if evidence is not None and evidence.tiers:
        return "another tier may hold the recurrent state itself"
    unit = editor.snapshot.geometry.alignment
    editor.witness(tiers=())
    _decide(editor, decision(editor, engine_usable=unit, usable=unit, logical=unit, external=unit))
    return None


PAGE_PLANTS: dict[str, Plant] = {
    "KV101": _kv101, "KV102": _kv102, "KV103": _kv103, "KV104": _kv104, "KV105": _kv105, "KV106": _kv106,
    "KV107": _kv107, "KV108": _kv108, "KV109": _kv109, "KV110": _kv110, "KV111": _kv111, "KV112": _kv112,
    "KV113": _kv113, "KV114": _kv114, "KV115": _kv115, "KV116": _kv116, "KV117": _kv117, "KV118": _kv118,
    "KV119": _kv119, "KV201": _kv201,
    "KV301": _loss(Reason.WINDOW_HOLE), "KV302": _loss(Reason.TAIL_MISSING), "KV303": _loss(Reason.INDEXER_UNSYNCED),
    "KV304": _loss(Reason.CHECKPOINT_MISSING), "KV305": _kv305, "KV306": _kv306, "KV309": _kv309, "KV312": _kv312,
}  # fmt: skip
"""Plants by code."""
