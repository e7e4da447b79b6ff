"""Findings: what the gates said when they were last run here; v runs them."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import VerticalScroll
from textual.widget import Widget

from ...report import Prose, Report
from ..picture import Pane, Picture
from ..widgets.sheet import Sheet
from .base import PaneView

_NOT_YET = Prose(
    lines=[
        "The gates have not been run from here. v runs them: block, contract, intersection, alignment, red lines.",
        "They change nothing: they read one snapshot, and ask a live engine to look up some of its own requests.",
    ],
    title="no findings yet",
)


class Findings(PaneView):
    """The last verdicts; they do not age with the picture, so their time stands above them."""

    pane: ClassVar[Pane] = Pane.FINDINGS
    title: ClassVar[str] = "Findings"
    hints: ClassVar[tuple[str, ...]] = ("v validate",)

    _report: Report | None = None

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        with VerticalScroll():
            yield Sheet(id="verdicts")

    def on_mount(self) -> None:
        """Say how to get findings."""
        self.query_one("#verdicts", Sheet).show([_NOT_YET])

    def draw(self, picture: Picture) -> None:
        """Show nothing new: gates run when they are asked to."""

    def judged(self, report: Report) -> None:
        """Show what the gates said."""
        self._report = report
        taken = report.data["capture"]["taken"]
        verdict = report.data["verdict"]
        self.query_one("#verdicts", Sheet).show([Prose(lines=[f"{verdict}, snapshot of {taken}"]), *report.blocks])

    def json(self, picture: Picture) -> Report | None:
        """Return the findings."""
        del picture  # they do not age with it
        return self._report
