"""A report: what a view has to say, as data and as blocks of text, before anybody decides how it looks.

Invariant: frozen values without any knowledge of terminals, widths or formats. Views make them from a snapshot; the
command line's renderer and the dashboard show them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]
"""A JSON object. ``None`` is a value that was not read."""


class Kind(StrEnum):
    """How a cell is formatted; numbers are aligned to the right."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    RATIO = "ratio"
    TIME = "time"
    CLOCK = "clock"
    DURATION = "duration"


class Tone(StrEnum):
    """What a colour would mean. Never the only carrier of a meaning: the text says it too."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    header: str
    kind: Kind = Kind.TEXT
    wide: bool = False
    """Shown only with ``-o wide``."""
    elastic: bool = False
    """May be cut when the terminal is narrow (free text); at least one column of a wide table should be."""
    wrap: bool = False
    """Words go on in the next line instead of being cut; for the last column of a table."""
    identity: bool = False
    """An id: where it is cut, its end stays."""
    roomy: int = 0
    """Cells that a growing table keeps free for it where a line is long enough, so that it need not grow."""
    least: int = 0
    """Cells that a list that grows line by line keeps free from the start."""
    blank: str | None = None
    """What to show for None instead of ``unknown``, where None means that there is none."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a tone."""

    value: str | int | float | None
    tone: Tone = Tone.PLAIN


Value = str | int | float | None | Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a header."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    title: str | None = None
    empty: str = "nothing to show"
    """The sentence in place of a table without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Short labelled lines: ``LABEL  text``. A label may have several lines."""

    facts: Sequence[tuple[str, Sequence[str | Cell]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """Lines of text that are wrapped to the width."""

    lines: Sequence[str | Cell]
    title: str | None = None


Block = Table | Facts | Prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer of one view."""

    kind: str
    """Names the JSON Schema in ``docs/schema``: ``groups`` is described by ``groups.json``."""
    data: Mapping[str, Any]
    """The JSON object, without ``schema_version`` and ``kind``."""
    items: Sequence[Json] = ()
    """What ``jsonl`` writes, one line each; empty means the whole object in one line."""
    item_kind: str | None = None
    """Kind of one line of ``jsonl``."""
    names: Sequence[str] = ()
    """What ``-o name`` writes, fit for use as an argument of the next command."""
    blocks: Sequence[Block] = ()
    notes: Sequence[str] = ()
    """Remarks for the person, written to stderr, never to stdout."""
