"""Retention: what the engine keeps of windows and checkpoints, and what a denser one would have given or would be.

Invariant: a gain is computed only where it follows: the state that was not kept belongs to window groups alone, and
every other required group keeps all its pages and reaches the logical hit. Advice names the setting of the engine at
hand, its value in force, and no value that the engine would not take. Used by the views that advise.
"""

import math
from collections.abc import Sequence

from agent.model.decision import Decision, Reason
from agent.model.groups import Geometry
from agent.model.states import Requirement, ResumeKind, Tokens

from .explain import REASONS
from .format import count

_SETTING = {
    "vllm": "--prefix-cache-retention-interval",
    "reference": "retention_interval in its EngineConfig",
}
"""What an engine calls it, by the engine's name."""

_KEPT = "only where a prompt ends"

_DENSE = (
    "Retention is dense here already: no interval is set. A checkpoint stands where the engine stopped computing for a "
    "moment: let prompts branch there, at the end of a shared part."
)


def unit(geometry: Geometry) -> Tokens:
    """Return what a retention interval has to be a multiple of: the block that the engine schedules with."""
    if not geometry.partial_hits:
        return geometry.alignment
    return math.lcm(*(group.block_size for group in geometry.groups)) if geometry.groups else geometry.alignment


def in_force(geometry: Geometry) -> str | None:
    """Say what is kept now; None where everything is, or where no group has windows or checkpoints to keep."""
    interval, kept = geometry.retention_interval, {ResumeKind.WINDOW, ResumeKind.RECURRENT}
    if interval is None or not any(group.kind in kept for group in geometry.groups):
        return None
    return _KEPT if interval == 0 else f"one every {count(interval)} tokens"


def action(engine: str, geometry: Geometry, reason: Reason) -> str:
    """Return what to do about a reason, in words of the engine at hand.

    Args:
        engine: Its name: ``vllm``, ``reference``.
        geometry: Has what is in force.
        reason: Why tokens were not reused.
    """
    setting = _SETTING.get(engine)
    if reason is not Reason.NOT_RETAINED or setting is None:
        return REASONS[reason].action
    return denser(geometry, setting)


def denser(geometry: Geometry, setting: str) -> str:
    """Say how retention is made denser than it is.

    Args:
        geometry: Has the interval in force.
        setting: What the engine calls it.
    """
    interval, block = geometry.retention_interval, unit(geometry)
    if interval is None:
        return _DENSE
    if interval == 0:
        more = f"N, a multiple of {count(block)}, keeps them every N tokens, too"
    elif interval > block:
        more = f"A smaller multiple of {count(block)} keeps more of them"
    else:
        more = f"No other is smaller: it has to be a multiple of {count(block)}"
    now = f"is {count(interval)} now: windows and checkpoints are kept {in_force(geometry) or _KEPT}"
    return f"Make retention denser. {setting} {now}. {more}; None keeps all. That takes more pages."


def gains(geometry: Geometry, item: Decision) -> dict[Tokens | None, Tokens]:
    """Return the usable tokens by retention interval: None is dense. Empty where it cannot be computed."""
    interval, logical = geometry.retention_interval, item.logical
    if item.reason is not Reason.NOT_RETAINED or interval is None or logical is None or item.per_group is None:
        return {}
    if any(group is not None and reason is not Reason.NOT_RETAINED for reason, group, _ in item.lost):
        return {}
    for group in geometry.groups:
        if group.requirement is not Requirement.REQUIRED:
            continue
        own = item.per_group[group.id] if group.id < len(item.per_group) else None
        if group.draft or group.kind not in {ResumeKind.FULL, ResumeKind.WINDOW}:
            return {}
        if group.kind is ResumeKind.FULL and (own is None or own < logical):
            return {}
    every = 2 * unit(geometry)
    found: dict[Tokens | None, Tokens] = {None: logical, every: logical // every * every}
    return {
        at: tokens for at, tokens in found.items() if tokens > item.engine_usable and (at is None or at != interval)
    }


def advice(geometry: Geometry, decisions: Sequence[Decision]) -> list[str]:
    """Return a line about the latest of these decisions for which it can be computed; none where there is no such."""
    for item in reversed(decisions):
        found = gains(geometry, item)
        if found:
            dense = found.pop(None)
            sparse = "".join(f", one every {count(every)} tokens {count(tokens)}" for every, tokens in found.items())
            gain = f"dense retention would have made {count(dense)} tokens usable{sparse}"
            return [f"Decision {item.id} used {count(item.engine_usable)} tokens; without evictions {gain}"]
    return []
