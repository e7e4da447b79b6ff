"""Decisions: one line for each look-up that was admitted, and the whole story of a single one.

Invariant: one decision is one line and one JSON object, the same in a list, in ``-f`` and in a file. Read by
``kvctl decisions``, ``kvctl explain`` and the dashboard.
"""

from collections.abc import Sequence

from agent.model.decision import BY_DESIGN, Decision, Outcome, WaterfallStep
from agent.model.groups import Geometry
from agent.model.snapshot import Snapshot

from ..explain import OUTCOMES, REASONS
from ..format import UNKNOWN, bar, count, duration, when, width_of_counts
from ..report import Cell, Column, Facts, Json, Kind, Prose, Report, Table, Tone, Value
from ..retention import action, advice
from ..reuse import too_much
from .common import group_name, head, notes, short
from .danger import WRONG_REUSE, remark

COLUMNS = (
    Column(header="ID", kind=Kind.COUNT, least=4),
    Column(header="TIME", kind=Kind.CLOCK),
    Column(header="OUTCOME", least=9),
    Column(header="LOOKUP", kind=Kind.COUNT, least=7, roomy=10),
    Column(header="LOGICAL", kind=Kind.COUNT, least=7, roomy=10),
    Column(header="USABLE", kind=Kind.COUNT, least=7, roomy=10),
    Column(header="REASON", blank="-", least=12, roomy=18),
    Column(header="REQUEST", elastic=True, identity=True),
    Column(header="GROUP", blank="-", wide=True, least=16),
    Column(header="STATE", blank="-", wide=True, least=10),
    Column(header="PHASE", wide=True, least=7),
    Column(header="TIERS", kind=Kind.COUNT, wide=True),
    Column(header="LOOKUPS", kind=Kind.COUNT, wide=True),
    Column(header="TOOK", kind=Kind.DURATION, wide=True),
    Column(header="STEP", kind=Kind.COUNT, wide=True),
    Column(header="AT", kind=Kind.TIME, wide=True),
)
"""Columns of the list; at 80 columns what fits: outcome, the three numbers, why, and who."""

_TONES = {Outcome.REUSE: Tone.GOOD, Outcome.PARTIAL: Tone.WARN, Outcome.RECOMPUTE: Tone.BAD}


def decisions(snapshot: Snapshot, picked: Sequence[Decision] | None) -> Report:
    """Return the list of ``picked`` decisions, oldest first; None where none were read."""
    items = [item_of(snapshot.geometry, item) for item in picked or ()]
    if picked is None:
        block: Table | Prose = Prose(lines=[f"{UNKNOWN}: no decisions were read"])
    else:
        block = Table(
            columns=COLUMNS,
            rows=[row_of(snapshot.geometry, item) for item in picked],
            empty="no decision fits: none was made yet, or --where leaves none",
        )
    return Report(
        kind="decisions",
        data={**head(snapshot), "decisions": None if picked is None else items},
        items=items,
        item_kind="decision",
        names=[str(item.id) for item in picked or ()],
        blocks=[block],
        notes=[
            *notes(snapshot),
            *_unexplained(picked or snapshot.decisions or ()),
            *remark(snapshot.geometry, picked),
        ],
    )


_UNEXPLAINED = "note: logical hits are known for requests that come while somebody follows: kvctl decisions -f"


def _unexplained(found: Sequence[Decision]) -> list[str]:
    """Say how decisions come to be explained, where none of them was: nothing can be said of their reasons either."""
    return [_UNEXPLAINED] if found and all(item.logical is None for item in found) else []


