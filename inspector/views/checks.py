"""Checks of a machine as a report.

Invariant: one row a check, what to do right below it. Read by ``kvctl doctor``.
"""

from collections.abc import Sequence

from ..report import Block, Cell, Facts, Json, Prose, Report, Tone

_SIGN = {
    "ok": ("ok", Tone.PLAIN),
    "note": ("note", Tone.WARN),
    "problem": ("FIX", Tone.BAD),
    "unknown": ("?", Tone.DIM),
}


def checks(items: Sequence[Json], *, fixed: Sequence[str]) -> Report:
    """Return the checks, each with what to do about it.

    Args:
        items: ``name``, ``health``, ``detail`` and ``next_step`` of each.
        fixed: What ``--fix`` has done, a line each.
    """
    label = max((len(item["name"]) for item in items), default=0)
    facts: list[tuple[str, Sequence[str | Cell]]] = []
    for item in items:
        sign, tone = _SIGN[item["health"]]
        lines: list[str | Cell] = [Cell(item["detail"], tone)]
        if item["next_step"]:
            lines.append(f"-> {item['next_step']}")
        facts.append((f"{sign:<4}  {item['name']:<{label}}", lines))
    problems = sum(item["health"] == "problem" for item in items)
    blocks: list[Block] = [Facts(facts=facts)]
    if fixed:
        blocks.append(Prose(lines=list(fixed), title="cleaned up"))
    return Report(
        kind="doctor",
        data={"checks": list(items), "problems": problems, "fixed": list(fixed)},
        items=items,
        item_kind="check",
        names=[item["name"] for item in items if item["health"] == "problem"],
        blocks=blocks,
    )
