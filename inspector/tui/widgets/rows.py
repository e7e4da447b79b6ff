"""A table with a cursor that renders only the rows in sight.

Invariant: a row costs something only while it is seen, so that a thousand decisions scroll like ten. The cursor is a
mark in the text as well as a colour.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from rich.style import Style as RichStyle
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from ...report import Column, Table, Value
from ...text import Style, block_lines
from .sheet import painted

T = TypeVar("T")
_MARK, _NO_MARK = "> ", "  "


@dataclass(frozen=True, slots=True)
class Window:
    """Rows in sight: ``[first, first + height)`` of ``count``, with the cursor among them."""

    count: int
    height: int
    first: int
    cursor: int

    def moved(self, cursor: int) -> "Window":
        """Put the cursor on a row and scroll as little as needed."""
        cursor = max(0, min(cursor, self.count - 1))
        lowest = max(0, cursor - self.height + 1)
        first = min(max(self.first, lowest), cursor)
        return replace(self, cursor=cursor, first=max(0, min(first, max(0, self.count - self.height))))


class Rows(Widget, Generic[T], can_focus=True):
    """The rows of ``items``.

    Args:
        row_of: Makes one row.
        columns: Of the table, where they are known from the start.
        tail: Stay on the last row while new ones come.
        wide_at: Columns from which the wide columns are shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("home,g", "jump(0)", show=False),
        Binding("end,G", "jump(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, rows: "Rows[Any]") -> None:
            """Say of which table."""
            super().__init__()
            self.rows = rows

        @property
        def control(self) -> "Rows[Any]":
            """The table."""
            return self.rows

    def __init__(
        self,
        row_of: Callable[[T], Sequence[Value]],
        *,
        columns: Sequence[Column] = (),
        tail: bool = False,
        wide_at: int = 120,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        """Show nothing yet."""
        super().__init__(id=id)
        self._columns = columns
        self._row_of = row_of
        self._tail = tail
        self._wide_at = wide_at
        self._items: Sequence[T] = ()
        self._empty = ""
        self._window = Window(0, 1, 0, 0)

    def show(
        self,
        items: Sequence[T],
        *,
        empty: str,
        key: Callable[[T], object],
        columns: Sequence[Column] | None = None,
    ) -> None:
        """Show these items; the cursor stays on the one with the same key, or at the end of a tail."""
        self._columns = self._columns if columns is None else columns
        at_end = self._window.cursor >= len(self._items) - 1
        chosen = None if self.selected is None else key(self.selected)
        self._items, self._empty = items, empty
        cursor = self._window.cursor
        if self._tail and at_end:
            cursor = len(items) - 1
        elif chosen is not None:
            cursor = next((at for at, item in enumerate(items) if key(item) == chosen), min(cursor, len(items) - 1))
        self._window = replace(self._window, count=len(items)).moved(cursor)
        self.refresh()

    @property
    def selected(self) -> T | None:
        """The item under the cursor."""
        return self._items[self._window.cursor] if 0 <= self._window.cursor < len(self._items) else None

    def render(self) -> Text:
        """Return header and rows in sight."""
        self._window = replace(self._window, height=max(1, self.size.height - 1)).moved(self._window.cursor)
        first, cursor = self._window.first, self._window.cursor
        seen = self._items[first : first + self._window.height]
        width = max(20, self.size.width - len(_MARK))
        table = Table(columns=self._columns, rows=[self._row_of(item) for item in seen], empty=self._empty)
        style = Style(width=width, wide=width >= self._wide_at, colour=True, whole_commands=False)
        lines = block_lines(table, style)
        head = 1 if seen else 0
        marked = [
            (_MARK if at - head == cursor - first and at >= head else _NO_MARK) + line for at, line in enumerate(lines)
        ]
        text = painted(marked)
        if seen and self.has_focus:
            start = sum(len(Text.from_ansi(line).plain) + 1 for line in marked[: head + cursor - first])
            text.stylize(RichStyle(bold=True), start, start + len(Text.from_ansi(marked[head + cursor - first]).plain))
        return text

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._window = self._window.moved(self._window.cursor + by)
        self.refresh()

    def action_page(self, by: int) -> None:
        """Move the cursor by screens."""
        self.action_move(by * self._window.height)

    def action_jump(self, to: int) -> None:
        """Move the cursor to the first row (0) or to the last one."""
        self.action_move(len(self._items) if to else -len(self._items))

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self.selected is not None:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row that was clicked; open it where it stood already."""
        row = self._window.first + event.y - 1
        if event.y < 1 or row >= len(self._items):
            return
        if row == self._window.cursor:
            self.action_choose()
        self.action_move(row - self._window.cursor)

    def on_mouse_scroll_down(self) -> None:
        """Scroll."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """Scroll."""
        self.action_move(-3)
