"""Gate 3, stranded pages: full history that no resumable boundary goes through.

Invariant: a page counts as usable when some boundary at or beyond it, on a chain through it, carries a key in every
required group; that is more than the resume rules ask for. Where the walk to the root ends at a page whose parent is
not known, every page that may lie above counts as usable. So a stranded page is certainly stranded and the share never
too high. Called by ``agent.gates.intersection``.
"""

import numpy as np

from ..model.groups import Group
from ..model.states import ResumeKind
from .index import Flags, KeyIndex
from .limits import MIN_PAGES, STRANDED_RATIO
from .report import GateReport
from .view import View


def check_stranded(view: View, report: GateReport) -> None:
    """Run KV310."""
    reason = _unfit(view)
    if reason is not None:
        report.cannot(["KV310"], reason)
        return
    dense = next(group for group in view.required if group.kind is ResumeKind.FULL)
    others = [
        group for group in view.required if group.kind in {ResumeKind.WINDOW, ResumeKind.RECURRENT, ResumeKind.FULL}
    ]
    others = [group for group in others if group.id != dense.id and group.window_past_tokens != 0]
    index = view.index
    own = view.group[index.pages] == dense.id
    total = int(own.sum())
    if total < MIN_PAGES:
        report.looked("KV310", 0, empty=f"fewer than {MIN_PAGES} pages of full history are cached")
        return
    report.looked("KV310", total)
    if not others:
        return
    used = _ancestors(view, index, _resumable(view, index, own, others), dense)
    stranded = index.pages[own & ~used]
    if len(stranded) > STRANDED_RATIO * total:
        share = round(100 * len(stranded) / total)
        report.add("KV310", pages=stranded, group=dense.id, share=share, count=len(stranded), checked=total)


def _unfit(view: View) -> str | None:
    """Why the share cannot be told from this snapshot; None where it can."""
    if view.snapshot.pages is None:
        return "no page table was read"
    if view.columns.parent is None:
        return "the chain of pages (parents) was not read"
    geometry = view.snapshot.geometry
    if not geometry.caching:
        return "this engine runs without prefix caching"
    if geometry.partial_hits:
        return "hits may end inside pages here, which the walk over whole pages cannot follow"
    if any(group.kind is ResumeKind.UNKNOWN for group in geometry.groups):
        return "a group's kind is not known"
    if not any(group.kind is ResumeKind.FULL for group in view.required):
        return "no group keeps the full history"
    return None


def _resumable(view: View, index: KeyIndex, own: Flags, others: list[Group]) -> Flags:
    """Places of the dense group at an aligned boundary whose key every other required group holds too."""
    good: Flags = own & (view.tokens[index.pages] % view.snapshot.geometry.alignment == 0)
    for group in others:
        places = np.flatnonzero(good)
        heads = view.key[index.pages[places], 0]
        good[places] = index.find(heads, group.id) >= 0
    return good


def _ancestors(view: View, index: KeyIndex, ends: Flags, group: Group) -> Flags:
    """Mark the places on the way from resumable boundaries to the root, and those that may be on such a way.

    Duplicates of a key count together.
    """
    parents = np.frombuffer(view.columns.parent or b"", dtype="<u8", count=view.count)[index.pages]
    above = index.find(parents, group.id)
    above[parents == 0] = -1
    canonical = index.canonical
    used = np.zeros(len(index.pages), dtype=np.bool_)
    frontier = canonical[ends]
    while len(frontier):
        used[frontier] = True
        frontier = above[frontier]
        frontier = frontier[frontier >= 0]
        frontier = np.sort(frontier[~used[frontier]])
        frontier = frontier[np.diff(frontier, prepend=-1) != 0]
    used = used[canonical]
    tokens = view.tokens[index.pages]
    lost = used & (parents == 0) & (tokens > group.block_size)  # the way goes on from here, nobody knows where
    maybe: Flags = tokens < tokens[lost].max(initial=0)
    return used | maybe
