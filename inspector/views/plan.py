"""A plan to invalidate, and what came of it.

Invariant: shows the plan as it will be carried out, nothing is selected here. Read by ``kvctl invalidate`` and the
dashboard.
"""

from collections.abc import Sequence

from agent.model.snapshot import Snapshot
from agent.model.states import GroupId

from ..format import clean, plural
from ..invalidation import Applied, Plan
from ..report import Column, Facts, Json, Kind, Report, Table
from .common import engine_line, group_name, head, notes

_GROUPS = (
    Column(header="GROUP", elastic=True),
    Column(header="KEYS", kind=Kind.COUNT),
    Column(header="PAGES", kind=Kind.COUNT),
)
_DRY = "nothing was changed: this is a dry run"
_NOTHING = "nothing was changed: there is nothing to take"
_SHOWN_PAGES = 16
_SHOWN_REQUESTS = 5


def plan(snapshot: Snapshot, planned: Plan, *, held_by: Sequence[str], applied: Applied | None = None) -> Report:
    """Return a plan, with its result where it was carried out.

    Args:
        snapshot: What it was made from.
        planned: The plan.
        held_by: Requests that hold its pages now.
        applied: What was taken; None for a dry run.
    """
    pages = planned.pages
    shown = ", ".join(map(str, pages[:_SHOWN_PAGES])) + (", ..." if len(pages) > _SHOWN_PAGES else "")
    result = [_DRY if planned.entries else _NOTHING] if applied is None else _result(applied)
    facts: list[tuple[str, Sequence[str]]] = [
        ("engine", [engine_line(snapshot)]),
        ("selector", [planned.selector]),
        (
            "pages",
            [f"{plural(len(pages), 'page')} under {plural(len(planned.entries), 'key')}", *filter(None, [shown])],
        ),
        ("held by", [_holders(held_by)]),
        ("result", result),
    ]
    rows = [
        (group_name(snapshot.geometry, GroupId(group)), keys, count)
        for group, (keys, count) in planned.by_group.items()
    ]
    return Report(
        kind="plan",
        data=_data(snapshot, planned, held_by, applied),
        names=[str(page) for page in pages],
        blocks=[Facts(facts=facts), Table(columns=_GROUPS, rows=rows, empty="nothing to take")],
        notes=[*notes(snapshot), *planned.notes],
    )


def _data(snapshot: Snapshot, planned: Plan, held_by: Sequence[str], applied: Applied | None) -> Json:
    done = None
    if applied is not None:
        done = {
            "pages": applied.pages,
            "parts": applied.parts,
            "skipped": applied.skipped,
            "groups": {str(group): count for group, count in applied.by_group.items()},
        }
    return {
        **head(snapshot),
        "selector": planned.selector,
        "epoch": planned.epoch,
        "keys": len(planned.entries),
        "pages": list(planned.pages),
        "groups": [
            {"group": group, "name": group_name(snapshot.geometry, GroupId(group)), "keys": keys, "pages": count}
            for group, (keys, count) in planned.by_group.items()
        ],
        "held_by": list(held_by),
        "applied": done,
    }


def _holders(held_by: Sequence[str]) -> str:
    if not held_by:
        return "no request"
    shown = ", ".join(clean(name)[:40] for name in held_by[:_SHOWN_REQUESTS])
    more = ", ..." if len(held_by) > _SHOWN_REQUESTS else ""
    run = "runs" if len(held_by) == 1 else "run"
    return f"{plural(len(held_by), 'request')}, which {run} on undisturbed: {shown}{more}"


def _result(applied: Applied) -> list[str]:
    if not applied.pages and not applied.skipped:
        return [_NOTHING]
    lines = [f"{plural(applied.pages, 'page')} taken out of the cache in {plural(applied.parts, 'critical section')}"]
    if applied.skipped:
        lines.append(f"{plural(applied.skipped, 'page')} moved meanwhile, hold something else now, and were left alone")
    return lines
