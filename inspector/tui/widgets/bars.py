"""The bars around a screen: whose engine and how fresh, which screens there are, what went wrong, which keys work.

Invariant: each is at most a few lines, cut and never wrapped into the screen; the text carries the meaning without
colour.
"""

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static

from agent.errors import KvctlError

from ...format import clean, cut, width_of


class Line(Static):
    """One line of plain text, cut to its width."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        """Say nothing yet."""
        super().__init__("", id=id, markup=False)
        self._parts = ("", "")

    def say(self, left: str, right: str = "") -> None:
        """Show text at the left and at the right; the right one is never cut."""
        if (left, right) != self._parts:
            self._parts = (left, right)
            self.refresh()

    def render(self) -> Text:
        """Return the line."""
        left, right = (clean(part) for part in self._parts)
        room = self.size.width - width_of(right) - (2 if right else 0)
        left = cut(left, max(0, room))
        fill = " " * max(0, self.size.width - width_of(left) - width_of(right))
        return Text(left + fill + right, no_wrap=True)


class Tabs(Line):
    """The screens by number; the open one stands in brackets."""

    def show(self, tabs: Sequence[tuple[str, str, bool]], right: str = "") -> None:
        """Show (key, title, open) of each."""
        self.say(" ".join(f"[{key} {title}]" if here else f" {key} {title} " for key, title, here in tabs), right)

    def render(self) -> Text:
        """Return the line with the open screen in bold."""
        text = super().render()
        start, end = text.plain.find("["), text.plain.find("]")
        if 0 <= start < end:
            text.stylize("bold reverse", start, end + 1)
        return text


class Keys(Line):
    """What the keys do here; hints that do not fit are left out, the last two never are."""

    def show(self, hints: Sequence[str]) -> None:
        """Show the hints, the most useful ones first."""
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    _hints: Sequence[str] = ()

    def render(self) -> Text:
        """Return as many hints as fit."""
        always, others = list(self._hints[-2:]), list(self._hints[:-2])
        while others and width_of("  ".join([*others, *always])) > self.size.width:
            others.pop()
        return Text(cut("  ".join([*others, *always]), self.size.width), no_wrap=True)


class Banner(Static):
    """What went wrong, why, and what to do; takes no room while all is well."""

    def __init__(self) -> None:
        """Say nothing."""
        super().__init__("", id="banner", markup=False)
        self.display = False
        self._text = ""

    def say(self, error: KvctlError, *then: str) -> None:
        """Show an error and what happens next, a line each."""
        lines = [f"! {error.what}" + (f": {error.why}" if error.why else "")]
        lines += [f"  next: {error.next_step}"] if error.next_step else []
        lines += [f"  {line}" for line in then if line]
        self._show("\n".join(clean(line) for line in lines))

    def remark(self, text: str) -> None:
        """Show one sentence; an empty one takes the banner away."""
        self._show(clean(text))

    def _show(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.display = bool(text)
            self.update(Text(text))
