"""Pages: what the memory of the pool is doing, and the pages that reach furthest."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.widget import Widget

from ...format import UNKNOWN
from ...report import Value
from ..panels import tables_of
from ..picture import Pane, Picture
from ..widgets.rows import Rows
from ..widgets.sheet import Sheet
from .base import PaneView

Row = tuple[str, Sequence[Value]]
"""Selector of a page, and its row."""


class Pages(PaneView):
    """The breakdown of the pool above, single pages below."""

    pane: ClassVar[Pane] = Pane.PAGES
    title: ClassVar[str] = "Pages"
    hints: ClassVar[tuple[str, ...]] = ("x invalidate",)

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        yield Sheet(id="breakdown")
        yield Rows[Row](lambda row: row[1], id="page-rows")

    def draw(self, picture: Picture) -> None:
        """Show both."""
        tables = tables_of(picture.report)
        rows = self.rows
        if len(tables) < 2 or picture.report is None:
            self.query_one("#breakdown", Sheet).show([])
            rows.show([], empty=f"{UNKNOWN}: no page table was read", key=_key)
            return
        self.query_one("#breakdown", Sheet).show(tables[:1])
        listed = list(zip(picture.report.names, tables[1].rows, strict=True))
        rows.show(listed, empty=tables[1].empty, key=_key, columns=tables[1].columns)

    @property
    def rows(self) -> Rows[Row]:
        """The table of pages."""
        return self.query_one("#page-rows", Rows)

    @property
    def selector(self) -> str | None:
        """The page under the cursor."""
        return None if self.rows.selected is None else self.rows.selected[0]


def _key(row: Row) -> object:
    return row[0]
