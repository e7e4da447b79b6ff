"""The one renderer: a report as lines of plain text.

Invariant: every string is cleaned here, at the last step, whatever it came from; colour is added after measuring and
only when asked for. Used by the command line and by the dashboard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .format import UNKNOWN, clean, clock, count, cut, cut_middle, duration, percent, size, when, width_of
from .hints import glued
from .report import Block, Cell, Column, Facts, Kind, Prose, Report, Table, Tone, Value
from .wrap import wrap

MAX_CELL = 120
"""Cells of the widest free-text column where the width is not limited: an id of 10 kB stays one line."""

_MIN_ELASTIC = 8
_ROOMY = 100
"""Cells of a line from which growing tables keep room in their columns."""
_GAP = "  "
_SGR = {Tone.GOOD: "32", Tone.BAD: "31", Tone.WARN: "33", Tone.DIM: "2", Tone.STRONG: "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How text is laid out."""

    width: int | None = 80
    """Cells of a line; None: lines are as long as they are (output to a file or pipe)."""
    wide: bool = False
    raw_bytes: bool = False
    headers: bool = True
    colour: bool = False
    whole_commands: bool = True
    """A command is never broken, however long it is; False where lines that are too long are clipped."""


def render(report: Report, style: Style) -> str:
    """Return the blocks of a report as text that ends with a line feed; empty for a report without blocks."""
    lines: list[str] = []
    for number, block in enumerate(report.blocks):
        if number:
            lines.append("")
        lines.extend(block_lines(block, style))
    return "\n".join(line.rstrip() for line in lines) + "\n" if lines else ""


def block_lines(block: Block, style: Style) -> list[str]:
    """Return one block as lines."""
    match block:
        case Table():
            return list(_table(block, style))
        case Facts():
            return list(_facts(block, style))
        case Prose():
            return list(_prose(block, style))


def text_of(value: Value, column: Column, *, raw_bytes: bool = False) -> str:
    """Return one cell as clean text: the one place where a value gets its unit."""
    bare = value.value if isinstance(value, Cell) else value
    if bare is None:
        return UNKNOWN if column.blank is None else column.blank
    if isinstance(bare, str):
        return clean(bare)
    match column.kind:
        case Kind.BYTES:
            return size(int(bare), raw=raw_bytes)
        case Kind.RATIO:
            return percent(float(bare))
        case Kind.TIME:
            return when(int(bare))
        case Kind.CLOCK:
            return clock(int(bare))
        case Kind.DURATION:
            return duration(int(bare))
        case Kind.TEXT | Kind.COUNT:
            return count(bare) if isinstance(bare, int) else f"{bare:g}"


def _paint(text: str, tone: Tone, style: Style) -> str:
    sgr = _SGR.get(tone)
    return f"\x1b[{sgr}m{text}\x1b[0m" if style.colour and sgr and text.strip() else text


def _table(table: Table, style: Style) -> Iterator[str]:
    if table.title and style.headers:
        yield from _wrapped(Cell(table.title, Tone.STRONG), style.width, style)
    if not table.rows:
        yield from _wrapped(table.empty, style.width, style)
        return
    shown = [at for at, column in enumerate(table.columns) if style.wide or not column.wide]
    columns = [table.columns[at] for at in shown]
    cells = [[text_of(row[at], table.columns[at], raw_bytes=style.raw_bytes) for at in shown] for row in table.rows]
    widths = _widths(columns, cells, style)
    if style.headers:
        header = [_pad(column.header, column, width) for column, width in zip(columns, widths, strict=True)]
        yield _paint(_GAP.join(header).rstrip(), Tone.DIM, style)
    for row, texts in zip(table.rows, cells, strict=True):
        parts, rest = [], []
        for at, column, text, width in zip(shown, columns, texts, widths, strict=True):
            fitting = text
            if column.wrap and width_of(text) > width:
                fitting, *rest = wrap(text, width, whole=False)
            parts.append(_paint(_pad(_fit(fitting, column, width), column, width), _tone(row[at]), style))
        yield _GAP.join(parts)
        indent = " " * (sum(widths[:-1]) + len(_GAP) * (len(widths) - 1))
        yield from (indent + _paint(cut(piece, widths[-1]), _tone(row[shown[-1]]), style) for piece in rest)


