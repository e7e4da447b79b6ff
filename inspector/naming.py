"""Which thing an operator means by a name: exactly this one, else as it is shown, as it was cut, as a client knows it.

Invariant: pure; a worse fit never wins over a better one, so that nobody can take the place of a request by calling
his own after it. Used by filters, selectors and ``kvctl explain``.
"""

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TypeVar

from .format import ELLIPSIS, clean

T = TypeVar("T")


class Fit(IntEnum):
    """How well a name fits an id, the best first."""

    EXACT = 0
    SHOWN = 1
    """The id without what is never shown (control characters and the like)."""
    CUT = 2
    """The id as a table cut it: something is missing where the name has an ellipsis."""
    SENT = 3
    """The id as the client sent or got it: vLLM puts its own ahead (`cmpl-`) and behind (`-0-863d72d5`)."""


_OF_VLLM = re.compile(r"(?P<got>(?:(?:chat)?cmpl-)?(?P<sent>.+?))(?:-[0-9]+)?-[0-9a-f]{8}")


def fit(name: str, whole: str) -> Fit | None:
    """Return how a name fits an id; None: not at all."""
    if name == whole:
        return Fit.EXACT
    shown = clean(whole)
    if name == shown:
        return Fit.SHOWN
    # An id may have ellipses of its own: each of the name's may be the one that a table put in.
    places = (at for at, char in enumerate(name) if char == ELLIPSIS and at)
    if any(_is_cut(name[:at], name[at + 1 :], shown) for at in places):
        return Fit.CUT
    made = _OF_VLLM.fullmatch(shown)
    return Fit.SENT if made is not None and name in made.group("got", "sent") else None


def _is_cut(start: str, end: str, whole: str) -> bool:
    return len(start) + len(end) < len(whole) and whole.startswith(start) and whole.endswith(end)


def called(name: str, items: Iterable[T], id_of: Callable[[T], str]) -> list[T]:
    """Return the items that are meant by a name: all those of the best fit that any of them has."""
    found = [(how, item) for item in items if (how := fit(name, id_of(item))) is not None]
    best = min((how for how, _ in found), default=None)
    return [item for how, item in found if how is best]