def row_of(geometry: Geometry, item: Decision) -> list[Value]:
    """Return one decision as a row of :data:`COLUMNS`."""
    reason = None if item.reason is None else item.reason.value
    if item.skipped:
        reason = "skipped"
    wrong = too_much(geometry, item)
    if wrong:  # what limits the prefix did not limit the engine
        reason = WRONG_REUSE
    return [
        str(item.id),
        item.time_ns,
        Cell(item.outcome.value, _TONES.get(item.outcome, Tone.PLAIN)),
        item.lookup_tokens,
        item.logical,
        Cell(item.engine_usable, Tone.BAD if wrong or item.degraded else Tone.PLAIN),
        Cell(reason, Tone.BAD) if wrong else reason,
        item.request,
        group_name(geometry, item.limiting_group),
        None if item.limiting_state is None else item.limiting_state.value,
        item.phase.value,
        item.external,
        item.lookups,
        item.duration_ns,
        str(item.step),
        item.time_ns,
    ]


def item_of(geometry: Geometry, item: Decision) -> Json:
    """Return one decision as JSON. Keys of the request never leave here."""
    return {
        "id": item.id,
        "time": when(item.time_ns),
        "step": item.step,
        "request": item.request,
        "phase": item.phase.value,
        "outcome": item.outcome.value,
        "lookup_tokens": item.lookup_tokens,
        "logical_tokens": item.logical,
        "usable_tokens": item.engine_usable,
        "usable_by_rules_tokens": item.usable,
        "external_tokens": item.external,
        "limiting_group": group_name(geometry, item.limiting_group),
        "limiting_state": None if item.limiting_state is None else item.limiting_state.value,
        "reason": None if item.reason is None else item.reason.value,
        "fidelity": None if item.fidelity is None else item.fidelity.value,
        "lost": [
            {"reason": reason.value, "group": group_name(geometry, group), "tokens": tokens}
            for reason, group, tokens in item.lost
        ],
        "group_tokens": None
        if item.per_group is None
        else {group.name: tokens for group, tokens in zip(geometry.groups, item.per_group, strict=False)},
        "waterfall": [
            {
                "group": group_name(geometry, step.group),
                "reason": step.reason.value,
                "from_tokens": step.from_tokens,
                "to_tokens": step.to_tokens,
                "round": step.round,
            }
            for step in item.waterfall
        ],
        "lookups": item.lookups,
        "skipped": item.skipped,
        "duration_seconds": None if item.duration_ns is None else item.duration_ns / 1e9,
        "epoch": item.epoch,
        "explained_by": None if item.logical is None else "another_reader" if item.shared else "this_reader",
        "traceparent": dict(item.trace).get("traceparent"),
    }


def story(snapshot: Snapshot, item: Decision) -> Report:
    """Return the whole explanation of one decision: numbers, waterfall, cause, and what to do."""
    geometry = snapshot.geometry
    facts: list[tuple[str, Sequence[str | Cell]]] = [
        ("DECISION", [f"{item.id}, {when(item.time_ns)}, step {count(item.step)}, {item.phase} admission"]),
        ("REQUEST", [short(item.request, 60)]),
        ("OUTCOME", [_outcome_line(geometry, item)]),
        ("TOKENS", _token_lines(item, wrong=too_much(geometry, item))),
    ]
    if item.per_group is not None:
        facts.append(("GROUPS", _group_lines(geometry, item)))
    if item.waterfall:
        facts.append(("WATERFALL", _step_lines(geometry, item.waterfall)))
    if too_much(geometry, item):
        facts.append(("DANGER", _danger_lines(item)))
    if item.reason is not None:
        entry = REASONS[item.reason]
        limit = group_name(geometry, item.limiting_group)
        head_line = f"{item.reason}: {entry.title}" + (f" ({limit})" if limit else "")
        facts.append(("WHY", [head_line, entry.cause]))
        if too_much(geometry, item):  # what would have made more usable is not the question here
            facts.append(("DO", [_AFTER_WRONG_REUSE, "kvctl validate"]))
        else:
            facts += [
                ("CONFIRM", [entry.confirm]),
                (
                    "DO",
                    [
                        action(snapshot.engine.engine, snapshot.geometry, item.reason),
                        *advice(geometry, [item]),
                        *entry.commands,
                    ],
                ),
            ]
    facts.append(("LOOK-UP", [_lookup_line(item)]))
    return Report(
        kind="decision_explained",
        data={**head(snapshot), "decision": item_of(geometry, item), "explanation": _explanation(snapshot, item)},
        names=[str(item.id)],
        blocks=[Facts(facts=facts)],
        notes=[*notes(snapshot), *([] if item.skipped else _unexplained([item]))],
    )


