"""Why a group could not resume at a boundary: was it lost, or never kept?

Invariant: a reason is stated only where it follows from the evidence; otherwise it is ``unknown``. The evidence is, in
this order: the ghost (keys removed while somebody watched), the engine's retention rule (what it must have registered),
and the pages that are still there (vLLM registers the pages of one boundary's tail together, so a later one proves the
earlier ones). For the modules of ``agent.resume`` only.
"""

from collections.abc import Callable

from ..model.decision import Reason
from ..model.groups import Geometry, Group
from ..model.states import ResumeKind, State, Tokens
from .presence import Ghost
from .rules import GroupRule

KeyAt = Callable[[Tokens], bytes | None]
"""The request's key at a boundary; None where it has none."""


def lost_reason(group: Group) -> Reason:
    """Name the loss of something that this group had registered."""
    if group.state is State.INDEXER:
        return Reason.INDEXER_UNSYNCED
    match group.kind:
        case ResumeKind.FULL:
            return Reason.EVICTED
        case ResumeKind.RECURRENT:
            return Reason.CHECKPOINT_MISSING
        case ResumeKind.WINDOW | ResumeKind.CHUNKED:
            return Reason.TAIL_MISSING if group.state is State.TAIL else Reason.WINDOW_HOLE
        case _:
            return Reason.UNKNOWN


def reason_at(geometry: Geometry, rule: GroupRule, tokens: Tokens, ghost: Ghost | None, key_at: KeyAt) -> Reason:
    """Tell why a group cannot resume at a boundary that some group proves to have been computed.

    Args:
        geometry: The engine's groups.
        rule: The group that lowered the boundary.
        tokens: The boundary it refused.
        ghost: Memory of removed keys; None where there is none.
        key_at: The request's keys.

    Returns:
        What was lost, ``invalidated`` if somebody took some of it out, ``not_retained`` where a group that keeps only
        some states never registered it, ``alignment`` where the boundary lies inside a page that was only ever whole,
        or ``unknown``.
    """
    reason = _reason_at(geometry, rule, tokens, ghost, key_at)
    if reason is lost_reason(rule.group) and ghost is not None:
        keys = [key for end in rule.missing(tokens) if (key := key_at(end)) is not None]
        if any(ghost.taken(rule.group.id, key) for key in keys):
            return Reason.INVALIDATED
    return reason


def _reason_at(geometry: Geometry, rule: GroupRule, tokens: Tokens, ghost: Ghost | None, key_at: KeyAt) -> Reason:
    group, missing = rule.group, rule.missing(tokens)
    lost = lost_reason(group)
    if not missing or lost is Reason.UNKNOWN:
        return Reason.UNKNOWN
    if lost is Reason.INDEXER_UNSYNCED:
        # Entries without the keys that select them are out of step, however that came about.
        return lost
    fate = {end: _fate(ghost, group, key_at(end)) for end in missing}
    inside = group.kind is ResumeKind.FULL and any(end % group.block_size for end in missing)
    if inside:
        return _inside_a_block(group, fate, lost)
    if False in fate.values():
        # Had it all been kept since, this boundary would still not be usable.
        return Reason.NOT_RETAINED if keeps_some_only(group) else Reason.UNKNOWN
    doubtful = [end for end, seen in fate.items() if seen is None]
    if not doubtful or must_have_registered(geometry, group, tokens):
        return lost
    return lost if _one_run(geometry, rule, tokens, doubtful, fate) else Reason.UNKNOWN


def keeps_some_only(group: Group) -> bool:
    """Tell whether a group has a retention rule: windows and checkpoints are kept at some boundaries only.

    Full and chunked groups register every page that is full: one of theirs that is not there was lost, or is not full.
    """
    return group.kind in {ResumeKind.WINDOW, ResumeKind.RECURRENT}


def must_have_registered(geometry: Geometry, group: Group, tokens: Tokens) -> bool:
    """Tell whether the engine registers everything this group needs at a boundary once it has been computed.

    Full and chunked groups register every block. Window groups do at every multiple of the retention interval, which
    is every boundary under dense retention. Recurrent groups only ever store the state where a chunk of the prompt
    happened to end, so nothing follows for them. Speculative groups register their margin late: nothing follows.
    """
    if group.draft or group.kind is ResumeKind.RECURRENT:
        return False
    if group.kind in {ResumeKind.FULL, ResumeKind.CHUNKED}:
        return True
    interval = geometry.retention_interval
    return interval is None or (interval > 0 and tokens % interval == 0)


def _fate(ghost: Ghost | None, group: Group, key: bytes | None) -> bool | None:
    return None if ghost is None or key is None else ghost.seen(group.id, key)


def _inside_a_block(group: Group, fate: dict[Tokens, bool | None], lost: Reason) -> Reason:
    """A hit that would end inside a block: any of several keys would have done, so one that was lost is the reason.

    Where none of them ever was, the request that computed this boundary went on to the end of a page of its own: this
    group's pages are shared whole, which is so by design.
    """
    whole = [seen for end, seen in fate.items() if end % group.block_size == 0]
    if True in fate.values() or (whole and None in whole and len(whole) == len(fate)):
        return lost
    return Reason.UNKNOWN if None in fate.values() else Reason.ALIGNMENT


def _one_run(
    geometry: Geometry, rule: GroupRule, tokens: Tokens, doubtful: list[Tokens], fate: dict[Tokens, bool | None]
) -> bool:
    """Tell whether pages that were registered prove that the doubtful ones were, too.

    Under sparse retention a window group registers, for an aligned boundary B, the blocks of its window before B and
    no others. A block known to have been registered therefore belongs to a run that ends at one of a few boundaries; a
    doubtful block *before* it that lies inside every such run was registered by then. Nothing follows for one behind
    it: the request may have ended before that one was full.
    """
    group = rule.group
    if group.draft or group.kind is not ResumeKind.WINDOW:
        return False
    block, unit = group.block_size, geometry.alignment
    run = -(-(group.window_past_tokens or 0) // block) * block
    gone = {end for end, seen in fate.items() if seen}
    needed = range(max(0, tokens - run) + block, tokens + 1, block)
    known = [end for end in needed if end in gone or (end not in fate and rule.has(end))]
    for end in doubtful:
        for other in known:
            nearest = -(-other // unit) * unit
            farthest = (other - block + run) // unit * unit
            if nearest <= farthest and other > end > max(0, farthest - run):
                break
        else:
            return False
    return True
