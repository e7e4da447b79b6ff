"""Groups: what each holds and costs, and how a decision fell from its logical to its usable hit."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget

from ..panels import facts_of, present, tables_of, waterfall
from ..picture import Pane, Picture
from ..widgets.sheet import Sheet
from .base import PaneView


class Groups(PaneView):
    """The table of groups above, the waterfall below it."""

    pane: ClassVar[Pane] = Pane.GROUPS
    title: ClassVar[str] = "Groups"

    chosen: int | None = None
    """Decision that was chosen on the screen of decisions."""

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        with VerticalScroll():
            yield Sheet(id="table")
            with Horizontal(classes="columns"):
                with Vertical():
                    yield Sheet(id="waterfall")
                with Vertical():
                    yield Sheet(id="summary")

    def draw(self, picture: Picture) -> None:
        """Show them."""
        report = picture.report
        notes = facts_of(report, "UNIT", "OPTIONAL", "STRANDED", "LIMITS", "DO")
        self.query_one("#table", Sheet).show(tables_of(report))
        self.query_one("#waterfall", Sheet).show(waterfall(picture, self.chosen))
        self.query_one("#summary", Sheet).show(present([notes]))
