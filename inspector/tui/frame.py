"""The frame of the dashboard: bars, screens, prompt, and what stands in them.

Invariant: reads the state that the app keeps and touches widgets, nothing else; what stands in the bars is made again
from that state each second. Extended by :mod:`inspector.tui.app`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from textual import events
from textual.app import App
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Input, Label

from agent.errors import KvctlError

from ..format import duration, percent
from ..views.common import engine_line
from .picture import Pane, Picture
from .screens.base import PaneView
from .screens.decisions import Decisions
from .screens.findings import Findings
from .screens.groups import Groups
from .screens.overview import Overview
from .screens.pages import Pages
from .screens.prefixes import Prefixes
from .widgets.bars import Banner, Keys, Line, Tabs

if TYPE_CHECKING:
    from .messages import Lost

V = TypeVar("V", bound=Widget)

PANES: Mapping[str, type[PaneView]] = {
    "1": Overview, "2": Groups, "3": Prefixes, "4": Pages, "5": Decisions, "6": Findings,
}  # fmt: skip
"""The screens by the key that opens them."""

WIDE = 120
"""Columns from which a screen stands in two columns."""

OLD_AFTER = 3.0
"""Intervals after which a picture is called old."""

_HINTS = ("space pause", "v validate", "s save", "y JSON", "+ - pace", "? help", "q quit")


class Frame(App[None]):
    """Bars and screens.

    Args:
        interval_s: Seconds between two readings.
    """

    CSS_PATH = "kvctl.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "kvctl top"

    def __init__(self, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self.interval_s = interval_s
        self.picture: Picture | None = None
        self.lost: Lost | None = None
        self.lost_at = 0.0
        self.arriving: float | None = None
        self.paused = False
        self.busy: str | None = None
        """What job runs, in a few words."""
        self._behind = False
        """Whether the open screen waits for a dialog to go before it is drawn."""
        self._remark = ""
        self._error: KvctlError | None = None
        self._prompted: Callable[[str], None] | None = None

    def compose(self) -> Iterable[Widget]:
        """Lay out bars around the screens."""
        yield Line(id="head")
        yield Tabs(id="tabs")
        with ContentSwitcher(id="panes", initial=Pane.OVERVIEW.value):
            for view in PANES.values():
                yield view()
        yield Banner()
        with Horizontal(id="prompt"):
            yield Label(id="question", markup=False)
            yield Input(id="answer", compact=True)
        yield Keys(id="keys")

    def begin(self) -> None:
        """Show the bars and let them age."""
        self.close_prompt()
        self.bars()
        self.set_interval(1.0, self._beat)

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout, and lay the picture out anew."""
        if self.ready:
            self.panes.set_class(event.size.width >= WIDE, "wide")
            self.call_after_refresh(self.draw)

    def main(self, kind: type[V]) -> V:
        """Return the widget of this kind on the screen below all dialogs."""
        return self.screen_stack[0].query_one(kind)

    @property
    def ready(self) -> bool:
        """Whether there are widgets: not before the first layout, and not while everything is taken down."""
        return bool(self.screen_stack) and bool(self.screen_stack[0].query(Keys))

    @property
    def panes(self) -> ContentSwitcher:
        """The screens."""
        return self.main(ContentSwitcher)

    @property
    def view(self) -> PaneView:
        """The screen that is open."""
        return self.panes.get_child_by_id(str(self.panes.current), PaneView)

    def draw(self) -> None:
        """Show the latest picture where it was read for the open screen; under a dialog, once that is gone."""
        self._behind = len(self.screen_stack) > 1
        if self._behind or not self.ready:
            return
        if self.picture is not None and self.picture.pane is self.view.pane:
            self.view.draw(self.picture)
        self.bars()

    def _beat(self) -> None:
        if self._behind:
            self.draw()
        else:
            self.bars()

    def say(self, text: str) -> None:
        """Say one sentence until something else is said."""
        self._remark, self._error = text, None
        self.bars()

    def complain(self, error: KvctlError | None) -> None:
        """Show an error until esc; None takes it away."""
        self._remark, self._error = "", error
        self.bars()

    def ask(self, question: str, text: str, answered: Callable[[str], None]) -> None:
        """Ask for a line of text; enter answers, esc does not."""
        prompt = self.main(Input)
        prompt.value, self._prompted = text, answered
        prompt.cursor_position = len(text)
        self.main(Label).update(question)
        self.screen.query_one("#prompt").display = True
        prompt.focus()

    def close_prompt(self) -> Callable[[str], None] | None:
        """Take the prompt away and return who wanted its answer."""
        prompted, self._prompted = self._prompted, None
        self.screen_stack[0].query_one("#prompt").display = False
        self.view.focus_first()
        return prompted

    def bars(self) -> None:
        """Bring the bars up to date."""
        if not self.ready or len(self.screen_stack) > 1:
            return
        picture = self.picture
        whose = "no engine yet" if picture is None else engine_line(picture.snapshot)
        self.main(Line).say(f"kvctl top  {whose}", self._freshness())
        tabs = [(key, view.title, view.pane is self.view.pane) for key, view in PANES.items()]
        self.main(Tabs).show(tabs, "" if self.busy is None else f"{self.busy} ...")
        self.main(Keys).show(tuple(dict.fromkeys((*self.view.hints, *_HINTS))))
        banner = self.main(Banner)
        if self._error is not None:
            banner.say(self._error, "esc takes this away")
        elif self.lost is not None:
            banner.say(self.lost.error, self._hope(), self._remark)
        else:
            banner.remark(self._remark)

    def _freshness(self) -> str:
        if self.arriving is not None:
            return f"page table {percent(self.arriving)}"
        if self.picture is None:
            return "connecting"
        if not self.picture.live:
            return "saved snapshot"
        age_s = max(0.0, time.time() - self.picture.snapshot.capture.taken_ns / 1e9)
        if self.lost is not None:
            return f"LOST, {_age(age_s)} old"
        if self.paused:
            return f"PAUSED, {_age(age_s)} old"
        if age_s > OLD_AFTER * self.interval_s + 1.0 and self.picture.pane is self.view.pane:
            return f"live, {_age(age_s)} old"
        return f"live, every {self.interval_s:g} s"

    def _hope(self) -> str:
        if self.lost is None or self.lost.retry_s is None:
            return ""
        left = max(0, round(self.lost.retry_s - (time.monotonic() - self.lost_at)))
        shown = "" if self.picture is None else "the last picture stays; "
        return f"{shown}trying again" + (f" in {left} s" if left else " now")


def _age(age_s: float) -> str:
    return duration(round(age_s) * 1_000_000_000).replace(".0 s", " s")
