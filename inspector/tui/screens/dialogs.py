"""Screens on top of the others: something to read, and a plan to say yes or no to.

Invariant: esc always goes back and changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget

from ...format import plural
from ...invalidation import Plan
from ...report import Block, Prose, Report
from ..widgets.bars import Keys, Line
from ..widgets.sheet import Sheet


class Reader(Screen[None]):
    """Something to read.

    Args:
        title: What it is, in a few words.
        blocks: What it says.
        report: Its JSON is shown with ``y``; None where it has none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,backspace", "back", show=False),
        Binding("y", "json", show=False),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, title: str, blocks: Sequence[Block], report: Report | None = None) -> None:
        """Lay nothing out yet."""
        super().__init__()
        self._title = title
        self._blocks = blocks
        self._report = report

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        yield Line(id="reader-title")
        with VerticalScroll(id="reader-body"):
            yield Sheet(id="reader-sheet")
        yield Keys(id="reader-keys")

    def on_mount(self) -> None:
        """Show it."""
        self.query_one("#reader-title", Line).say(self._title)
        self.query_one("#reader-sheet", Sheet).show(self._blocks)
        self.query_one(Keys).show(self.hints)
        self.query_one("#reader-body").focus()

    @property
    def hints(self) -> Sequence[str]:
        """Keys that work here."""
        return (*(("y JSON",) if self._report is not None else ()), "up down scroll", "esc back")

    def action_back(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.query_one("#reader-body").scroll_relative(y=by, animate=False)

    def action_json(self) -> None:
        """Show the same as JSON."""
        if self._report is not None:
            self.app.push_screen(Reader(f"{self._title} as JSON", [Prose(lines=self._json(self._report))]))

    def _json(self, report: Report) -> list[str]:
        to_json = getattr(self.app, "to_json", None)
        return [] if to_json is None else str(to_json(report)).splitlines()


class Confirm(Screen[bool]):
    """A plan: yes carries it out, esc leaves everything as it is.

    Args:
        plan: The plan.
        report: How it reads.
        allowed: Whether the engine lets it be carried out.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "answer(False)", show=False),
        Binding("Y", "answer(True)", show=False),
    ]

    def __init__(self, plan: Plan, report: Report, *, allowed: bool) -> None:
        """Lay nothing out yet."""
        super().__init__()
        self._plan = plan
        self._report = report
        self._allowed = allowed and bool(plan.entries)
        self._read_only = not allowed

    def compose(self) -> Iterable[Widget]:
        """Lay out."""
        yield Line(id="reader-title")
        with VerticalScroll(id="reader-body"):
            yield Sheet(id="reader-sheet")
        yield Keys(id="reader-keys")

    def on_mount(self) -> None:
        """Show the plan and ask."""
        self.query_one("#reader-title", Line).say("plan to invalidate")
        question = Prose(lines=list(self._question()))
        notes = [Prose(lines=list(self._report.notes))] if self._report.notes else []
        self.query_one("#reader-sheet", Sheet).show([*self._report.blocks, *notes, question])
        self.query_one(Keys).show((*(("Y carry it out",) if self._allowed else ()), "esc leave it"))
        self.query_one("#reader-body").focus()

    def _question(self) -> Iterable[str]:
        if self._read_only:
            yield "This engine allows no changes: its agent was started read-only."
            yield "To get it, start the engine with: kvctl run --allow-changes -- vllm serve ..."
        elif self._allowed:
            pages = plural(len(self._plan.pages), "page")
            yield f"Take {pages} out of the cache? Y (capital) carries it out, esc leaves everything as it is."
        else:
            yield "There is nothing to take out."

    def action_answer(self, yes: bool) -> None:
        """Leave with the answer."""
        if not yes or self._allowed:
            self.dismiss(yes)
