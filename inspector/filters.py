"""Filters over decisions: ``--where key=value``.

Invariant: a key or a value that can never fit is a usage error, not an empty answer. Used by ``kvctl decisions`` and
the dashboard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.errors import UsageError
from agent.model.decision import Decision, Outcome, Phase, Reason
from agent.model.groups import Geometry
from agent.model.states import State

from .format import clean
from .naming import Fit, fit
from .views.common import group_name

_CLOSED: dict[str, type[StrEnum]] = {"outcome": Outcome, "reason": Reason, "phase": Phase, "state": State}
KEYS = (*_CLOSED, "group", "request")


@dataclass(frozen=True, slots=True)
class Condition:
    """One ``key=value`` or ``key!=value``."""

    key: str
    values: tuple[str, ...]
    equal: bool

    def fits(self, geometry: Geometry, item: Decision, *, worst: Fit = Fit.SENT) -> bool:
        """Return whether a decision fulfils it; a request that it names may fit as badly as ``worst``."""
        if self.key == "request":
            how = fit(self.values[0], item.request)
            return (how is not None and how <= worst) is self.equal
        return any(found in self.values for found in _READ[self.key](geometry, item)) is self.equal

    def best(self, items: Sequence[Decision]) -> Fit:
        """Return how well the request that it names fits any of some decisions: no other one is meant then."""
        found = (fit(self.values[0], item.request) for item in items if self.key == "request")
        return min((how for how in found if how is not None), default=Fit.SENT)


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that must all be fulfilled."""

    conditions: tuple[Condition, ...] = ()

    def fits(self, geometry: Geometry, item: Decision) -> bool:
        """Return whether a decision fulfils all conditions."""
        return all(condition.fits(geometry, item) for condition in self.conditions)

    def picked(self, geometry: Geometry, items: Sequence[Decision]) -> list[Decision]:
        """Return those of some decisions that fulfil all conditions; a name means the request that it fits best."""
        bounds = [(condition, condition.best(items)) for condition in self.conditions]
        return [item for item in items if all(one.fits(geometry, item, worst=worst) for one, worst in bounds)]


def _groups(geometry: Geometry, item: Decision) -> list[str]:
    name = group_name(geometry, item.limiting_group)
    return [] if name is None else [name, str(item.limiting_group)]


def _reasons(geometry: Geometry, item: Decision) -> list[str]:
    del geometry
    return [*([] if item.reason is None else [item.reason.value]), *(["skipped"] if item.skipped else [])]


_READ: dict[str, Callable[[Geometry, Decision], list[str]]] = {
    "outcome": lambda _, item: [item.outcome.value],
    "reason": _reasons,
    "phase": lambda _, item: [item.phase.value],
    "state": lambda _, item: [] if item.limiting_state is None else [item.limiting_state.value],
    "group": _groups,
}


def parse(texts: Sequence[str]) -> Filter:
    """Read the values of ``--where``.

    Raises:
        UsageError: Not ``key=value``, no such key, or a value that the key never has.
    """
    return Filter(tuple(_condition(text) for text in texts))


def _condition(text: str) -> Condition:
    key, sign, value = text.partition("=")
    equal = not key.endswith("!")
    key = key.removesuffix("!").strip()
    if not sign or key not in KEYS:
        raise UsageError(
            f"--where {clean(text)[:60]!r} cannot be read",
            why=None if sign else "it is not KEY=VALUE",
            next_step=f"use KEY=VALUE or KEY!=VALUE with one of the keys {', '.join(KEYS)}",
        )
    values = (value,) if key == "request" else tuple(part.strip() for part in value.split(","))
    if key in _CLOSED:
        known = {str(member) for member in _CLOSED[key]}
        wrong = next((part for part in values if part not in known), None)
        if wrong is not None:
            raise UsageError(
                f"--where {key}={clean(wrong)[:40]} fits nothing",
                why=f"no decision ever has that {key}",
                next_step=f"use one of {', '.join(sorted(known))}",
            )
    return Condition(key, values, equal)
