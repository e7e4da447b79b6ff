"""What a run of the demo showed: logical against usable, where it was lost, what the gates say.

Invariant: written for somebody who has never heard of either number; every figure comes from decisions, tiers and gate
results. Read by ``kvctl demo``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.gates.catalogue import CATALOGUE
from agent.model.decision import Decision, Outcome, Reason
from agent.model.finding import Finding, GateName, GateResult, Severity, Verdict
from agent.model.groups import Geometry
from agent.model.snapshot import Tier

from ..explain import OUTCOMES, REASONS
from ..format import bar, count, percent, plural, width_of_counts
from ..report import Block, Cell, Column, Facts, Json, Kind, Prose, Report, Table, Tone
from ..retention import action
from ..reuse import Reuse, sum_up
from .common import group_name
from .findings import DOUBTFUL

_TONES = {Verdict.PASS: Tone.GOOD, Verdict.FAIL: Tone.WARN, Verdict.ABSTAIN: Tone.DIM}
_ENGINE = "reference"
"""What the demo runs."""

_OUTCOMES = (Outcome.REUSE, Outcome.PARTIAL, Outcome.PREFETCHING, Outcome.RECOMPUTE)
_ASKS = {
    GateName.BLOCK: "do pages, counts, free lists agree?",
    GateName.CONTRACT: "are layout and weights as agreed?",
    GateName.INTERSECTION: "do all groups hold the same prefixes?",
    GateName.ALIGNMENT: "do addresses and file sizes fit?",
    GateName.REDLINES: "is any hard rule broken?",
}


class Looked(StrEnum):
    """How far the search for a fault came."""

    NOT_YET = "not yet"
    """The run was ended before the fault's time came."""
    INTERRUPTED = "interrupted"
    """The run was ended, or the engine lost, before the gates had looked for it long enough."""
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault that was acted out, and what was found of it."""

    fault: str
    expected: Sequence[str]
    """Codes that should name it, or the counter of a tier for a fault that breaks no rule."""
    found: Sequence[Finding]
    """Findings with one of these codes that were not there before."""
    after_s: float | None
    """Seconds from the fault to the finding; None: nothing was found."""
    state: Looked = Looked.DONE
    counted: Mapping[str, int] = field(default_factory=dict)
    """By how much such a counter rose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the demo."""

    seconds: float
    geometry: Geometry
    decisions: Collection[Decision]
    gates: Sequence[GateResult]
    injection: Injection | None = None
    tiers: Sequence[Tier] = ()
    lost: str | None = None
    """What ended the run before its time."""


def demo(run: Run) -> Report:
    """Return the report at the end of a run."""
    reuse = sum_up(tuple(run.decisions))
    blocks = [
        _opening(run, reuse),
        *_numbers(run, reuse),
        *_losses(run.geometry, reuse),
        _example(run),
        _gates(run),
        _findings(run),
    ]
    if run.injection is not None:
        blocks.append(_injected(run.injection))
    blocks.append(_next(run, reuse))
    return Report(kind="demo", data=_data(run, reuse), blocks=[block for block in blocks if block is not None])


def _opening(run: Run, reuse: Reuse) -> Block:
    restarts = _detail(run.tiers, "restarts") or 0
    what = (
        f"A small engine of kvctl's own served {plural(reuse.decisions, 'request')} in {run.seconds:.0f} s: questions "
        "about long documents, conversations that grow, clients that come back."
    )
    if restarts:
        times = "once" if restarts == 1 else plural(restarts, "time")
        what += f" It lost its memory {times} and went on from disk."
    asked = (
        "For each request it looked in its cache: has somebody computed the beginning of this prompt before? "
        "There are two answers."
    )
    ended = [] if run.lost is None else [Cell(f"It ended early: {run.lost}. What was seen until then:", Tone.BAD)]
    return Prose(title="What ran", lines=[*ended, what, asked])


def _numbers(run: Run, reuse: Reuse) -> list[Block]:
    groups = len(run.geometry.groups)

    width = width_of_counts([reuse.lookup], 7)

    def line(tokens: int, text: str) -> str:
        ratio = tokens / reuse.lookup if reuse.lookup else None
        return f"{count(tokens):>{width}} tokens {percent(ratio):>4}  {bar(ratio, 12)}  {text}"

    facts: list[tuple[str, list[str | Cell]]] = [
        ("prompts", [line(reuse.lookup, "what all requests asked for")]),
        ("logical", [line(reuse.logical, "found in the cache, in part at least")]),
        ("usable", [line(reuse.usable, "complete: the engine went on there")]),
    ]
    if reuse.external:
        facts.append(("fetched", [line(reuse.external, "completed from memory or disk")]))
    lost = max(0, reuse.logical - reuse.usable - reuse.external)
    facts.append(("lost", [line(lost, "found, yet computed again")]))
    logical, usable = percent(reuse.logical_ratio), percent(reuse.usable_ratio)
    if reuse.external and reuse.lookup:
        usable += f", {percent((reuse.usable + reuse.external) / reuse.lookup)} with what it fetched"
    why = (
        f"Why they differ: this model keeps its past in {groups} cache groups (full history, sliding windows, "
        "compressed entries, their tails ...). It can go on only where every one of them still has its part. "
        f"An engine that counts prefixes found reports {logical}; what it could really skip is {usable}."
    )
    return [Facts(facts=facts), Prose(lines=[why])]


def _losses(geometry: Geometry, reuse: Reuse) -> list[Block]:
    width = width_of_counts([reuse.logical], 7)
    facts = [
        (f"{count(tokens):>{width}}", [f"{reason.value} in {group_name(geometry, group)}: {REASONS[reason].title}"])
        for (reason, group), tokens in reuse.lost.most_common()
        if group is not None
    ]
    if not facts:
        return [Prose(title="What was missing", lines=["Nothing that was found was lost."])]
    rest = reuse.logical - reuse.usable - sum(reuse.lost[key] for key in reuse.lost if key[1] is not None)
    if rest > 0:
        facts.append((f"{count(rest):>{width}}", ["by design: a last token and less than a page are always computed"]))
    title = "What was missing, in tokens that were found and not usable at once"
    return [Prose(title=title, lines=[]), Facts(facts=facts)]


def _example(run: Run) -> Block | None:
    """Tell the story of the decision that lost most."""
    told = [
        item
        for item in run.decisions
        if item.logical is not None and item.limiting_group is not None and not item.external
    ]
    if not told:
        return None
    worst = max(told, key=lambda item: (item.logical or 0) - item.engine_usable)
    reason = Reason.UNKNOWN if worst.reason is None else worst.reason
    asked, found, used = (count(n) for n in (worst.lookup_tokens, worst.logical, worst.engine_usable))
    group = group_name(run.geometry, worst.limiting_group)
    return Prose(
        title="One request, explained",
        lines=[
            f"{worst.request} asked for {asked} tokens. The first {found} were found; {used} could be used.",
            f"Outcome {worst.outcome.value}: {OUTCOMES[worst.outcome]}.",
            f"Missing was group {group}, {reason.value}: {REASONS[reason].title}.",
            f"What to do: {action(_ENGINE, run.geometry, reason)}",
        ],
    )


def _gates(run: Run) -> Block:
    if not run.gates:
        return Prose(title="Is the cache sound?", lines=["The gates have not looked: the run ended before they could."])
    rows = [
        [
            result.gate.value,
            Cell("losses" if _only_losses(result) else result.verdict.value, _TONES[result.verdict]),
            result.checked,
            _ASKS[result.gate],
        ]
        for result in run.gates
    ]
    return Table(
        title="Is the cache sound? Four gates and the red lines looked at the end",
        columns=(
            Column(header="GATE"),
            Column(header="VERDICT"),
            Column(header="CHECKED", kind=Kind.COUNT),
            Column(header="QUESTION", elastic=True),
        ),
        rows=rows,
    )


def _findings(run: Run) -> Block | None:
    found = [finding for result in run.gates for finding in result.findings]
    if not found:
        return None
    lines = [
        f"{one.code} {one.severity.value}{' (experimental)' if one.experimental else ''}: {one.sentence}"
        for one in found
    ]
    if any(one.experimental for one in found):
        lines.append(f"{DOUBTFUL}.")
    if run.injection is None and not any(map(_is_fault, found)):
        lines.append(
            "These are losses, and part of those above: the demo's pools are too small for its traffic, on purpose. "
            "No rule that answers depend on is broken."
        )
    return Prose(title="What they found", lines=lines)


def _is_fault(finding: Finding) -> bool:
    """Tell whether answers may be wrong: an error, or one that is experimental; not the harmless instance of one."""
    error = CATALOGUE[finding.code].severity is Severity.ERROR
    return finding.severity is Severity.ERROR or (error and finding.experimental)


def _only_losses(result: GateResult) -> bool:
    return result.verdict is Verdict.FAIL and not any(map(_is_fault, result.findings))


def _injected(injection: Injection) -> Block:
    if injection.state is not Looked.DONE:
        when = "before it was injected" if injection.state is Looked.NOT_YET else "before the gates had found it"
        early = f"{injection.fault}: the run ended {when}; give it more time"
        return Prose(title="The fault that was to be injected", lines=[Cell(early, Tone.BAD)])
    if injection.after_s is None:
        lines: list[str | Cell] = [
            Cell(f"{injection.fault}: not found; {', '.join(injection.expected)} should have named it", Tone.BAD)
        ]
    elif injection.counted:
        lines = [
            f"{injection.fault} was counted by its tier, {injection.after_s:.1f} s later: "
            + ", ".join(f"{name} rose by {rise}" for name, rise in injection.counted.items()),
            "Copies were lost, and later hits with them; no rule that answers depend on is broken: no gate names it.",
        ]
    else:
        gates = sorted({CATALOGUE[finding.code].gate.value for finding in injection.found})
        lines = [f"{injection.fault} was found by gate {', '.join(gates)}, {injection.after_s:.1f} s later:"]
        lines += [f"{finding.code} {finding.sentence}" for finding in injection.found]
    return Prose(title="The fault that was injected", lines=lines)


def _next(run: Run, reuse: Reuse) -> Block:
    worst = next((reason for (reason, group), _ in reuse.lost.most_common() if group is not None), None)
    codes = sorted({finding.code for result in run.gates for finding in result.findings})
    word = worst.value if worst is not None else codes[0] if codes else "window_hole"
    return Facts(
        facts=[
            (
                "next",
                [
                    f"kvctl explain {word}",
                    "kvctl demo                          # the same in a dashboard",
                    "kvctl run -- vllm serve MODEL       # the same on your engine",
                ],
            ),
        ]
    )


def _detail(tiers: Sequence[Tier], name: str) -> int | None:
    """Return a number that a tier tells, None where none tells it."""
    return next((int(tier.details[name]) for tier in tiers if name in tier.details), None)


def _finding(finding: Finding) -> Json:
    return {"code": finding.code, "severity": finding.severity.value, "sentence": finding.sentence}


def _data(run: Run, reuse: Reuse) -> Json:
    injection = run.injection
    return {
        "seconds": round(run.seconds, 1),
        "decisions": reuse.decisions,
        "lookup_tokens": reuse.lookup,
        "logical_tokens": reuse.logical,
        "usable_tokens": reuse.usable,
        "external_tokens": reuse.external,
        "restarts": _detail(run.tiers, "restarts"),
        "pages_brought_back": _detail(run.tiers, "pages_brought_back"),
        "outcomes": {outcome.value: reuse.outcomes[outcome] for outcome in _OUTCOMES},
        "lost": [
            {"reason": reason.value, "group": group_name(run.geometry, group), "tokens": tokens}
            for (reason, group), tokens in reuse.lost.most_common()
        ],
        "gates": [
            {
                "gate": result.gate.value,
                "verdict": result.verdict.value,
                "checked": result.checked,
                "findings": [_finding(finding) for finding in result.findings],
            }
            for result in run.gates
        ],
        "ended_early": run.lost,
        "injection": None
        if injection is None
        else {
            "fault": injection.fault,
            "injected": injection.state is not Looked.NOT_YET,
            "expected": list(injection.expected),
            "found": [_finding(finding) for finding in injection.found],
            "counted": dict(injection.counted),
            "after_seconds": injection.after_s,
        },
    }
