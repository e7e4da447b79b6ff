"""Standard output and standard error: the only writers of both.

Invariant: stdout carries data only, notes and progress go to stderr; no string leaves without being cleaned, or
escaped in JSON; a reader that went away (``| head``) ends the command quietly. Used by the commands through
:mod:`kvctl.reading`, and by :mod:`kvctl.main` for errors.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

from agent.errors import KvctlError
from agent.model.snapshot import SCHEMA_VERSION
from inspector.format import clean
from inspector.hints import aim_report
from inspector.report import Column, Report, Value
from inspector.text import LineTable, Style, render

from .diagnostics import ReaderGoneError, error_name, exit_code_of


class Format(StrEnum):
    """What ``-o`` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how one command writes."""

    format: Format = Format.TABLE
    raw_bytes: bool = False
    headers: bool = True
    quiet: bool = False
    """Exit code only: nothing on stdout, no notes."""
    target: str = ""
    """Options of this call that chose a file or engine, as a shell takes them: commands that a text names get them."""

    @property
    def machine(self) -> bool:
        """Whether a program reads the output."""
        return self.format in {Format.JSON, Format.JSONL}

    def show(self, report: Report) -> None:
        """Write a report to stdout and its notes to stderr."""
        self.write(self.text(report))
        for note in aim_report(report, self.target).notes:
            self.note(note)

    def text(self, report: Report) -> str:
        """Return a report as it would be written."""
        match self.format:
            case Format.JSON:
                return _json(_enveloped(report), indent=2)
            case Format.JSONL:
                if report.item_kind is None:
                    return _line(_enveloped(report))
                return "".join(_line(envelope(report.item_kind, item)) for item in report.items)
            case Format.NAME:
                return "".join(f"{clean(name)}\n" for name in report.names)
            case Format.TABLE | Format.WIDE:
                return render(aim_report(report, self.target), self.style)

    @property
    def style(self) -> Style:
        """The layout for this terminal: its width, colours only where they can be seen and are wanted."""
        return Style(
            width=terminal_width(),
            wide=self.format is Format.WIDE,
            raw_bytes=self.raw_bytes,
            headers=self.headers,
            colour=wants_colour(sys.stdout),
        )

    def write(self, text: str) -> None:
        """Write text that is ready to stdout."""
        if self.quiet or not text:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def stream(self, kind: str, columns: Sequence[Column]) -> "Stream":
        """Return a writer of one line at a time; JSON becomes one object a line, there is no end to wait for."""
        return Stream(self, kind, columns)

    def note(self, text: str) -> None:
        """Write a remark for a person to stderr; a program that asked for JSON finds only errors there."""
        if not self.quiet and not self.machine:
            say(text)


class Stream:
    """Lines that come one by one: columns keep the width of what was there before.

    Args:
        output: Where to write.
        kind: Kind of one line of JSON.
        columns: Columns of the table.
    """

    def __init__(self, output: Output, kind: str, columns: Sequence[Column]) -> None:
        """Write nothing yet."""
        self._output = output
        self._kind = kind
        self._columns = columns
        self._lines = LineTable(columns, output.style)

    def add(self, data: Mapping[str, Any], row: Sequence[Value], *, name: str) -> None:
        """Write one item in the format that was chosen."""
        if self._output.machine:
            self._output.write(_line(envelope(self._kind, data)))
        elif self._output.format is Format.NAME:
            self._output.write(clean(name) + "\n")
        else:
            self._output.write(self._lines.add(row))


def envelope(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the version of its schema and its kind in front; its strings are as they came."""
    return {"schema_version": SCHEMA_VERSION, "kind": kind, **data}


def _enveloped(report: Report) -> dict[str, Any]:
    return envelope(report.kind, report.data)


def _line(data: Mapping[str, Any]) -> str:
    return _json(data, separators=(",", ":"))


def _json(data: Mapping[str, Any], **layout: Any) -> str:
    # ASCII alone: nothing in it steers a terminal, whatever its encoding, and who parses it gets every string exactly.
    return json.dumps(data, ensure_ascii=True, default=dict, **layout) + "\n"


def terminal_width() -> int | None:
    """Return the columns of the terminal; None where stdout is none and ``COLUMNS`` does not say."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isascii() and columns.isdigit()):
        return max(40, shutil.get_terminal_size((80, 24)).columns)
    return None


def wants_colour(stream: TextIO) -> bool:
    """Return whether colour may be used: a terminal, no ``NO_COLOR`` (https://no-color.org), not a dumb one."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"


def say(text: str) -> None:
    """Write one clean line to stderr; a stderr that is closed is no reason to fail."""
    try:
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        return


def say_what_libraries_log() -> None:
    """Let warnings that a library logs come out as one clean line each: they quote what other programs answered."""
    import logging  # noqa: PLC0415 - only the exporter's libraries log anything

    class Spoken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(self.format(record))

    logging.basicConfig(handlers=[Spoken()], level=logging.WARNING)


def say_error(error: KvctlError, *, as_json: bool) -> None:
    """Write the one message of an error: what failed, why, what to do next."""
    code = exit_code_of(error)
    if as_json:
        data = {
            "error": error_name(error),
            "what": error.what,
            "why": error.why,
            "next_step": error.next_step,
            "exit_code": int(code),
            "exit_code_name": code.name.lower(),
        }
        say(_line(envelope("error", data)).rstrip("\n"))
        return
    say(f"kvctl: {error.what}")
    if error.why:
        say(f"  why:  {error.why}")
    if error.next_step:
        say(f"  next: {error.next_step}")


class Progress:
    """A line on stderr that shows how far the page table has been read; silent where nobody looks.

    Args:
        what: What is being read, in a few words.
        quiet: Say nothing.
    """

    def __init__(self, what: str, *, quiet: bool) -> None:
        self._what = what
        self._on = sys.stderr.isatty() and not quiet
        self._shown = -1

    def __call__(self, ratio: float) -> None:
        """Show a ratio from 0 to 1."""
        percent = int(max(0.0, min(1.0, ratio)) * 100)
        if self._on and percent != self._shown:
            self._shown = percent
            sys.stderr.write(f"\r{self._what}: {percent}%")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._on and self._shown >= 0:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
