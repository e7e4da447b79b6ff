"""Changes of the weights that were seen: when, why, and what the word for the cause means.

Invariant: nobody watched, nothing was seen, and something may have been missed are three different sentences. Read by
the view of a fingerprint.
"""

from agent.model.evidence import Weights

from ..format import UNKNOWN, count
from ..report import Cell, Json, Tone
from .common import short

CAUSES: dict[str, str] = {
    "reload": "the weights were loaded again from files",
    "update": "new weights were written into the running engine, as training does",
    "wake": "the weights were put to sleep, thrown away or woken up: what is back may not be what went",
    "lora": "an adapter was loaded again, or its bytes are others",
    "digest": "a digest of the weights in memory differs from the one before, and no call that changes them was seen",
}
"""Every word for a cause, in a sentence."""

_STEP_SHIFT = 20
"""A stamp is ``step << 20 | call``."""


def lines(weights: Weights | None) -> list[str | Cell]:
    """Return what a person reads: one line for each change, then what the words mean.

    Args:
        weights: What was seen; None where nobody watches.
    """
    if weights is None:
        return [f"{UNKNOWN}: changes of the weights are not watched here, or were not read"]
    found: list[str | Cell] = [_line(item) for item in items(weights) or []]
    known = [word for word in CAUSES if word in weights.causes]
    found += [Cell(f"{word}: {CAUSES[word]}", Tone.DIM) for word in known]
    if not weights.watched:
        doubt = "a call to the workers may have changed the weights, and no digest of all of them has cleared it"
        return [*found, Cell(f"{UNKNOWN if not found else 'there may be more'}: {doubt}", Tone.WARN)]
    return found or ["none seen since kvctl came"]


def items(weights: Weights | None) -> list[Json] | None:
    """Return the changes as JSON, the oldest first; None where nobody watches."""
    if weights is None:
        return None
    return [
        {
            "step": stamp >> _STEP_SHIFT,
            "cause": weights.causes[at] if at < len(weights.causes) else None,
            "adapter": weights.adapters[at] if at < len(weights.adapters) else None,
        }
        for at, stamp in enumerate(weights.changes)
    ]


def _line(item: Json) -> str:
    cause = short(item["cause"]) if item["cause"] else "the cause is unknown"
    about = "" if item["adapter"] is None else f", adapter {item['adapter']} only"
    return f"before step {count(item['step'])}: {cause}{about}"