class LineTable:
    """A table that grows row by row: a column never shrinks, and free text takes what is left of the line.

    Where a column had to grow the header comes again, so that it stands above its columns.

    Args:
        columns: Its columns.
        style: The layout.
    """

    def __init__(self, columns: Sequence[Column], style: Style) -> None:
        self._shown = [at for at, column in enumerate(columns) if style.wide or not column.wide]
        self._columns = [columns[at] for at in self._shown]
        self._style = style
        roomy = style.width is None or style.width >= _ROOMY
        self._widths = [max(len(column.header), column.least, column.roomy if roomy else 0) for column in self._columns]
        self._headed: list[int] = []
        """Widths below the header that was written last."""

    def add(self, row: Sequence[Value]) -> str:
        """Return one row as text with its line feed; the first one brings the header."""
        cells = [row[at] for at in self._shown]
        texts = [
            text_of(cell, column, raw_bytes=self._style.raw_bytes)
            for cell, column in zip(cells, self._columns, strict=True)
        ]
        self._widths = [
            width if column.elastic else max(width, width_of(text))
            for width, column, text in zip(self._widths, self._columns, texts, strict=True)
        ]
        widths = self._fitted(texts)
        lines = []
        fixed = [width for width, column in zip(self._widths, self._columns, strict=True) if not column.elastic]
        if fixed != self._headed and self._style.headers:
            header = [_pad(column.header, column, width) for column, width in zip(self._columns, widths, strict=True)]
            lines.append(_paint(_GAP.join(header).rstrip(), Tone.DIM, self._style))
        self._headed = fixed
        parts = [
            _paint(_pad(_fit(text, column, width), column, width), _tone(cell), self._style)
            for cell, text, column, width in zip(cells, texts, self._columns, widths, strict=True)
        ]
        return "".join(f"{line}\n" for line in [*lines, _GAP.join(parts).rstrip()])

    def _fitted(self, texts: Sequence[str]) -> list[int]:
        fixed = sum(
            width for width, column in zip(self._widths, self._columns, strict=True) if not column.elastic
        ) + len(_GAP) * (len(self._columns) - 1)
        elastic = sum(column.elastic for column in self._columns)
        room = MAX_CELL if self._style.width is None else max(4, (self._style.width - fixed) // max(1, elastic))
        return [
            min(room, max(width, width_of(text))) if column.elastic else width
            for width, column, text in zip(self._widths, self._columns, texts, strict=True)
        ]


def _tone(value: Value) -> Tone:
    return value.tone if isinstance(value, Cell) else Tone.PLAIN


def _fit(text: str, column: Column, width: int) -> str:
    return cut_middle(text, width) if column.identity else cut(text, width)


def _pad(text: str, column: Column, width: int) -> str:
    fill = " " * max(0, width - width_of(text))
    return text + fill if column.kind in {Kind.TEXT, Kind.TIME, Kind.CLOCK} else fill + text


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], style: Style) -> list[int]:
    """Return a width for each column: natural ones, then elastic columns give way, the widest first."""
    widths = [
        min(MAX_CELL, max([width_of(row[at]) for row in cells] + ([len(column.header)] if style.headers else [])))
        for at, column in enumerate(columns)
    ]
    if style.width is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - style.width
    excess = _shrink(widths, [at for at, column in enumerate(columns) if column.elastic], excess)
    # Only hostile or very long names get here: numbers are never cut, words may be.
    _shrink(widths, [at for at, column in enumerate(columns) if column.kind is Kind.TEXT], excess)
    return widths


def _shrink(widths: list[int], elastic: Sequence[int], excess: int) -> int:
    """Take ``excess`` cells away from elastic columns, the widest first; return what could not be taken."""
    while excess > 0:
        # Of equally wide ones the last gives way first: names stand in front.
        widest = max(reversed(elastic), key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= _MIN_ELASTIC:
            break
        lower = [widths[at] for at in elastic if widths[at] < widths[widest]]
        step = max(1, min(excess, widths[widest] - max([_MIN_ELASTIC, *lower])))
        widths[widest] -= step
        excess -= step
    return excess


def _facts(block: Facts, style: Style) -> Iterator[str]:
    label_width = max((len(label) for label, _ in block.facts), default=0)
    indent = " " * (label_width + len(_GAP))
    room = None if style.width is None else max(20, style.width - len(indent))
    for label, lines in block.facts:
        head = _paint(label.ljust(label_width), Tone.STRONG, style) + _GAP
        for line in lines:
            left = indent if head != indent or room is None else _left(line, indent, room)
            for piece in _wrapped(line, None if room is None else room + len(indent) - len(left), style):
                yield (head if head != indent else left) + piece
                head = indent


def _left(line: str | Cell, indent: str, room: int) -> str:
    """Return the indentation of a line: less of it for a command that fits in one line only so."""
    text = clean(str(line.value) if isinstance(line, Cell) else line)
    over = width_of(text) - room
    return indent[over:] if 0 < over <= len(indent) and " " not in glued(text) else indent


def _prose(block: Prose, style: Style) -> Iterator[str]:
    if block.title and style.headers:
        yield from _wrapped(Cell(block.title, Tone.STRONG), style.width, style)
    for line in block.lines:
        yield from _wrapped(line, style.width, style)


def _wrapped(line: str | Cell, room: int | None, style: Style) -> Iterator[str]:
    tone = line.tone if isinstance(line, Cell) else Tone.PLAIN
    text = clean(str(line.value) if isinstance(line, Cell) else line)
    if room is None or width_of(text) <= room:
        yield _paint(text, tone, style)
        return
    body = text.lstrip(" ")
    indent = " " * (len(text) - len(body))
    for piece in wrap(body, room, first=indent, rest=indent + "  ", whole=style.whole_commands):
        yield _paint(piece, tone, style)
