"""Findings: how the gates ended, what they found, and what they could not look at.

Invariant: a view of results that were computed already; nothing is judged here. Read by ``kvctl validate`` and the
dashboard.
"""

from collections.abc import Mapping, Sequence

from agent.gates.catalogue import CATALOGUE, GATE_TITLES
from agent.gates.selftest import PlantResult
from agent.model.finding import Finding, GateName, GateResult, Severity, Verdict
from agent.model.snapshot import Snapshot

from ..format import plural
from ..readings import Watched
from ..report import Cell, Column, Facts, Json, Kind, Prose, Report, Table, Tone, Value
from .common import group_name, head, notes

SHORT_GATES = {
    GateName.BLOCK: "1 block",
    GateName.CONTRACT: "2 contract",
    GateName.INTERSECTION: "3 intersection",
    GateName.ALIGNMENT: "4 alignment",
    GateName.REDLINES: "red lines",
}
"""How a gate is called in a table."""

_TONES = {Verdict.PASS: Tone.GOOD, Verdict.FAIL: Tone.BAD, Verdict.ABSTAIN: Tone.WARN}
_SEVERITIES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN, Severity.INFO: Tone.DIM}
_SHOWN_PAGES = 12

_GATES = (
    Column(header="GATE"),
    Column(header="VERDICT"),
    Column(header="CHECKED", kind=Kind.COUNT),
    Column(header="CODES", kind=Kind.COUNT),
    Column(header="ABSTAINED", kind=Kind.COUNT),
    Column(header="ERRORS", kind=Kind.COUNT),
    Column(header="WARNINGS", kind=Kind.COUNT),
    Column(header="TOOK", kind=Kind.DURATION),
)
_PLANTS = (
    Column(header="CODE"),
    Column(header="GATE"),
    Column(header="RESULT"),
    Column(header="WHY", elastic=True, blank="-"),
)


def verdict_of(results: Sequence[GateResult]) -> Verdict:
    """Give the verdict over several gates: one failed gate fails all, one that abstained lets none pass."""
    verdicts = {result.verdict for result in results}
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.ABSTAIN


def findings(
    snapshot: Snapshot,
    results: Sequence[GateResult],
    *,
    remarks: Sequence[str] = (),
    watched: Watched | None = None,
) -> Report:
    """Return the gates and their findings.

    Args:
        snapshot: What was judged.
        results: What the gates said.
        remarks: Notes for stderr.
        watched: What the readings before this one found; None: this is the only one.
    """
    items = [item_of(snapshot, result.gate, finding, watched) for result in results for finding in result.findings]
    earlier = [] if watched is None else watched.gone(results)
    data = {
        **head(snapshot),
        "verdict": verdict_of(results).value,
        "gates": [_gate(result) for result in results],
        "findings": items,
        "earlier": earlier,
    }
    return Report(
        kind="findings",
        data=data,
        items=items,
        item_kind="finding",
        names=sorted({item["code"] for item in items}),
        blocks=[_table(results), *_details(snapshot, results, watched), *_earlier(earlier), *_abstained(results)],
        notes=[*notes(snapshot), *remarks],
    )


def item_of(snapshot: Snapshot, gate: GateName, finding: Finding, watched: Watched | None = None) -> Json:
    """Return one finding as JSON."""
    return {
        "code": finding.code,
        "gate": gate.value,
        "severity": finding.severity.value,
        "experimental": finding.experimental,
        "title": CATALOGUE[finding.code].title,
        "sentence": finding.sentence,
        "group": group_name(snapshot.geometry, finding.group),
        "pages": list(finding.pages),
        "tokens": None if finding.tokens is None else {"from": finding.tokens[0], "to": finding.tokens[1]},
        "values": dict(finding.values),
        "action": CATALOGUE[finding.code].remedy,
        "remedy": finding.remedy,
        "new": None if watched is None else watched.is_new(finding),
    }


def _gate(result: GateResult) -> Json:
    return {
        "gate": result.gate.value,
        "title": GATE_TITLES[result.gate],
        "verdict": result.verdict.value,
        "checked": result.checked,
        "looked": dict(result.looked),
        "abstained": dict(result.abstained),
        "duration_seconds": result.duration_ns / 1e9,
    }


