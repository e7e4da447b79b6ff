"""Gate 3, what decisions lost and why: holes, tails, checkpoints, collapse.

Invariant: the reason of a loss is the decision's own; nothing is guessed from the table. One finding for each kind of
loss and group, with the newest decision as the example. Called by ``agent.gates.intersection``.
"""

from dataclasses import dataclass, field

from ..model.decision import Decision, Reason
from ..model.states import GroupId, ResumeKind, State, Tokens
from ..resume.reasons import lost_reason
from ..resume.rules import GroupRule, insists
from .limits import MIN_DECISIONS
from .presence import KeyPresence
from .report import GateReport
from .view import View

OVERDUE_NS = 2_000_000_000
"""Time after which a transfer is overdue."""

_LOSSES = {
    Reason.WINDOW_HOLE: "KV301",
    Reason.TAIL_MISSING: "KV302",
    Reason.INDEXER_UNSYNCED: "KV303",
    Reason.CHECKPOINT_MISSING: "KV304",
}
_CODES = (*_LOSSES.values(), "KV308", "KV309", "KV312")
_NO_SUCH_GROUP = {
    Reason.WINDOW_HOLE: "no group keeps a window",
    Reason.TAIL_MISSING: "no group keeps a tail",
    Reason.INDEXER_UNSYNCED: "no group keeps indexer keys apart from the entries they select",
    Reason.CHECKPOINT_MISSING: "no group is recurrent",
}


@dataclass(slots=True)
class _Loss:
    """What one group lost for one reason."""

    decision: Decision
    count: int = 0
    lost: Tokens = 0
    ids: set[int] = field(default_factory=set)
    taken: set[tuple[Tokens, Tokens]] = field(default_factory=set)
    """What the engine reused, and what the group covers by itself."""


def check_losses(view: View, report: GateReport, fresh: tuple[Decision, ...]) -> None:
    """Run KV301-304, KV308, KV309 and KV312 over the decisions.

    Args:
        view: The snapshot.
        report: Where to say it.
        fresh: Decisions that no check has seen yet; what only they lost is said. What still waits, and what is usual,
            is told by all of them.
    """
    decisions = view.snapshot.decisions
    if decisions is None:
        report.cannot(_CODES, "no decisions were read")
        return
    explained = [decision for decision in decisions if decision.logical is not None]
    new = [decision for decision in fresh if decision.logical is not None]
    none_new = "no decision was explained from a page table" + (" since the last check" if explained else "")
    lost = _collect(new)
    possible = {lost_reason(group) for group in view.groups if insists(group)} | {reason for reason, _ in lost}
    for reason, code in _LOSSES.items():
        there = reason in possible
        report.looked(code, len(new) if there else 0, empty=none_new if there else _NO_SUCH_GROUP[reason])
    report.looked("KV308", len(explained), empty=none_new)
    for (reason, group), loss in lost.items():
        _add(view, report, reason, group, loss)
    waiting = _overdue(view, explained)
    if waiting:
        report.add("KV308", count=len(waiting), name=f"of request {waiting[-1].request}")
    _collapse(view, report, explained)
    _joined(view, report, fresh, made=bool(decisions))


def _overdue(view: View, decisions: list[Decision]) -> list[Decision]:
    """Decisions that waited for a transfer and wait still, longer than transfers take.

    A request that has computed something since, or that is gone, got what it waited for or went on without it.
    """
    waiting = [decision for decision in decisions if decision.reason is Reason.NOT_READY]
    requests = view.snapshot.requests
    if requests is None:
        return waiting
    idle = {request.id for request in requests if request.computed_tokens == 0}
    since = view.snapshot.capture.taken_ns - OVERDUE_NS
    return [decision for decision in waiting if decision.request in idle and decision.time_ns <= since]


def _collect(decisions: list[Decision]) -> dict[tuple[Reason, GroupId], _Loss]:
    losses: dict[tuple[Reason, GroupId], _Loss] = {}
    for decision in decisions:
        booked = [
            (reason, group, tokens) for reason, group, tokens in decision.lost if group is not None and tokens > 0
        ]
        if not booked and decision.reason is not None and decision.limiting_group is not None:
            booked = [(decision.reason, decision.limiting_group, (decision.logical or 0) - (decision.usable or 0))]
        for reason, group, tokens in booked:
            if reason in _LOSSES:
                loss = losses.setdefault((reason, group), _Loss(decision))
                loss.decision = decision
                loss.lost += tokens
                hits = decision.per_group or ()
                own = hits[group] if group < len(hits) else None
                loss.taken.add((decision.engine_usable, (decision.usable or 0) if own is None else own))
                if decision.id not in loss.ids:
                    loss.ids.add(decision.id)
                    loss.count += 1
    return losses


