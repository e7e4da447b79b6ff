"""A fingerprint, and what differs between two.

Invariant: a part that could not be read is said with its reason, and never counts as equal. Read by
``kvctl fingerprint``.
"""

from collections.abc import Sequence

from agent.model.evidence import Weights
from agent.model.fingerprint import READINGS, Difference, Fingerprint, Mode, Part, differences, unsure

from ..format import clean, plural, when
from ..report import Cell, Column, Facts, Json, Report, Table, Tone
from . import weight_changes
from .common import short

_Facts = list[tuple[str, Sequence[str | Cell]]]

_MODES = {
    Mode.SAMPLE: "a sample of every tensor in the workers' memory",
    Mode.FULL: "every byte in the workers' memory",
    Mode.NONE: "not read",
}
_FIELDS = (Column(header="PART"), Column(header="FIELD", elastic=True), Column(header="VALUE", elastic=True))
_DIFFERENCES = (
    Column(header="PART"),
    Column(header="FIELD", elastic=True),
    Column(header="BEFORE", elastic=True, blank="-"),
    Column(header="AFTER", elastic=True, blank="-"),
)


def fingerprint(found: Fingerprint, weights: Weights | None = None, *, file: str | None = None) -> Report:
    """Return a fingerprint with all its fields.

    Args:
        found: What was read.
        weights: Changes of the weights that were seen; None where nobody watches.
        file: Where it was written or comes from.
    """
    parts: list[tuple[str, Part]] = [("contract", found.contract), ("weights", found.weights)]
    facts: _Facts = [
        ("ENGINE", [_who(found)]),
        ("READ", [when(found.taken_ns)]),
        *((name.upper(), _state(part)) for name, part in parts),
        ("MEMORY", [_MODES[found.mode]]),
        ("CHANGES", weight_changes.lines(weights)),
    ]
    if file is not None:
        facts.append(("FILE", [file]))
    # Digests of single layers are there to name a difference: a person reads the sum of each worker.
    rows = [
        (name, field, short(value, 72))
        for name, part in parts
        for field, value in sorted(part.fields.items())
        if not (field.startswith(READINGS) and field.count(".") > 1)
    ]
    return Report(
        kind="fingerprint",
        data=plain(found) | {"file": file, "weight_changes": weight_changes.items(weights)},
        names=[found.short],
        blocks=[Facts(facts=facts), Table(columns=_FIELDS, rows=rows)],
    )


def compared(before: Fingerprint, after: Fingerprint, *, names: tuple[str, str]) -> tuple[Report, bool, bool]:
    """Return what differs between two fingerprints.

    Returns:
        The report, whether anything differs, and whether something could not be compared.
    """
    found, doubts = differences(before, after), unsure(before, after)
    if found:
        verdict = Cell(f"{plural(len(found), 'field')} differ", Tone.BAD)
    elif doubts:
        verdict = Cell("no difference found, but not everything could be compared", Tone.WARN)
    else:
        verdict = Cell("equal", Tone.GOOD)
    facts: _Facts = [
        ("BEFORE", [f"{names[0]}, {_who(before)}, {when(before.taken_ns)}"]),
        ("AFTER", [f"{names[1]}, {_who(after)}, {when(after.taken_ns)}"]),
        ("RESULT", [verdict]),
    ]
    if doubts:
        facts.append(("NOT COMPARED", [Cell(clean(text), Tone.WARN) for text in doubts]))
    rows = [(item.part, item.field, _cell(item.before), _cell(item.after)) for item in found]
    report = Report(
        kind="fingerprint_diff",
        data={
            "before": _head(before) | {"from": names[0]},
            "after": _head(after) | {"from": names[1]},
            "result": "different" if found else "unsure" if doubts else "equal",
            "differences": [_difference(item) for item in found],
            "not_compared": list(doubts),
        },
        names=[f"{item.part}.{item.field}" for item in found],
        blocks=[Facts(facts=facts), Table(columns=_DIFFERENCES, rows=rows, empty="no field differs")],
    )
    return report, bool(found), bool(doubts)


def plain(found: Fingerprint) -> Json:
    """Return a fingerprint as JSON values."""
    return _head(found) | {
        "contract": _part(found.contract),
        "weights": _part(found.weights) | {"read": found.mode.value},
    }


def _head(found: Fingerprint) -> Json:
    return {
        "engine": found.engine,
        "model": found.model,
        "name": found.name,
        "taken": when(found.taken_ns),
        "id": found.short,
        "partial": found.partial,
    }


def _part(part: Part) -> Json:
    return {
        "digest": part.digest,
        "partial": part.partial,
        "missing": dict(part.missing),
        "fields": dict(sorted(part.fields.items())),
    }


def _difference(item: Difference) -> Json:
    return {"part": item.part, "field": item.field, "before": item.before, "after": item.after}


def _who(found: Fingerprint) -> str:
    return " · ".join(short(text) for text in (found.engine, found.name or found.model) if text)


def _state(part: Part) -> list[str | Cell]:
    lines: list[str | Cell] = [f"{part.digest}, {plural(len(part.fields), 'field')}"]
    if part.missing:
        lines[0] = Cell(f"{lines[0]}, partial: it can fail a comparison, it cannot pass one", Tone.WARN)
    return lines + [Cell(f"{name}: {clean(why)}", Tone.WARN) for name, why in part.missing.items()]


def _cell(value: str | None) -> str | None:
    return None if value is None else short(value, 40)
