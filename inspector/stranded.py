"""What is cached but cannot be part of any usable hit now, over the whole table at once.

Invariant: follows the rules of ``model.md`` ("Where a group can resume") without draft margin, node by node and
vectorised; :func:`agent.resume.evaluate` says the same of a single chain and is what a test compares it with. A
geometry that it does not cover gives None, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agent.model.groups import Geometry, Group
from agent.model.states import Requirement, ResumeKind, Tokens

from .columns import I64, Mask
from .nodes import NONE, Nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far each node can be used. What no link proves is neither usable nor stranded: it is unknown."""

    resumes: Mask
    """(m,) every required group can resume exactly here."""
    maybe: Mask
    """(m,) nothing known speaks against it, but a link is missing."""
    covered: Mask
    """(m,) at or below a boundary that resumes, on some chain through the node: not stranded."""
    doubtful: Mask
    """(m,) not covered, but a chain that nobody knows may lead through it."""

    def usable(self, chain: Mapping[Tokens, int]) -> Tokens | None:
        """Return the longest boundary of a chain at which every required group can resume.

        Args:
            chain: Node by token position.

        Returns:
            None where a longer one may resume as well, but a link is missing.
        """
        sure = max((at for at, node in chain.items() if self.resumes[node]), default=0)
        unsure = max((at for at, node in chain.items() if self.maybe[node]), default=0)
        return None if unsure > sure else sure


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
    sure = (nodes.tokens % geometry.alignment == 0) & (nodes.pages.sum(axis=0) > 0)
    possible = sure.copy()
    for group in geometry.groups:
        if _required(group) and group.kind is not ResumeKind.NONE:
            yes, unknown = _group_resumes(nodes, group)
            sure &= yes
            possible &= yes | unknown
    maybe = possible & ~sure
    covered = _spread_up(nodes, sure)
    return Reach(resumes=sure, maybe=maybe, covered=covered, doubtful=_doubtful(nodes, sure, maybe) & ~covered)


def stranded_pages(nodes: Nodes, found: Reach) -> list[tuple[int, int]]:
    """Return for each group the pages that are certainly stranded, and those of which nobody can tell."""
    surely = ~found.covered & ~found.doubtful
    return [(int(pages[surely].sum()), int(pages[found.doubtful].sum())) for pages in nodes.pages]


def _required(group: Group) -> bool:
    return group.requirement is Requirement.REQUIRED


def _group_resumes(nodes: Nodes, group: Group) -> tuple[Mask, Mask]:
    """Return where one group can resume, and where it may: the run of its blocks ends at a link that nobody knows."""
    needed = blocks_needed(group, nodes.tokens)
    runs, ends = _runs(nodes, group)
    # A chunked group needs nothing at a chunk boundary, and nothing means that no page has to be there.
    yes: Mask = np.asarray(runs >= needed, np.bool_)
    open_end = (runs > 0) & nodes.unlinked[group.id][ends]
    reachable = needed < np.iinfo(np.int64).max
    unknown: Mask = np.asarray(~yes & open_end & reachable, np.bool_)
    return yes, unknown


def _doubtful(nodes: Nodes, sure: Mask, maybe: Mask) -> Mask:
    """Return the nodes that an unknown chain may lead through to a boundary that resumes, or may resume."""
    doubtful = _spread_up(nodes, maybe)
    useful = doubtful | _spread_up(nodes, sure)
    open_ends = nodes.unlinked.any(axis=0) & useful
    if open_ends.any():
        # Anything below the highest such link may be what it hangs on.
        doubtful |= nodes.tokens < int(nodes.tokens[open_ends].max())
    return doubtful


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


def _runs(nodes: Nodes, group: Group) -> tuple[I64, I64]:
    """Return length and first node of the run of usable blocks that ends at each node, by pointer doubling."""
    here = nodes.usable_pages[group.id] > 0
    jump: I64 = np.where(here, nodes.parent[group.id], NONE).astype(np.int64)
    jump[jump >= 0] = np.where(here[jump[jump >= 0]], jump[jump >= 0], NONE)
    runs: I64 = here.astype(np.int64)
    first: I64 = np.arange(nodes.count, dtype=np.int64)
    while (on := jump >= 0).any():
        target = jump[on]
        runs[on] += runs[target]
        first[on] = first[target]
        jump[on] = jump[target]
    return runs, first


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
