"""What could be won beyond ``usable``: by what the mathematics needs, and by replaying the last tokens.

Invariant: nothing here decides what is usable; an engine that offers no replay gains nothing from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.decision import Fidelity
from ..model.groups import Geometry, Group
from ..model.states import Requirement, ResumeKind, State, Tokens
from .presence import Presence
from .rules import GroupRule, insists


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One way to resume further than the engine does."""

    tokens: Tokens
    """Boundary that the request would resume at."""
    replay_tokens: Tokens | None
    """Tokens before that boundary that have to be computed again; None where the number of layers is unknown."""
    gained: Tokens | None
    """Tokens saved beyond ``usable``, the replay taken off."""
    fidelity: Fidelity


def recoverable(
    geometry: Geometry, chain: Sequence[bytes], presence: Presence, *, limit: Tokens, usable: Tokens
) -> tuple[Recovery, ...]:
    """Tell what other ways of resuming would win, best fidelity first; only ways that gain something are listed.

    * ``exact``: no replay; groups are asked for what the mathematics needs only. A compressor without overlap needs
      nothing where t is a multiple of its ratio; optional (draft) groups need nothing.
    * ``replay_exact``: windows and compressor states are rebuilt by computing the last ``W * layers`` tokens again
      (DeepSeek-V4 report, section 3.5.2, "zero SWA caching").
    * ``replay_approximate``: only the last ``W`` tokens (DeepSeek-V4.1 report, section 3.2, "bounded replay"): not
      mathematically identical, by design.
    * ``recompute`` where nothing else gains.

    Args:
        geometry: The engine's groups.
        chain: Keys of the request, as for ``evaluate``.
        presence: The page table.
        limit: Largest boundary that may be hit: tokens of the request - 1.
        usable: What the engine can resume at.
    """
    if any(group.kind is ResumeKind.UNKNOWN for group in geometry.groups):
        return ()
    rules = [
        GroupRule(geometry, group, chain, presence, limit)
        for group in geometry.groups
        if insists(group) and group.requirement is Requirement.REQUIRED
    ]
    ways = [_way(_lowest(geometry, rules, limit), 0, usable, Fidelity.EXACT)]
    held = [rule for rule in rules if rule.group.kind is not ResumeKind.WINDOW]
    windows = [rule.group for rule in rules if rule.group.kind is ResumeKind.WINDOW]
    if windows and held:
        far = _lowest(geometry, held, limit)
        width = max((group.window_past_tokens or 0) + 1 for group in windows)
        layers = _layers(windows)
        ways.append(_way(far, None if layers is None else width * layers, usable, Fidelity.REPLAY_EXACT))
        ways.append(_way(far, width, usable, Fidelity.REPLAY_APPROXIMATE))
    gaining = tuple(way for way in ways if way.tokens > usable and (way.gained is None or way.gained > 0))
    if gaining:
        return gaining
    return (Recovery(tokens=usable, replay_tokens=0, gained=0, fidelity=Fidelity.RECOMPUTE),)


def _way(tokens: Tokens, replay: Tokens | None, usable: Tokens, fidelity: Fidelity) -> Recovery:
    gained = None if replay is None else tokens - usable - min(replay, tokens)
    return Recovery(tokens=tokens, replay_tokens=replay, gained=gained, fidelity=fidelity)


def _lowest(geometry: Geometry, rules: list[GroupRule], limit: Tokens) -> Tokens:
    tokens = limit - limit % geometry.alignment if limit > 0 else 0
    while True:
        before = tokens
        for rule in rules:
            if not needs_nothing_at(rule.group, tokens):
                tokens = rule.floor(tokens)
        if tokens == before:
            return tokens


def needs_nothing_at(group: Group, tokens: Tokens) -> bool:
    """Tell whether a compressor without overlap is empty at t: its window is its ratio, and t a multiple of it.

    The compressor of DeepSeek-V4 with ratio 4 overlaps (window 8) and always holds the last group open.
    """
    ratio = group.tokens_per_entry
    past = group.window_past_tokens
    return group.state is State.TAIL and ratio > 1 and past is not None and past + 1 == ratio and tokens % ratio == 0


def _layers(groups: list[Group]) -> int | None:
    """Layers that a replay has to climb: the window layers of one model, compressor states apart."""
    counted = [len(group.layers) for group in groups if group.state is State.SWA]
    return sum(counted) if counted and all(counted) else None
