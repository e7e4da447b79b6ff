"""What a reader found out about one decision, as one line of text: how explanations travel between readers.

A line is a JSON list of :data:`PARTS` parts, all numbers, words of closed lists, or lists of these: id, outcome,
logical, usable, limiting group and state, reason, losses ``[reason, group, tokens]``, hit of each group, waterfall
``[group, reason, from, to, round]``, fidelity, epoch. No name, no key and no text of a request is in it: who shows the
decision has these from the engine's own record.

Invariant: a line of somebody else is judged whole before anything of it is used, and :func:`decode` raises nothing but
``ProtocolError``. Readers write, the probe judges and keeps, readers judge and read. Standard library only.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from .errors import ProtocolError
from .model.decision import Decision, Fidelity, Outcome, Reason, WaterfallStep
from .model.states import GroupId, State, Tokens

PARTS: Final = 12
MAX_LINE: Final = 16 << 10
"""Characters; a waterfall of some 300 steps."""
MAX_LISTS: Final = 1 << 10
_MAX_NUMBER: Final = 1 << 63

Kind = TypeVar("Kind", bound=StrEnum)


class Known(Protocol):
    """The part of a decision, or of an explanation, that tells how much is known."""

    @property
    def logical(self) -> Tokens | None:
        """None: nobody saw the page table of the look-up."""

    @property
    def usable(self) -> Tokens | None:
        """None: a group's kind is unknown."""

    @property
    def lost(self) -> tuple[tuple[Reason, GroupId | None, Tokens], ...]:
        """Losses with their reasons."""


def knowledge(item: Known) -> tuple[bool, bool, Tokens]:
    """Return how much is known of a decision: of two explanations the larger one is the better one."""
    unknown = sum(tokens for reason, _, tokens in item.lost if reason is Reason.UNKNOWN)
    return item.logical is not None, item.usable is not None, -unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything of a :class:`Decision` that is not the engine's own record; the fields are the same."""

    outcome: Outcome
    logical: Tokens
    usable: Tokens | None
    limiting_group: GroupId | None
    limiting_state: State | None
    reason: Reason | None
    lost: tuple[tuple[Reason, GroupId | None, Tokens], ...]
    per_group: tuple[Tokens | None, ...] | None
    waterfall: tuple[WaterfallStep, ...]
    fidelity: Fidelity | None
    epoch: int | None

    def fits(self, decision: Decision) -> bool:
        """Whether it can be about this decision: nobody finds more than was looked up."""
        return max(self.logical, self.usable or 0) <= decision.lookup_tokens

    def completed(self, decision: Decision) -> Decision:
        """Return the engine's record of a decision, explained by somebody else."""
        return replace(
            decision,
            outcome=self.outcome,
            logical=self.logical,
            usable=self.usable,
            limiting_group=self.limiting_group,
            limiting_state=self.limiting_state,
            reason=self.reason,
            lost=self.lost,
            per_group=self.per_group,
            waterfall=self.waterfall,
            fidelity=self.fidelity,
            epoch=self.epoch,
            shared=True,
        )


def encode(decision: Decision) -> str:
    """Return the line of a decision that was explained."""
    parts = (
        decision.id,
        decision.outcome,
        decision.logical,
        decision.usable,
        decision.limiting_group,
        decision.limiting_state,
        decision.reason,
        decision.lost,
        decision.per_group,
        [(step.group, step.reason, step.from_tokens, step.to_tokens, step.round) for step in decision.waterfall],
        decision.fidelity,
        decision.epoch,
    )
    return json.dumps(parts, separators=(",", ":"))


def decode(line: str, *, groups: int) -> tuple[int, Explanation]:
    """Read a line of anybody.

    Args:
        line: The text.
        groups: Cache groups of the engine.

    Returns:
        Number of the decision, and what was found out about it.

    Raises:
        ProtocolError: It is no explanation of a decision of this engine.
    """
    if len(line) > MAX_LINE or line.count("[") > MAX_LISTS:
        raise ProtocolError("an explanation is too long", why=f"{len(line)} characters, {MAX_LINE} are allowed")
    try:
        plain = _list(json.loads(line))
        return _number(plain[0]) if plain else 0, _explanation(plain, groups)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("an explanation cannot be read", why=str(error)[:80]) from error


def _explanation(plain: list[Any], groups: int) -> Explanation:
    if len(plain) != PARTS:
        raise ValueError(f"it has {len(plain)} parts, {PARTS} belong")
    _, outcome, logical, usable, group, state, reason, lost, hits, waterfall, fidelity, epoch = plain
    if hits is not None and len(_list(hits)) != groups:
        raise ValueError(f"it is about {len(hits)} groups, there are {groups}")
    return Explanation(
        outcome=Outcome(outcome),
        logical=_number(logical),
        usable=_perhaps(usable),
        limiting_group=_group(group, groups),
        limiting_state=_member(State, state),
        reason=_member(Reason, reason),
        lost=tuple((Reason(why), _group(who, groups), _number(tokens)) for why, who, tokens in _list(lost)),
        per_group=None if hits is None else tuple(map(_perhaps, hits)),
        waterfall=tuple(_step(step, groups) for step in _list(waterfall)),
        fidelity=_member(Fidelity, fidelity),
        epoch=_perhaps(epoch),
    )


def _step(plain: Any, groups: int) -> WaterfallStep:
    group, reason, start, end, turn = _list(plain)
    return WaterfallStep(
        group=_group(group, groups),
        reason=Reason(reason),
        from_tokens=_number(start),
        to_tokens=_number(end),
        round=_number(turn),
    )


def _list(plain: Any) -> list[Any]:
    if type(plain) is not list:
        raise TypeError("a part of it is no list")
    return plain


def _number(plain: Any) -> int:
    if type(plain) is not int or not 0 <= plain < _MAX_NUMBER:
        raise ValueError("a part of it is no number from 0")
    return plain


def _perhaps(plain: Any) -> int | None:
    return None if plain is None else _number(plain)


def _group(plain: Any, groups: int) -> GroupId | None:
    if plain is None:
        return None
    if _number(plain) >= groups:
        raise ValueError("a part of it names a group that is not there")
    return GroupId(plain)


def _member(kind: type[Kind], plain: Any) -> Kind | None:
    return None if plain is None else kind(plain)
