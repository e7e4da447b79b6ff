"""Text for people: numbers with units, times, and strings from an engine made harmless.

Invariant: pure functions; a value that was not read (None) becomes ``unknown``, never 0. The command line and the
dashboard both use it, so that one thing looks the same everywhere.
"""

import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

UNKNOWN = "unknown"
"""What a table shows for a value that was not read."""

ELLIPSIS = "…"
"""Stands for what was cut out of a text."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_YEAR_9999_NS = 253_370_764_800 * 1_000_000_000
_FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def clean(text: str) -> str:
    """Return ``text`` without anything that could steer a terminal.

    Control and format characters (escape sequences, bidirectional overrides, zero-width ones), lone surrogates and
    unassigned code points go; line breaks and tabs become one space. Rich markup is not special here: it is shown as
    the brackets that it is.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = (" " if c in "\n\r\t" else c for c in text if c in "\n\r\t" or unicodedata.category(c) not in _FORBIDDEN)
    return "".join(kept)


def width_of(text: str) -> int:
    """Return the terminal cells that clean ``text`` takes (wide East Asian characters take two)."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def cut(text: str, cells: int) -> str:
    """Return ``text`` shortened to at most ``cells`` terminal cells, with an ellipsis where something is missing."""
    if width_of(text) <= cells:
        return text
    if cells <= 0:
        return ""
    taken = 0
    for at, char in enumerate(text):
        step = width_of(char)
        if taken + step > cells - 1:
            return text[:at] + ELLIPSIS
        taken += step
    return text


def cut_middle(text: str, cells: int) -> str:
    """Return ``text`` shortened in its middle: of ids both ends tell them apart."""
    if width_of(text) <= cells or cells < 5:
        return cut(text, cells)
    tail = (cells - 1) // 2
    end = text[-tail:]
    while width_of(end) > tail:
        end = end[1:]
    start = cut(text, cells - width_of(end))
    return start + end if width_of(start + end) <= cells else cut(text, cells)


def count(value: int | None) -> str:
    """Return a count with thousands separators."""
    return UNKNOWN if value is None else f"{value:,}"


def width_of_counts(values: Iterable[int | None], least: int = 9) -> int:
    """Return the cells that these counts take below each other, at least as many as most of them do."""
    return max([least, *(len(count(value)) for value in values)])


def size(value: int | None, *, raw: bool = False) -> str:
    """Return bytes in binary units, or the plain number with ``raw``."""
    if value is None:
        return UNKNOWN
    if raw:
        return str(value)
    number = float(value)
    for unit in _BINARY:
        if abs(number) < 1024 or unit == _BINARY[-1]:
            return f"{value} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError(value)


def percent(ratio: float | None) -> str:
    """Return a ratio 0-1 as whole percents; small ones and nearly full ones keep a digit so that they do not lie."""
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < 0.01 or 0.99 < ratio < 1:
        return f"{min(max(ratio, 0.001), 0.999):.1%}"
    return f"{ratio:.0%}"


def when(time_ns: int | None) -> str:
    """Return a wall clock in nanoseconds as RFC 3339 in UTC, to the millisecond."""
    if time_ns is None:
        return UNKNOWN
    if not 0 <= time_ns < _YEAR_9999_NS:
        return UNKNOWN
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}Z"


def clock(time_ns: int | None) -> str:
    """Return the time of day of a wall clock in UTC, to the second, for tables whose rows are of one day."""
    text = when(time_ns)
    return text[11:19] if text != UNKNOWN else text


def duration(duration_ns: int | None) -> str:
    """Return a duration in the unit that fits."""
    if duration_ns is None:
        return UNKNOWN
    for limit, divisor, unit in ((1_000, 1, "ns"), (1_000_000, 1_000, "µs"), (1_000_000_000, 1_000_000, "ms")):
        if duration_ns < limit:
            return f"{duration_ns / divisor:.{0 if divisor == 1 else 1}f} {unit}"
    seconds = duration_ns / 1_000_000_000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else _hours(seconds)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def bar(ratio: float | None, cells: int = 30, *, full: str = "█", empty: str = "░") -> str:
    """Return a bar of ``cells`` characters; anything above 0 shows at least one full cell."""
    if ratio is None:
        return "?" * cells
    filled = min(cells, max(round(ratio * cells), 1 if ratio > 0 else 0))
    return full * filled + empty * (cells - filled)


def plural(number: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun: ``1 page``, ``2,000 pages``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
