"""Lines of a report, as wide as the place they have.

Invariant: laid out by ``inspector.text`` alone; what an engine says is plain text, never markup.
"""

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from ...report import Block, Prose
from ...text import Style, block_lines


def painted(lines: Sequence[str]) -> Text:
    """Return rendered lines for a widget; the renderer's own colours are the only escape sequences in them."""
    return Text("\n", no_wrap=True, end="").join(Text.from_ansi(line, no_wrap=True, end="") for line in lines)


class Sheet(Widget):
    """Blocks below each other; as high as they are.

    Args:
        wide_at: Columns from which tables show their wide columns.
    """

    def __init__(self, *, id: str | None = None, wide_at: int = 140) -> None:  # noqa: A002 - Textual's name
        """Show nothing yet."""
        super().__init__(id=id)
        self._blocks: Sequence[Block] = ()
        self._wide_at = wide_at
        self._laid: tuple[int, Text, int] | None = None

    def show(self, blocks: Sequence[Block]) -> None:
        """Show these blocks; the same ones again cost nothing."""
        if blocks == self._blocks:
            return
        self._blocks, self._laid = blocks, None
        self.refresh(layout=True)

    @property
    def text(self) -> str:
        """What it says at its present width, without colours."""
        return self._lay(max(1, self.size.width))[0].plain

    def _lay(self, width: int) -> tuple[Text, int]:
        if self._laid is None or self._laid[0] != width:
            lines: list[str] = []
            heading = False
            for block in self._blocks:
                style = Style(width=width, colour=True, wide=width >= self._wide_at, whole_commands=False)
                more = block_lines(block, style)
                lines.extend([""] if lines and more and not heading else [])
                lines.extend(more)
                heading = isinstance(block, Prose) and not block.lines
            self._laid = (width, painted(lines), len(lines))
        return self._laid[1:]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines at this width."""
        del container, viewport
        return max(1, self._lay(max(1, width))[1])

    def render(self) -> Text:
        """Return the lines."""
        return self._lay(max(1, self.size.width))[0]