_AFTER_WRONG_REUSE = "Take this prefix out of the cache, send the request again, and report it with a saved snapshot."


def _danger_lines(item: Decision) -> list[str | Cell]:
    text = f"the engine reused {count(item.engine_usable)} tokens, every group together can resume "
    return [
        Cell(f"{text}{count(item.usable)} only: the answer cannot be trusted", Tone.BAD),
        f"kvctl explain {WRONG_REUSE}",
    ]


def _outcome_line(geometry: Geometry, item: Decision) -> Cell:
    if too_much(geometry, item):
        return Cell(f"{item.outcome}: more was reused than every group can resume ({WRONG_REUSE})", Tone.BAD)
    return Cell(f"{item.outcome}: {OUTCOMES[item.outcome]}", _TONES.get(item.outcome, Tone.PLAIN))


def _token_lines(item: Decision, *, wrong: bool) -> list[str | Cell]:
    width = width_of_counts([item.lookup_tokens, item.logical, item.engine_usable, item.external])

    def line(name: str, tokens: int | None) -> str:
        ratio = None if tokens is None or not item.lookup_tokens else tokens / item.lookup_tokens
        return f"{name:<11} {bar(ratio, 24)} {count(tokens):>{width}}"

    lines: list[str | Cell] = [line("looked up", item.lookup_tokens), line("logical hit", item.logical)]
    lines.append(line("usable hit", item.usable if wrong else item.engine_usable))
    if wrong:
        lines.append(Cell(line("reused", item.engine_usable), Tone.BAD))
    if item.external:
        lines.append(line("other tiers", item.external))
    return lines


def _group_lines(geometry: Geometry, item: Decision) -> list[str]:
    width = max((len(group.name) for group in geometry.groups), default=0)
    cells = width_of_counts(item.per_group or ())
    return [
        f"{group.name:<{width}}  {count(tokens):>{cells}}"
        for group, tokens in zip(geometry.groups, item.per_group or (), strict=False)
    ]


def _step_lines(geometry: Geometry, steps: Sequence[WaterfallStep]) -> list[str]:
    width = width_of_counts([tokens for step in steps for tokens in (step.from_tokens, step.to_tokens)])
    return [_step_line(geometry, step, width) for step in steps]


def _step_line(geometry: Geometry, step: WaterfallStep, width: int) -> str:
    where = group_name(geometry, step.group) or ("by design" if step.reason in BY_DESIGN else None)
    line = f"{count(step.from_tokens):>{width}} -> {count(step.to_tokens):<{width}} {step.reason}"
    return line if where is None else f"{line} ({where})"


def _lookup_line(item: Decision) -> str:
    text = f"looked up {item.lookups} time{'' if item.lookups == 1 else 's'} before admission"
    text += f", the last one took {duration(item.duration_ns)}"
    if item.logical is None or item.epoch is None:
        return text
    by = " by another reader" if item.shared else ""
    return f"{text}, explained from the table at epoch {item.epoch:,}{by}"


def _explanation(snapshot: Snapshot, item: Decision) -> Json | None:
    if item.reason is None:
        return None
    entry = REASONS[item.reason]
    return {
        "reason": item.reason.value,
        "title": entry.title,
        "cause": entry.cause,
        "confirm": entry.confirm,
        "action": action(snapshot.engine.engine, snapshot.geometry, item.reason),
        "commands": list(entry.commands),
    }