def _add(view: View, report: GateReport, reason: Reason, group: GroupId, loss: _Loss) -> None:
    decision = loss.decision
    step = next((step for step in decision.waterfall if step.group == group and step.reason is reason), None)
    start = decision.usable or 0 if step is None else step.to_tokens
    end = decision.logical or 0 if step is None else step.from_tokens
    holes = _holes(view, decision, group, end)
    if holes:
        start, end = holes[0][0], holes[-1][1]
    code = _LOSSES[reason]
    if code == "KV303":
        covered, history = _coverage(view, decision, group)
        report.add(
            code,
            group=group,
            tokens=(start, end),
            value=covered,
            expected=history,
            where=f"request {decision.request}, {loss.count} decision{'' if loss.count == 1 else 's'}",
            count=loss.count,
            # Entries that are not reused select nothing: what is behind costs a hit then.
            harmless=all(taken <= known for taken, known in loss.taken),
        )
        return
    report.add(
        code,
        group=group,
        tokens=(start, end),
        count=loss.count,
        lost=loss.lost,
        request=decision.request,
        from_tokens=start,
        to_tokens=end,
        pages_short=len(holes) or None,
        stranded=(decision.logical or 0) - (decision.usable or 0),
    )


def _coverage(view: View, decision: Decision, indexer: GroupId) -> tuple[Tokens | None, Tokens | None]:
    """Tokens that the indexer covers, and those that the entries do which it selects: each group's own hit."""
    own = decision.per_group
    if own is None or indexer >= len(own):
        return decision.usable, decision.logical
    entries = [own[group.id] for group in view.groups if group.state is State.COMPRESSED and group.id < len(own)]
    known = [tokens for tokens in entries if tokens is not None]
    return own[indexer], max(known) if known else decision.logical


def _holes(view: View, decision: Decision, group_id: GroupId, boundary: Tokens) -> list[tuple[Tokens, Tokens]]:
    """Token ranges of the pages that the group lacks at a boundary; empty where keys or table are not at hand."""
    geometry = view.snapshot.geometry
    group = geometry.groups[group_id]
    if decision.chain is None or view.snapshot.pages is None or group.kind is ResumeKind.UNKNOWN:
        return []
    presence = KeyPresence(view, decision.chain)
    rule = GroupRule(geometry, group, decision.chain, presence, max(decision.lookup_tokens - 1, 0))
    return [(max(end - group.block_size, 0), end) for end in rule.missing(boundary)]


def _collapse(view: View, report: GateReport, decisions: list[Decision]) -> None:
    """KV309: one group answers 0 whenever another has a hit."""
    subject = [
        decision.per_group
        for decision in decisions
        if decision.per_group is not None and not decision.skipped and any(decision.per_group)
    ]
    if len(subject) < MIN_DECISIONS:
        report.looked("KV309", 0, empty=f"fewer than {MIN_DECISIONS} decisions with a page table found anything cached")
        return
    report.looked("KV309", len(subject))
    for group in view.required:
        if all(group.id < len(own) and own[group.id] == 0 for own in subject):
            report.add("KV309", group=group.id, count=len(subject), name=group.name)


def _joined(view: View, report: GateReport, decisions: tuple[Decision, ...], *, made: bool) -> None:
    """KV312: tokens from elsewhere on top of a local prefix of a recurrent group."""
    recurrent = [group for group in view.required if group.kind is ResumeKind.RECURRENT]
    if not recurrent:
        report.looked("KV312", 0, empty="no group is recurrent")
        return
    joined = [decision for decision in decisions if decision.external > 0 and decision.engine_usable > 0]
    evidence = view.snapshot.evidence
    tiers = None if evidence is None else evidence.tiers
    if joined and tiers is None:
        missing = {} if evidence is None else evidence.missing
        report.cannot(["KV312"], missing.get("tiers", "which states the other tiers hold was not read"))
        return
    report.looked("KV312", len(decisions), empty=f"no decision was made {'since the last check' if made else 'yet'}")
    if tiers and all(group.state in (tier.states or ()) for tier in tiers for group in recurrent):
        return  # the tiers hold that state itself: what comes is the whole history, not a tail of it
    if joined:
        last = joined[-1]
        report.add("KV312", group=recurrent[0].id, count=len(joined), external=last.external, request=last.request)
