"""What every screen of the dashboard is: a place that shows the latest picture."""

from typing import ClassVar

from textual.containers import Container

from ...report import Report
from ..picture import Pane, Picture


class PaneView(Container):
    """One screen.

    Subclasses say which pane they are, what their keys do, and show a picture that was read for them.
    """

    pane: ClassVar[Pane]
    title: ClassVar[str]
    hints: ClassVar[tuple[str, ...]] = ()
    """Keys that do something here and not everywhere."""
    filters: ClassVar[bool] = False
    """Whether ``/`` does anything."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id=self.pane.value)
        self.filter_text = ""
        """What was typed after ``/``."""

    def draw(self, picture: Picture) -> None:
        """Show a picture that was read for this screen."""
        raise NotImplementedError

    def filter_by(self, text: str) -> None:
        """Show only what fits.

        Raises:
            UsageError: The filter cannot be read.
        """
        raise NotImplementedError

    def focus_first(self) -> None:
        """Give the keys to the part that takes them."""
        for child in self.query("*"):
            if child.focusable:
                child.focus()
                return

    @property
    def selector(self) -> str | None:
        """The selector of what is under the cursor, for ``x``; None where nothing can be taken out here."""
        return None

    def json(self, picture: Picture) -> Report | None:
        """Return the report whose JSON stands for what is shown."""
        return picture.report
