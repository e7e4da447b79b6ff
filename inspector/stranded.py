"""What is cached but cannot be part of any usable hit now, over the whole table at once.

Invariant: follows the rules of ``model.md`` ("Where a group can resume") without draft margin, node by node and
vectorised; :func:`agent.resume.evaluate` says the same of a single chain and is what a test compares it with. A
geometry that it does not cover gives None, never a guess.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agent.model.groups import Geometry, Group
from agent.model.states import Requirement, ResumeKind

from .columns import I64, Mask
from .nodes import Nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far each node can be used."""

    resumes: Mask
    """(m,) every required group can resume exactly here."""
    covered: Mask
    """(m,) at or below a boundary that resumes, on some chain through the node: not stranded."""

    def usable(self, nodes: Nodes, node: int) -> int:
        """Return the longest boundary on the chain of ``node`` at which every required group can resume."""
        return max((at for at, up in nodes.ancestors(node).items() if self.resumes[up]), default=0)


def covers(geometry: Geometry) -> bool:
    """Return whether the vectorised rules cover a geometry: no hits inside a block, no unknown kind."""
    fine = geometry.partial_hits and any(group.fine_grained for group in geometry.groups)
    unknown = any(group.kind is ResumeKind.UNKNOWN and _required(group) for group in geometry.groups)
    return not fine and not unknown


def reach(nodes: Nodes) -> Reach | None:
    """Return what can be used; None where the geometry is not covered."""
    geometry = nodes.geometry
    if not covers(geometry):
        return None
    resumes = (nodes.tokens % geometry.alignment == 0) & (nodes.pages.sum(axis=0) > 0)
    for group in geometry.groups:
        if _required(group) and group.kind is not ResumeKind.NONE:
            resumes &= _group_resumes(nodes, group)
    return Reach(resumes=resumes, covered=_spread_up(nodes, resumes))


def stranded_pages(nodes: Nodes, found: Reach) -> I64:
    """Return the stranded pages of each group (g,)."""
    result: I64 = (nodes.pages * ~found.covered).sum(axis=1).astype(np.int64)
    return result


def _required(group: Group) -> bool:
    return group.requirement is Requirement.REQUIRED


def _group_resumes(nodes: Nodes, group: Group) -> Mask:
    """Return where one group can resume: enough of its blocks in a row, ending at the node."""
    needed = blocks_needed(group, nodes.tokens)
    runs = _runs(nodes, group)
    # A chunked group needs nothing at a chunk boundary, and nothing means that no page has to be there.
    result: Mask = np.asarray(runs >= needed, np.bool_)
    return result


def blocks_needed(group: Group, tokens: I64) -> I64:
    """Return how many blocks of ``group``, the last one ending at ``tokens``, resuming there needs.

    Positions that are no multiple of the block cannot be covered: one more block than there can be.
    """
    block = group.block_size
    match group.kind:
        case ResumeKind.FULL | ResumeKind.UNKNOWN:
            span = tokens
        case ResumeKind.WINDOW:
            span = np.minimum(tokens, group.window_past_tokens or 0)
        case ResumeKind.CHUNKED:
            span = tokens % (group.chunk_tokens or block)
        case ResumeKind.RECURRENT:
            span = np.minimum(tokens, 1)
        case ResumeKind.NONE:
            span = np.zeros_like(tokens)
    needed: I64 = -(-span // block)
    needed[(tokens % block != 0) & (span > 0)] = np.iinfo(np.int64).max
    return needed


def _runs(nodes: Nodes, group: Group) -> I64:
    """Return the length of the run of usable blocks that ends at each node, by pointer doubling."""
    here = nodes.usable_pages[group.id] > 0
    jump: I64 = np.where(here, nodes.parent[group.id], -1).astype(np.int64)
    jump[jump >= 0] = np.where(here[jump[jump >= 0]], jump[jump >= 0], -1)
    runs: I64 = here.astype(np.int64)
    while (on := jump >= 0).any():
        target = jump[on]
        runs[on] += runs[target]
        jump[on] = jump[target]
    return runs


def _spread_up(nodes: Nodes, resumes: Mask) -> Mask:
    """Mark every ancestor of a marked node."""
    marked: Mask = resumes.copy()
    front: NDArray[np.int64] = np.flatnonzero(resumes).astype(np.int64)
    while len(front):
        up = nodes.parent[:, front].reshape(-1)
        up = np.unique(up[up >= 0])
        front = up[~marked[up]].astype(np.int64)
        marked[front] = True
    return marked
