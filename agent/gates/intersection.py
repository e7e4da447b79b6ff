"""Gate 3, intersection: every group agrees on where to resume.

Invariant: the engine's answer is compared with ours only where both are about the same table; what the engine is known
to do differently has a name in ``agent.resume`` and raises nothing but KV305. Called by ``agent.gates.runner``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..model.decision import Decision, Hit
from ..model.evidence import EngineLookup, Evidence
from ..model.groups import Geometry, Group
from ..model.snapshot import Consistency, Snapshot
from ..model.states import ResumeKind, Tokens
from ..resume import KV305, evaluate, explain_difference
from .losses import check_losses
from .parts import check_parts
from .presence import KeyPresence
from .report import GateReport
from .stranded import check_stranded
from .view import View

MAX_LOOKUPS = 512
"""Newest look-ups that are compared in one run."""

MAX_EXPLAINED = 32
"""Lost hits of one run that named deviations are tried on; each try repeats the look-up up to 32 times."""

_NOBODY = Evidence()
_COMPARED = ("KV305", "KV306", "KV307")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """The engine's answer beside ours."""

    request: str
    engine: Tokens
    usable: Tokens
    """Largest boundary without any margin for drafts: more than this is an error."""
    asked: Tokens
    """Largest boundary with the margin that the engine asks for: less than this is a lost hit."""
    per_group: tuple[Tokens | None, ...] | None
    lookup: EngineLookup | None = None


def check(view: View, report: GateReport, previous: Snapshot | None = None) -> None:
    """Run gate 3.

    Args:
        view: The snapshot.
        report: Where to say it.
        previous: An earlier snapshot of the same engine: what happened to its decisions was said then.
    """
    evidence = view.snapshot.evidence or _NOBODY
    fresh = view.decisions_since(previous)
    _compare(view, report, evidence, fresh)
    check_losses(view, report, fresh)
    check_parts(view, report, evidence)
    check_stranded(view, report)


def marginless(geometry: Geometry) -> Geometry:
    """Give the geometry without any margin for drafts."""
    return replace(geometry, groups=tuple(replace(group, draft=False) for group in geometry.groups))


def _compare(view: View, report: GateReport, evidence: Evidence, fresh: tuple[Decision, ...]) -> None:
    """KV305, KV306, KV307."""
    geometry = view.snapshot.geometry
    if not geometry.caching:
        report.cannot(_COMPARED, "this engine runs without prefix caching")
        return
    unknown = [group.name for group in geometry.groups if group.kind is ResumeKind.UNKNOWN]
    if unknown:
        report.cannot(_COMPARED, f"the kind of group {unknown[0]} is not known")
        return
    lookups, reason = _comparable_lookups(view, evidence)
    presence = KeyPresence(view, (key for lookup in lookups for key in lookup.chain))
    pairs = [*_from_lookups(geometry, lookups, presence), *_from_decisions(geometry, fresh)]
    if not pairs and len(fresh) < len(view.snapshot.decisions or ()):
        for code in _COMPARED:
            report.looked(code, 0, empty="no look-up was made since the last check")
        return
    if not pairs and evidence.lookups == () and view.snapshot.pages is not None:
        for code in _COMPARED:
            report.looked(code, 0, empty="the engine knows no request that it could look up")
        return
    if not pairs:
        report.cannot(_COMPARED, reason)
        return
    for code in _COMPARED:
        report.looked(code, len(pairs))
    over = [pair for pair in pairs if pair.engine > pair.usable]
    if over:
        first = over[0]
        report.add(
            "KV305",
            tokens=(first.usable, first.engine),
            request=first.request,
            engine=first.engine,
            usable=first.usable,
            count=len(over),
            checked=len(pairs),
        )
        _raised(report, geometry.groups, over)
    _lost(report, geometry, presence, pairs)


