"""Reuse over time: what was looked up, cached and usable in each slice of time.

Invariant: made of explained decisions only, by the time at which they were made, so that a live engine and a file show
the same; a slice without a decision is empty, not 0%. Used by the reading thread; the series is frozen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.model.decision import Decision
from agent.model.states import Tokens

KEPT_S = 3600
"""Seconds that are remembered."""

SLICES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
"""Widths that a slice may have, so that the scale can be read."""

_LEVELS = "▁▂▃▄▅▆▇█"
EMPTY = "·"
"""A slice in which nothing was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Sums over the decisions of one slice of time. Tokens."""

    start_s: int
    lookup: Tokens = 0
    logical: Tokens = 0
    usable: Tokens = 0

    def plus(self, other: "Slice") -> "Slice":
        """Return both together, under the earlier start."""
        return Slice(
            start_s=min(self.start_s, other.start_s),
            lookup=self.lookup + other.lookup,
            logical=self.logical + other.logical,
            usable=self.usable + other.usable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Slices of equal width, oldest first; None where nothing was decided."""

    slice_s: int
    slices: tuple[Slice | None, ...]

    @property
    def span_s(self) -> int:
        """Seconds that the whole series covers."""
        return self.slice_s * len(self.slices)

    def line(self, name: str) -> str:
        """Return ``logical`` or ``usable`` over looked-up tokens as one character a slice."""
        return "".join(
            EMPTY if part is None or not part.lookup else level(getattr(part, name) / part.lookup)
            for part in self.slices
        )


def level(ratio: float) -> str:
    """Return the block character for a ratio 0-1; only 0 is the lowest one."""
    at = round(ratio * (len(_LEVELS) - 1))
    return _LEVELS[min(len(_LEVELS) - 1, max(at, 1 if ratio > 0 else 0))]


class History:
    """The last hour, second by second."""

    def __init__(self) -> None:
        self._seconds: dict[int, Slice] = {}

    def add(self, decisions: Iterable[Decision]) -> None:
        """Count decisions, each exactly once; those without a page table are left out."""
        for item in decisions:
            if item.logical is None:
                continue
            second = item.time_ns // 1_000_000_000
            more = Slice(start_s=second, lookup=item.lookup_tokens, logical=item.logical, usable=item.engine_usable)
            known = self._seconds.get(second)
            self._seconds[second] = more if known is None else known.plus(more)
        if self._seconds:
            oldest = max(self._seconds) - KEPT_S
            for second in [second for second in self._seconds if second < oldest]:
                del self._seconds[second]

    def series(self, cells: int, *, now_s: int | None = None) -> Series:
        """Return what is remembered in at most ``cells`` slices.

        Args:
            cells: Room.
            now_s: Wall clock in seconds at which the series ends; None: with the last decision (a file).
        """
        if not self._seconds or cells < 1:
            return Series(slice_s=SLICES_S[0], slices=())
        first, last = min(self._seconds), max(self._seconds)
        last = last if now_s is None else max(last, now_s)
        width = next((one for one in SLICES_S if (last - first) // one + 2 <= cells), SLICES_S[-1])
        end = last // width
        begin = max(first // width, end - cells + 1)
        found: dict[int, Slice] = {}
        for second, part in self._seconds.items():
            at = second // width
            if at >= begin:
                found[at] = found[at].plus(part) if at in found else part
        return Series(slice_s=width, slices=tuple(found.get(at) for at in range(begin, end + 1)))
