"""The signs of the five-state row.

Invariant: one sign for each status, the same in command line, dashboard and documents; a sign is never the only place
where a status is said (``-o wide`` and JSON say the word).
"""

from agent.model.states import State, Status

from .report import Cell, Tone

SIGN: dict[Status, str] = {
    Status.READY: "●",
    Status.PARTIAL: "◐",
    Status.MISSING: "○",
    Status.IN_TRANSIT: "⇄",
    Status.STALE: "✗",
    Status.UNKNOWN: "?",
}

ABSENT = "-"
"""The model or the engine has no such state."""

LEGEND = "● ready  ◐ partial  ○ missing  ⇄ in transit  ✗ stale  ? unknown  - none"

FIVE = (State.COMPRESSED, State.TAIL, State.SWA, State.INDEXER, State.ON_DISK)
"""The order of the row."""

SHORT: dict[State, str] = {
    State.COMPRESSED: "CMP",
    State.TAIL: "TAIL",
    State.SWA: "SWA",
    State.INDEXER: "IDX",
    State.ON_DISK: "DISK",
    State.UNKNOWN: "?",
}

_TONE = {
    Status.READY: Tone.GOOD,
    Status.PARTIAL: Tone.WARN,
    Status.MISSING: Tone.BAD,
    Status.IN_TRANSIT: Tone.WARN,
    Status.STALE: Tone.BAD,
    Status.UNKNOWN: Tone.DIM,
}


def sign(status: Status | None) -> Cell:
    """Return the sign of a status; None is a state that is not there by design."""
    return Cell(ABSENT, Tone.DIM) if status is None else Cell(SIGN[status], _TONE[status])


def worst(statuses: "list[Status]") -> Status | None:
    """Return one status for a state from those of its groups: all alike, or else how it stops the prefix.

    ``stale`` and ``in_transit`` beat the rest because they say what to wait for or to throw away.
    """
    if not statuses:
        return None
    for strong in (Status.STALE, Status.IN_TRANSIT, Status.UNKNOWN):
        if strong in statuses:
            return strong
    kinds = set(statuses)
    return kinds.pop() if len(kinds) == 1 else Status.PARTIAL
