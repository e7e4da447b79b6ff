"""Explain one decision: what was there, what could be used, what was lost and why.

Invariant: the tokens of all losses add up to what was looked up minus what was reused (our ``usable``, or the engine's
figure where that is less), and a reason that the evidence does not prove is ``unknown``. Pure; the table has to be the
one at that look-up (a feed's ring order proves it). Called outside the engine: by the session for every decision, and
by commands on a snapshot.
"""

from dataclasses import replace

from .model.decision import BY_DESIGN, Decision, Fidelity, Hit, Outcome, Reason, WaterfallStep
from .model.groups import Geometry
from .model.states import GroupId, Tokens
from .resume import Ghost, Presence, evaluate

__all__ = ["Ghost", "explain"]

Loss = tuple[Reason, GroupId | None, Tokens]

_MISSES = frozenset({Reason.COLD, Reason.EVICTED, Reason.UNKNOWN, Reason.BELOW_GRANULARITY, Reason.SKIPPED})


def explain(geometry: Geometry, presence: Presence, ghost: Ghost | None, record: Decision) -> Decision:
    """Complete a recorded decision with logical, usable, losses, reasons and waterfall.

    Args:
        geometry: The engine's groups.
        presence: The page table at that look-up.
        ghost: Memory of removed keys; None where there is none.
        record: What the engine side recorded: a ``Decision`` with ``chain`` set and the analysis fields None or empty.

    Returns:
        The same decision, completed. Without a chain only what the record itself proves is filled in.
    """
    if not geometry.caching:
        return _without_table(record, Reason.UNKNOWN, outcome=Outcome.RECOMPUTE)
    if record.skipped:
        return _skipped(geometry, presence, ghost, record)
    limit = record.lookup_tokens - 1
    if geometry.alignment > limit:
        return _too_short(geometry, record)
    if record.chain is None:
        return _without_table(record, Reason.UNKNOWN)
    hit = evaluate(geometry, record.chain, presence, limit=limit, ghost=ghost)
    beyond = _beyond(geometry, record.chain, ghost, hit)
    waterfall = _with_beyond(geometry, hit, beyond)
    lost = _losses(waterfall)
    if hit.usable is not None and hit.usable > record.engine_usable:
        lost = (*lost, (Reason.UNKNOWN, None, hit.usable - record.engine_usable))
    outcome = _outcome(record, lost)
    return replace(
        record,
        outcome=outcome,
        logical=hit.logical,
        usable=hit.usable,
        per_group=hit.per_group,
        limiting_group=hit.limiting_group,
        limiting_state=hit.limiting_state,
        reason=_main_reason(hit, lost, outcome),
        lost=lost,
        waterfall=waterfall,
        fidelity=_fidelity(geometry, record),
    )


def _losses(waterfall: tuple[WaterfallStep, ...]) -> tuple[Loss, ...]:
    sums: dict[tuple[Reason, GroupId | None], Tokens] = {}
    for step in waterfall:
        key = (step.reason, step.group)
        sums[key] = sums.get(key, 0) + step.lost
    return tuple((reason, group, tokens) for (reason, group), tokens in sums.items())


