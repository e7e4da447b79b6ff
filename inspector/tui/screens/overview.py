"""Overview: how full, how much of what is cached can be used, over time and by state, and what to do."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget

from ...report import Prose
from ..panels import NARROW, by_state, facts_of, joined, latest, over_time, present
from ..picture import Pane, Picture
from ..widgets.sheet import Sheet
from .base import PaneView
from .decisions import WIDE_DECISIONS

LATEST = 15
"""Decisions that stand below everything else; where there is no room they are scrolled to."""

_LABEL = 10
"""Cells of the labels."""
_MARGIN = 9 + 7
"""Cells of a history line that are not history: its name and its percentage."""


class Overview(PaneView):
    """Two columns where there is room: what happens, and what to do about it."""

    pane: ClassVar[Pane] = Pane.OVERVIEW
    title: ClassVar[str] = "Overview"

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        with VerticalScroll():
            with Horizontal(classes="columns"):
                with Vertical():
                    yield Sheet(id="reuse")
                    yield Sheet(id="states")
                with Vertical():
                    yield Sheet(id="advice")
            yield Sheet(id="latest", wide_at=WIDE_DECISIONS)

    def draw(self, picture: Picture) -> None:
        """Show usage, reuse and its history at the left; why and what to do at the right."""
        report = picture.report
        width = self.size.width or 80
        cells = (width if width < NARROW else width // 2) - _LABEL - _MARGIN
        use = facts_of(report, "DANGER", "PAGES", "REQUESTS", "REUSE")  # what is wrong is never scrolled away
        self.query_one("#reuse", Sheet).show([joined(use, over_time(picture.series, max(10, cells)))])
        self.query_one("#states", Sheet).show([by_state(picture)])
        advice = present([facts_of(report, "DO", "WHY"), facts_of(report, "AGENT")])
        if picture.unexplained:
            advice.insert(0, Prose(lines=[f"decisions come unexplained: {picture.unexplained}"]))
        self.query_one("#advice", Sheet).show(advice)
        self.query_one("#latest", Sheet).show([latest(picture, LATEST)])