def _comparable_lookups(view: View, evidence: Evidence) -> tuple[tuple[EngineLookup, ...], str]:
    """Look-ups of this very epoch; else the reason why there are none."""
    if view.snapshot.pages is None:
        return (), "no page table was read"
    if evidence.lookups is None:
        return (), evidence.missing.get("lookups", "no look-up with the engine's answer was read")
    if view.snapshot.capture.consistency is Consistency.TORN:
        return (), "the capture is torn: answers and table are from different moments"
    epoch = view.snapshot.capture.epoch
    same = tuple(lookup for lookup in evidence.lookups if epoch is not None and lookup.epoch == epoch)
    return same[-MAX_LOOKUPS:], "no look-up was made at the moment of this snapshot"


def _from_lookups(geometry: Geometry, lookups: Sequence[EngineLookup], presence: KeyPresence) -> Iterator[_Comparison]:
    free = marginless(geometry)
    drafts = any(group.draft for group in geometry.groups)
    for lookup in lookups:
        asked = evaluate(geometry, lookup.chain, presence, limit=lookup.limit)
        hit: Hit = evaluate(free, lookup.chain, presence, limit=lookup.limit) if drafts else asked
        if hit.usable is None or asked.usable is None:
            continue
        yield _Comparison(
            request=lookup.request,
            engine=lookup.answer,
            # A margin lets a key beyond the limit prove a block, so either rule may be the longer one.
            usable=max(hit.usable, asked.usable),
            asked=asked.usable,
            per_group=hit.per_group,
            lookup=lookup,
        )


def _from_decisions(geometry: Geometry, decisions: tuple[Decision, ...]) -> Iterator[_Comparison]:
    """Decisions were explained from the table at their look-up; with drafts only up to the margin, so not here."""
    if any(group.draft for group in geometry.groups):
        return
    for decision in decisions:
        if decision.usable is None or decision.skipped:
            continue
        yield _Comparison(
            request=decision.request,
            engine=decision.engine_usable,
            usable=decision.usable,
            # With a tail from elsewhere the engine may take less of what is here.
            asked=0 if decision.external else decision.usable,
            per_group=decision.per_group,
        )


def _raised(report: GateReport, groups: tuple[Group, ...], over: list[_Comparison]) -> None:
    """KV307: a dense group's own hit is below the engine's answer, another group's is not."""
    for pair in over:
        own = pair.per_group
        if own is None:
            continue
        short = [
            group
            for group in groups
            if group.kind is ResumeKind.FULL and (hit := own[group.id]) is not None and hit < pair.engine
        ]
        raised = [group for group in groups if (hit := own[group.id]) is not None and hit >= pair.engine]
        if short and raised:
            report.add(
                "KV307",
                group=short[0].id,
                value=own[short[0].id],
                engine=pair.engine,
                raised=raised[0].id,
                request=pair.request,
            )
            return


def _lost(report: GateReport, geometry: Geometry, presence: KeyPresence, pairs: list[_Comparison]) -> None:
    """KV306: fewer tokens than possible, unless a named deviation accounts for it."""
    lost = []
    tried = 0
    for pair in pairs:
        if pair.engine >= pair.asked:
            continue
        if pair.lookup is None:
            # Without the keys a deviation cannot be tried: only where the geometry allows none.
            lost += [] if may_deviate(geometry) else [pair]
            continue
        tried += 1
        if tried > MAX_EXPLAINED:
            break
        names = explain_difference(geometry, pair.lookup.chain, presence, limit=pair.lookup.limit, answer=pair.engine)
        if names is None or names & KV305:
            lost.append(pair)
    if lost:
        first = lost[0]
        report.add(
            "KV306",
            request=first.request,
            engine=first.engine,
            usable=first.asked,
            count=len(lost),
            checked=len(pairs),
        )


def may_deviate(geometry: Geometry) -> bool:
    """Tell whether any named deviation can lose tokens on these groups."""
    groups = geometry.groups
    dense = {group.lookup_class for group in groups if group.kind is ResumeKind.FULL and group.fine_grained}
    return (
        any(group.draft for group in groups)
        or (geometry.partial_hits and len(dense) > 1)
        or any(group.kind is ResumeKind.WINDOW and not group.window_past_tokens for group in groups)
        or any(
            group.kind is ResumeKind.CHUNKED and (group.chunk_tokens or 1) % max(group.block_size, 1)
            for group in groups
        )
    )
