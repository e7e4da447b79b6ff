"""Decisions: the live log, newest at the end; enter opens the whole explanation of one, x takes its prefix out."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.widget import Widget

from agent.model.decision import Decision

from ...filters import Filter, parse
from ...format import clean, plural
from ...report import Cell, Prose, Report, Tone, Value
from ...views.decisions import COLUMNS, row_of, story
from ..picture import Pane, Picture, json_report
from ..widgets.rows import Rows
from ..widgets.sheet import Sheet
from .base import PaneView

WIDE_DECISIONS = 190
"""Columns that all columns of a decision take, with an id that can be told from another."""

_NONE_YET = "no request has been admitted yet: send one and look again"
_NONE_FITS = "no decision fits the filter; / changes it, an empty one takes it away"


class Decisions(PaneView):
    """One row a decision."""

    pane: ClassVar[Pane] = Pane.DECISIONS
    title: ClassVar[str] = "Decisions"
    hints: ClassVar[tuple[str, ...]] = ("enter explain", "/ filter", "x invalidate")
    filters: ClassVar[bool] = True

    picked: int | None = None
    """The decision that was opened last: the screen of groups shows its waterfall."""

    _wanted = Filter()
    _words: tuple[str, ...] = ()
    _picture: Picture | None = None

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        yield Rows[Decision](self._row, columns=COLUMNS, tail=True, wide_at=WIDE_DECISIONS, id="decision-rows")
        yield Sheet(id="decision-count")

    def draw(self, picture: Picture) -> None:
        """Show what fits."""
        self._picture = picture
        items = picture.snapshot.decisions or ()
        fitting = self._wanted.picked(picture.snapshot.geometry, items)
        shown = [item for item in fitting if self._has_words(item)]
        empty = _NONE_FITS if items else _NONE_YET
        if picture.snapshot.decisions is None:
            empty = "unknown: no decisions were read"
        self.rows.show(shown, empty=empty, key=lambda item: item.id)
        line = f"{plural(len(shown), 'decision')}" + (f" of {len(items):,} that fit the filter" if self._on else "")
        if picture.unexplained:
            line += f"; logical hits are unknown: {picture.unexplained}"
        self.query_one("#decision-count", Sheet).show([Prose(lines=[Cell(line, Tone.DIM)])])

    @property
    def rows(self) -> Rows[Decision]:
        """The table."""
        return self.query_one("#decision-rows", Rows)

    def filter_by(self, text: str) -> None:
        """Take ``key=value`` as ``kvctl decisions --where`` does, and any other word as part of a line."""
        words = text.split()
        self._wanted = parse([word for word in words if "=" in word])
        self._words = tuple(word.lower() for word in words if "=" not in word)
        if self._picture is not None:
            self.draw(self._picture)

    @property
    def chosen(self) -> Decision | None:
        """The decision under the cursor."""
        return self.rows.selected

    def explain(self) -> Report | None:
        """Return the whole story of the decision under the cursor."""
        if self.chosen is None or self._picture is None:
            return None
        return story(self._picture.snapshot, self.chosen)

    def json(self, picture: Picture) -> Report | None:
        """Return the list of decisions."""
        return json_report(picture)

    @property
    def _on(self) -> bool:
        return bool(self._wanted.conditions or self._words)

    def _row(self, item: Decision) -> Sequence[Value]:
        assert self._picture is not None  # noqa: S101 - rows exist only once a picture has come
        return row_of(self._picture.snapshot.geometry, item)

    def _has_words(self, item: Decision) -> bool:
        if not self._words:
            return True
        text = f"{item.outcome} {item.reason or ''} {item.phase} {clean(item.request)}".lower()
        return all(word in text for word in self._words)
