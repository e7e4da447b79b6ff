"""What a run of the demo showed: logical against usable, where it was lost, what the gates say.

Invariant: written for somebody who has never heard of either number; every figure comes from decisions and gate
results. Read by ``kvctl demo``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.model.decision import Decision, Outcome, Reason
from agent.model.finding import Finding, GateResult, Verdict
from agent.model.groups import Geometry

from ..explain import OUTCOMES, REASONS
from ..format import bar, count, percent, plural
from ..report import Block, Cell, Column, Facts, Json, Kind, Prose, Report, Table, Tone
from ..reuse import Reuse, sum_up
from .common import group_name

_TONES = {Verdict.PASS: Tone.GOOD, Verdict.FAIL: Tone.WARN, Verdict.ABSTAIN: Tone.DIM}
_OUTCOMES = (Outcome.REUSE, Outcome.PARTIAL, Outcome.PREFETCHING, Outcome.RECOMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault that was acted out, and what was found of it."""

    fault: str
    expected: Sequence[str]
    """Codes that should name it."""
    found: Sequence[Finding]
    """Findings with one of these codes that were not there before."""
    after_s: float | None
    """Seconds from the fault to the finding; None: nothing was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the demo."""

    seconds: float
    geometry: Geometry
    decisions: Sequence[Decision]
    gates: Sequence[GateResult]
    injection: Injection | None = None


def demo(run: Run) -> Report:
    """Return the report at the end of a run."""
    reuse = sum_up(run.decisions)
    blocks = [_opening(run, reuse), _numbers(reuse), _losses(run.geometry, reuse), _example(run), _gates(run)]
    if run.injection is not None:
        blocks.append(_injected(run.injection))
    blocks.append(_next(run, reuse))
    return Report(kind="demo", data=_data(run, reuse), blocks=[block for block in blocks if block is not None])


def _opening(run: Run, reuse: Reuse) -> Block:
    groups = plural(len(run.geometry.groups), "cache group")
    return Prose(
        title="What ran",
        lines=[
            f"{run.seconds:.0f} s of mixed traffic on the reference engine, a hybrid-attention engine with {groups}.",
            f"{plural(reuse.decisions, 'request')} admitted, {count(reuse.lookup)} tokens looked up.",
            "An engine that says 'prefix found' means the first number below. What it can continue from is the second.",
        ],
    )


def _numbers(reuse: Reuse) -> Block:
    def line(tokens: int, text: str) -> str:
        ratio = tokens / reuse.lookup if reuse.lookup else None
        return f"{count(tokens):>9} tokens  {percent(ratio):>6}  {bar(ratio, 20)}  {text}"

    return Facts(
        facts=[
            ("logical", [line(reuse.logical, "somebody computed this prefix once")]),
            ("usable", [line(reuse.usable, "every cache group could resume there")]),
            ("lost", [line(reuse.logical - reuse.usable, "found, and computed again")]),
        ]
    )


def _losses(geometry: Geometry, reuse: Reuse) -> Block:
    rows = [
        [tokens, reason.value, group_name(geometry, group), REASONS[reason].title]
        for (reason, group), tokens in reuse.lost.most_common()
        if group is not None
    ]
    return Table(
        title="What was missing",
        columns=(
            Column(header="TOKENS", kind=Kind.COUNT),
            Column(header="REASON"),
            Column(header="GROUP", blank="-"),
            Column(header="MEANING", elastic=True),
        ),
        rows=rows,
        empty="nothing that was found was lost",
    )


def _example(run: Run) -> Block | None:
    """Tell the story of the decision that lost most."""
    told = [item for item in run.decisions if item.logical is not None and item.limiting_group is not None]
    if not told:
        return None
    worst = max(told, key=lambda item: (item.logical or 0) - item.engine_usable)
    reason = Reason.UNKNOWN if worst.reason is None else worst.reason
    return Prose(
        title="One request, explained",
        lines=[
            f"{worst.request} has {count(worst.lookup_tokens)} tokens; {count(worst.logical)} were computed before.",
            f"{count(worst.engine_usable)} could be reused: {worst.outcome.value} ({OUTCOMES[worst.outcome]}).",
            f"It was group {group_name(run.geometry, worst.limiting_group)}: {reason.value} - {REASONS[reason].title}.",
            f"What to do: {REASONS[reason].action}",
        ],
    )


def _gates(run: Run) -> Block:
    rows = [
        [
            result.gate.value,
            Cell(result.verdict.value, _TONES[result.verdict]),
            result.checked,
            ", ".join(sorted({finding.code for finding in result.findings})) or None,
        ]
        for result in run.gates
    ]
    return Table(
        title="The gates at the end",
        columns=(
            Column(header="GATE"),
            Column(header="VERDICT"),
            Column(header="CHECKED", kind=Kind.COUNT),
            Column(header="FINDINGS", blank="-"),
        ),
        rows=rows,
    )


def _injected(injection: Injection) -> Block:
    if injection.after_s is None:
        lines: list[str | Cell] = [
            Cell(f"{injection.fault}: not found; {', '.join(injection.expected)} should have named it", Tone.BAD)
        ]
    else:
        lines = [f"{injection.fault} was found {injection.after_s:.1f} s later:"]
        lines += [f"{finding.code} {finding.sentence}" for finding in injection.found]
    return Prose(title="The fault that was injected", lines=lines)


def _next(run: Run, reuse: Reuse) -> Block:
    worst = next((reason for (reason, group), _ in reuse.lost.most_common() if group is not None), None)
    codes = sorted({finding.code for result in run.gates for finding in result.findings})
    word = worst.value if worst is not None else codes[0] if codes else "window_hole"
    return Facts(
        facts=[
            ("next", [f"kvctl explain {word}", "kvctl run -- vllm serve MODEL    the same on your engine"]),
        ]
    )


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
        "injection": None
        if injection is None
        else {
            "fault": injection.fault,
            "expected": list(injection.expected),
            "found": [_finding(finding) for finding in injection.found],
            "after_seconds": injection.after_s,
        },
    }
