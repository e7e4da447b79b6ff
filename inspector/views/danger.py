"""Danger: prefixes were reused that not every group could resume, or pages bound that were not those checked.

Invariant: said first wherever reuse is summed up, in one wording and with one count for all views; nothing is said
where nothing of the kind was seen. Used by the views only.
"""

from collections.abc import Sequence

from agent.model.decision import Decision
from agent.model.groups import Geometry
from agent.model.snapshot import Snapshot

from ..format import count, plural
from ..report import Cell, Tone
from ..reuse import too_much

WRONG_REUSE = "KV305"
"""Stands in the place of a reason where the engine reused more than every group can resume."""

_MOVED = "toctou_conflicts"
"""Counter of pages that were bound and were not those checked, or not as they were checked."""


def wrong_among(geometry: Geometry, decisions: Sequence[Decision] | None) -> list[Decision]:
    """Return the decisions in which the engine reused more than every group can resume."""
    return [item for item in decisions or () if too_much(geometry, item)]


def beyond(wrong: Sequence[Decision]) -> int:
    """Return the tokens that were reused and that not every group could resume."""
    return sum(item.engine_usable - (item.usable or 0) for item in wrong)


def danger(snapshot: Snapshot) -> list[tuple[str, list[str | Cell]]]:
    """Return the labelled lines that name wrong reuses, and binds of other pages than those checked; mostly none."""
    wrong = wrong_among(snapshot.geometry, snapshot.decisions)
    lines: list[str | Cell] = []
    if wrong:
        text = f"{plural(len(wrong), 'decision')} reused {count(beyond(wrong))} tokens more than every group can resume"
        lines.append(Cell(f"{text}: these answers cannot be trusted", Tone.BAD))
    moved = int((snapshot.counters or {}).get(_MOVED, 0))
    if moved:
        text = f"{plural(moved, 'page')} had changed between check and use, since the agent came (KV113, KV522)"
        lines.append(Cell(f"{text}: answers that read them are suspect", Tone.BAD))
    return [("DANGER", [*lines, "kvctl validate"])] if lines else []


def remark(geometry: Geometry, shown: Sequence[Decision] | None) -> list[str]:
    """Return a note for lists whose column of usable tokens then holds what the engine reused."""
    if not wrong_among(geometry, shown):
        return []
    return [f"note: in a line with {WRONG_REUSE}, USABLE is what the engine reused: more than every group can resume"]
