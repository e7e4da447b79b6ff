"""Prefixes: what is cached, with the five-state row of each; enter opens one, x takes it out."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.widget import Widget

from ...format import UNKNOWN, clean
from ...report import Block, Cell, Report, Table, Value
from ...views.prefix import prefix
from ..panels import tables_of
from ..picture import Pane, Picture
from ..widgets.rows import Rows
from ..widgets.sheet import Sheet
from .base import PaneView

Row = tuple[str, Sequence[Value]]
"""Short key of a prefix, and its row."""


class Prefixes(PaneView):
    """One row a prefix, those with a common beginning together."""

    pane: ClassVar[Pane] = Pane.PREFIXES
    title: ClassVar[str] = "Prefixes"
    hints: ClassVar[tuple[str, ...]] = ("enter open", "/ filter", "x invalidate")
    filters: ClassVar[bool] = True

    _words: tuple[str, ...] = ()
    _picture: Picture | None = None

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        yield Rows[Row](lambda row: row[1], id="prefix-rows")
        yield Sheet(id="prefix-legend")

    def draw(self, picture: Picture) -> None:
        """Show what fits."""
        self._picture = picture
        report = picture.report
        table = next(iter(tables_of(report)), None)
        rest: list[Block] = [block for block in (report.blocks if report else ()) if not isinstance(block, Table)]
        if table is None or report is None:
            self.rows.show([], empty=f"{UNKNOWN}: no page table was read", key=_key)
        else:
            keys = [item["key"] for item in report.items]
            rows = [row for row in zip(keys, table.rows, strict=True) if self._fits(row)]
            empty = "no prefix fits the filter" if table.rows else table.empty
            self.rows.show(rows, empty=empty, key=_key, columns=table.columns)
        self.query_one("#prefix-legend", Sheet).show(rest if table is not None else [])

    @property
    def rows(self) -> Rows[Row]:
        """The table."""
        return self.query_one("#prefix-rows", Rows)

    def filter_by(self, text: str) -> None:
        """Take every word as part of a row: a key, a group."""
        self._words = tuple(text.lower().split())
        if self._picture is not None:
            self.draw(self._picture)

    @property
    def selector(self) -> str | None:
        """The prefix under the cursor."""
        return None if self.rows.selected is None else self.rows.selected[0]

    def explain(self) -> Report | None:
        """Return everything about the prefix under the cursor."""
        if self.selector is None or self._picture is None:
            return None
        return prefix(self._picture.snapshot, self.selector)

    def _fits(self, row: Row) -> bool:
        values = (value.value if isinstance(value, Cell) else value for value in row[1])
        text = " ".join(clean(value) for value in values if isinstance(value, str)).lower()
        return all(word in text for word in self._words)


def _key(row: Row) -> object:
    return row[0]