def _table(results: Sequence[GateResult]) -> Table:
    rows: list[list[Value]] = []
    for result in results:
        severities = [finding.severity for finding in result.findings]
        rows.append(
            [
                SHORT_GATES[result.gate],
                Cell(result.verdict.value, _TONES[result.verdict]),
                result.checked,
                len(result.looked),
                len(result.abstained),
                severities.count(Severity.ERROR),
                severities.count(Severity.WARNING),
                result.duration_ns,
            ]
        )
    return Table(columns=_GATES, rows=rows)


def _earlier(codes: Sequence[str]) -> list[Prose]:
    """What went by on the screen of a watch: a decision is compared once."""
    return [Prose(lines=[Cell(f"found by earlier readings: {', '.join(codes)}", Tone.WARN)])] if codes else []


def _details(snapshot: Snapshot, results: Sequence[GateResult], watched: Watched | None) -> list[Facts | Prose]:
    facts: list[tuple[str, Sequence[str | Cell]]] = []
    for result in results:
        for finding in result.findings:
            word = finding.severity.value + (" (experimental)" if finding.experimental else "")
            word = f"new {word}" if watched is not None and watched.is_new(finding) else word
            lines: list[str | Cell] = [Cell(f"{word}: {finding.sentence}", _SEVERITIES[finding.severity])]
            where = [f"group {group_name(snapshot.geometry, finding.group)}"] if finding.group is not None else []
            if finding.tokens is not None:
                where.append(f"tokens {finding.tokens[0]:,}-{finding.tokens[1]:,}")
            if finding.pages:
                where.append(_pages(finding))
            if where:
                lines.append(", ".join(where))
            facts.append((finding.code, [*lines, *next_steps(finding)]))
    doubtful = any(finding.experimental for result in results for finding in result.findings)
    return [Facts(facts=facts), *([_EXPERIMENTAL] if doubtful else [])] if facts else []


DOUBTFUL = "experimental: it may be a false alarm; kvctl explain experimental says why"
"""Said once, below findings some of which are experimental."""

_EXPERIMENTAL = Prose(lines=[Cell(DOUBTFUL, Tone.DIM)])


def next_steps(finding: Finding) -> list[str]:
    """Return what to do about a finding: a sentence of the catalogue, and the command that helps where there is one."""
    command = [] if finding.remedy is None else [finding.remedy]
    return [f"do: {CATALOGUE[finding.code].remedy}", *command]


def _pages(finding: Finding) -> str:
    shown = ", ".join(str(page) for page in finding.pages[:_SHOWN_PAGES])
    total = finding.values.get("count")
    more = (total if isinstance(total, int) else len(finding.pages)) - min(len(finding.pages), _SHOWN_PAGES)
    return f"pages {shown}" + (f" and {more:,} more" if more > 0 else "")


def _abstained(results: Sequence[GateResult]) -> list[Prose]:
    lines: list[str | Cell] = []
    for result in results:
        for reason, codes in _by_reason(result.abstained).items():
            lines.append(Cell(f"{', '.join(codes)}: {reason}", Tone.DIM))
    return [Prose(title="Not looked at", lines=lines)] if lines else []


def _by_reason(abstained: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for code, reason in abstained.items():
        reasons.setdefault(reason, []).append(code)
    return reasons


def selftest(snapshot: Snapshot, results: Sequence[PlantResult]) -> Report:
    """Return what became of the planted faults."""
    items: list[Json] = [
        {
            "code": result.code,
            "gate": result.gate.value,
            "result": _word(result),
            "also": list(result.also),
            "reason": result.reason,
        }
        for result in results
    ]
    broken = sorted({SHORT_GATES[result.gate] for result in results if result.broken})
    planted = sum(result.planted for result in results)
    rows = [
        [
            result.code,
            SHORT_GATES[result.gate],
            Cell(_word(result), Tone.BAD if result.broken else Tone.GOOD if result.planted else Tone.DIM),
            f"found {', '.join(result.also)} as well" if result.also else result.reason,
        ]
        for result in results
    ]
    end = f"broken: gate {', '.join(broken)}" if broken else "every planted fault was found by its own code"
    return Report(
        kind="selftest",
        data={**head(snapshot), "broken": broken, "planted": planted, "codes": items},
        items=items,
        item_kind="planted",
        names=[result.code for result in results if result.broken],
        blocks=[
            Table(columns=_PLANTS, rows=rows),
            Prose(lines=[Cell(f"{plural(planted, 'fault')} planted; {end}", Tone.BAD if broken else Tone.GOOD)]),
        ],
        notes=notes(snapshot),
    )


def _word(result: PlantResult) -> str:
    if not result.planted:
        return "not planted"
    return "broken" if result.broken else "found"