def _beyond(geometry: Geometry, chain: tuple[bytes, ...], ghost: Ghost | None, hit: Hit) -> list[tuple[Reason, Tokens]]:
    """Divide what no group holds, from the last boundary that can be hit down to ``logical``: what was it?

    Every group's pages end at multiples of the alignment where they can serve a hit, so these boundaries tell whether
    a prefix was ever cached.
    """
    step = geometry.alignment
    top = hit.limit - hit.limit % step
    parts: list[tuple[Reason, Tokens]] = []
    if top <= hit.logical:
        return parts
    known, boundary = True, top
    while boundary > hit.logical:
        index = boundary // geometry.hash_unit
        seen = None if ghost is None or index > len(chain) else ghost.seen(None, chain[index - 1])
        if seen:
            break
        known = known and seen is False
        boundary -= step
    boundary = max(boundary, hit.logical)
    if boundary < top:
        parts.append((Reason.COLD if known else Reason.UNKNOWN, boundary))
    if boundary > hit.logical:
        taken = ghost is not None and ghost.taken(None, chain[boundary // geometry.hash_unit - 1])
        parts.append((Reason.INVALIDATED if taken else Reason.EVICTED, hit.logical))
    return parts


def _with_beyond(geometry: Geometry, hit: Hit, parts: list[tuple[Reason, Tokens]]) -> tuple[WaterfallStep, ...]:
    """Put the part that no group holds between the lines by design and the fixed point."""
    start = hit.limit - hit.limit % geometry.alignment
    design = tuple(step for step in hit.waterfall if step.to_tokens >= start)
    steps: list[WaterfallStep] = []
    for reason, end in parts:
        steps.append(WaterfallStep(group=None, reason=reason, from_tokens=start, to_tokens=end))
        start = end
    return (*design, *steps, *hit.waterfall[len(design) :])


def _outcome(record: Decision, lost: tuple[Loss, ...]) -> Outcome:
    if record.outcome is Outcome.PREFETCHING:
        return record.outcome
    if record.engine_usable + record.external <= 0:
        return Outcome.RECOMPUTE
    degraded = any(_degrades(reason, group) for reason, group, _ in lost)
    return Outcome.PARTIAL if degraded else Outcome.REUSE


def _degrades(reason: Reason, group: GroupId | None) -> bool:
    return reason not in BY_DESIGN and (group is not None or reason is Reason.EVICTED)


def _main_reason(hit: Hit, lost: tuple[Loss, ...], outcome: Outcome) -> Reason | None:
    if outcome is Outcome.PREFETCHING:
        return Reason.NOT_READY
    if hit.usable is None:
        return Reason.UNKNOWN
    if hit.limiting_group is not None:
        return hit.reason
    evicted = [loss for loss in lost if loss[0] is Reason.EVICTED]
    if evicted:
        return Reason.EVICTED
    if outcome is not Outcome.RECOMPUTE:
        return None
    misses = [loss for loss in lost if loss[0] in _MISSES] or list(lost)
    return max(misses, key=lambda loss: loss[2])[0] if misses else None


def _fidelity(geometry: Geometry, record: Decision) -> Fidelity:
    if record.engine_usable + record.external <= 0:
        return Fidelity.RECOMPUTE
    replays = any(group.replay_tokens for group in geometry.groups)
    return Fidelity.REPLAY_APPROXIMATE if replays else Fidelity.EXACT


def _skipped(geometry: Geometry, presence: Presence, ghost: Ghost | None, record: Decision) -> Decision:
    """The request asked not to read the cache: everything is lost to that, whatever was there."""
    done = _without_table(record, Reason.SKIPPED, outcome=Outcome.RECOMPUTE)
    if record.chain is None:
        return done
    hit = evaluate(geometry, record.chain, presence, limit=record.lookup_tokens - 1, ghost=ghost)
    return replace(done, logical=hit.logical, usable=hit.usable, per_group=hit.per_group)


def _too_short(geometry: Geometry, record: Decision) -> Decision:
    """No boundary of this request can be hit at all."""
    exact = record.lookup_tokens == geometry.alignment
    reason = Reason.LAST_TOKEN if exact else Reason.BELOW_GRANULARITY
    done = _without_table(record, reason)
    step = WaterfallStep(group=None, reason=reason, from_tokens=record.lookup_tokens, to_tokens=0)
    return replace(done, logical=0, usable=0, waterfall=(step,) if record.lookup_tokens > 0 else ())


def _without_table(record: Decision, reason: Reason, outcome: Outcome | None = None) -> Decision:
    missing = record.lookup_tokens - record.engine_usable
    reused = record.engine_usable + record.external > 0
    if outcome is None:
        outcome = Outcome.RECOMPUTE if not reused else Outcome.UNKNOWN
    if record.outcome is Outcome.PREFETCHING:
        outcome, reason = record.outcome, Reason.NOT_READY
    return replace(
        record,
        outcome=outcome,
        reason=reason,
        lost=((reason, None, missing),) if missing > 0 else (),
        fidelity=None if reused else Fidelity.RECOMPUTE,
    )
