"""What a denser retention would have given a request that found a state never kept.

Invariant: computed only where it follows: the state that was not kept belongs to window groups alone, and every other
required group keeps all its pages and reaches the logical hit. Used by the views that advise.
"""

from collections.abc import Sequence

from agent.model.decision import Decision, Reason
from agent.model.groups import Geometry
from agent.model.states import Requirement, ResumeKind, Tokens

from .format import count


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
    every = 2 * geometry.alignment
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
