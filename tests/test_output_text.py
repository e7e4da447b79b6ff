"""The renderer: units, widths, colours, and a terminal as it really is."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inspector import format as fmt
from inspector.format import width_of
from inspector.report import Cell, Column, Facts, Kind, Prose, Report, Table, Tone
from inspector.store import save
from inspector.text import LineTable, Style, block_lines, render, text_of
from inspector.views.decisions import COLUMNS, row_of, story
from inspector.views.overview import overview
from inspector.wrap import wrap
from kvctl.output import Progress
from tests.support import terminal
from tests.support.cli import ROOT
from tests.support.snapshots import gemma

WORDS = st.text(max_size=60)


@given(WORDS)
def test_clean_is_one_printable_line(text: str) -> None:
    """Cleaned text is one line of printable characters, and cleaning it again changes nothing."""
    once = fmt.clean(text)
    assert "\n" not in once
    assert "\x1b" not in once
    assert fmt.clean(once) == once
    once.encode("utf-8")


@given(WORDS, st.integers(0, 80))
def test_cut_fits(text: str, cells: int) -> None:
    """Cut text fits, at its end or in its middle, and text that fits is not touched."""
    plain = fmt.clean(text)
    for cut in (fmt.cut, fmt.cut_middle):
        assert fmt.width_of(cut(plain, cells)) <= cells
        if fmt.width_of(plain) <= cells:
            assert cut(plain, cells) == plain


def test_cut_ids_keep_both_ends() -> None:
    """Ids that begin alike can still be told apart."""
    assert fmt.cut_middle("chatcmpl-0123456789abcdef", 12) == "chatcm…bcdef"


@settings(deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, st.integers(0, 10**9)), max_size=5), st.integers(40, 200))
def test_tables_fit(rows: list[tuple[str, str, int]], width: int) -> None:
    """A table with free text fits any terminal of 40 columns and more, whatever the text is."""
    columns = (Column(header="ONE", elastic=True), Column(header="TWO"), Column(header="THREE", kind=Kind.COUNT))
    lines = block_lines(Table(columns=columns, rows=rows), Style(width=width))
    assert max(map(fmt.width_of, lines)) <= width


@settings(deadline=None)
@given(st.lists(WORDS, max_size=5), st.integers(40, 200))
def test_facts_and_prose_fit(lines: list[str], width: int) -> None:
    """Facts and prose are wrapped to the terminal, long words cut."""
    report = Report(kind="x", data={}, blocks=[Facts(facts=[("LABEL", lines)]), Prose(lines=lines, title="title")])
    assert max(map(fmt.width_of, render(report, Style(width=width)).splitlines())) <= width


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, Kind.COUNT, "unknown"),
        (None, Kind.BYTES, "unknown"),
        (None, Kind.RATIO, "unknown"),
        (None, Kind.TIME, "unknown"),
        (0, Kind.COUNT, "0"),
        (1_234_567, Kind.COUNT, "1,234,567"),
        (1_023, Kind.BYTES, "1023 B"),
        (1_536, Kind.BYTES, "1.5 KiB"),
        (5 * 2**40, Kind.BYTES, "5.0 TiB"),
        (0.0, Kind.RATIO, "0%"),
        (0.0004, Kind.RATIO, "0.1%"),
        (0.9996, Kind.RATIO, "99.9%"),
        (1.0, Kind.RATIO, "100%"),
        (1_790_000_000_123_000_000, Kind.TIME, "2026-09-21T14:13:20.123Z"),
        (1_790_000_000_123_000_000, Kind.CLOCK, "14:13:20"),
        (-1, Kind.TIME, "unknown"),
        (10**30, Kind.TIME, "unknown"),
        (950, Kind.DURATION, "950 ns"),
        (41_200, Kind.DURATION, "41.2 µs"),
        (2_900_000, Kind.DURATION, "2.9 ms"),
        (90_000_000_000, Kind.DURATION, "90.0 s"),
        (3_000_000_000_000, Kind.DURATION, "50 min"),
    ],
)
def test_units(value: float | None, kind: Kind, text: str) -> None:
    """Numbers get their units, a small share is not rounded to nothing, and what was not read is unknown."""
    assert text_of(value, Column(header="X", kind=kind)) == text


def test_raw_bytes() -> None:
    """--bytes gives the number."""
    assert text_of(1_536, Column(header="X", kind=Kind.BYTES), raw_bytes=True) == "1536"


@given(st.floats(0, 1), st.integers(1, 60))
def test_bars(ratio: float, cells: int) -> None:
    """A bar is as wide as asked, and what is more than nothing shows."""
    text = fmt.bar(ratio, cells)
    assert len(text) == cells
    assert (ratio > 0) == ("█" in text)


def test_colour_never_changes_the_layout() -> None:
    """With colours the text is the same when they are taken away."""
    table = Table(
        columns=(Column(header="A"), Column(header="B", kind=Kind.COUNT)),
        rows=[(Cell("x", Tone.GOOD), Cell(5, Tone.BAD)), (Cell("longer", Tone.DIM), 1_000)],
    )
    coloured = "\n".join(block_lines(table, Style(width=80, colour=True)))
    for code in ("32", "31", "2", "0"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    plain = block_lines(table, Style(width=80))
    assert [line.rstrip() for line in coloured.splitlines()] == [line.rstrip() for line in plain]


def test_growing_tables_keep_their_columns() -> None:
    """A column that grew stays as wide as it got, and the header comes again only where one did."""
    lines = LineTable((Column(header="ID", kind=Kind.COUNT), Column(header="WHO", elastic=True)), Style(width=40))
    first, second, third = lines.add((1, "a")), lines.add((1_234_567_890, "b")), lines.add((2, "c" * 100))
    assert first.splitlines()[0].split() == ["ID", "WHO"]
    header, second = second.splitlines()
    assert header == "           ID  WHO"
    assert second.index("b") == third.index("c") == len("1,234,567,890  ")
    assert len(third.rstrip("\n")) <= 40


def on_terminal(words: list[str], *, width: int = 80, **env: str) -> str:
    """Run kvctl on a pseudo-terminal and return what it shows."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KVCTL_CONFIG": "/nowhere", "TERM": "xterm", **env}
    environ["COLUMNS"] = str(width)
    if "NO_COLOR" not in env:
        environ.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "kvctl", *words]
    return terminal.on_terminal(command, columns=width, environment=environ, folder=Path.cwd())


def test_colours_on_a_terminal_only_when_wanted(tmp_path: Path) -> None:
    """A terminal gets colours; NO_COLOR and a dumb terminal get none, and so does a pipe."""
    file = tmp_path / "s.kvsnap"
    save(gemma(), file)
    words = ["inspect", "overview", "--snapshot", str(file)]
    assert "\x1b[31m" in on_terminal(words)
    assert "\x1b" not in on_terminal(words, NO_COLOR="1")
    assert "\x1b" not in on_terminal(words, TERM="dumb")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KVCTL_CONFIG": "/nowhere"}
    piped = subprocess.run([sys.executable, "-m", "kvctl", *words], capture_output=True, env=environ, check=True)
    assert b"\x1b" not in piped.stdout


def test_watch_clears_a_terminal(tmp_path: Path) -> None:
    """--watch on a terminal begins each reading on a clear screen."""
    file = tmp_path / "s.kvsnap"
    save(gemma(), file)
    text = on_terminal(["inspect", "--snapshot", str(file), "-w", "-i", "0.01", "-n", "2"])
    assert text.count("\x1b[H\x1b[2J") == 2


class Terminal:
    """A stderr that claims to be a terminal."""

    def __init__(self, *, tty: bool) -> None:
        self.text = ""
        self.tty = tty

    def isatty(self) -> bool:
        """Say what it is."""
        return self.tty

    def write(self, text: str) -> int:
        """Remember."""
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("tty", "quiet", "shown"), [(True, False, True), (True, True, False), (False, False, False)])
def test_progress(monkeypatch: pytest.MonkeyPatch, tty: bool, quiet: bool, shown: bool) -> None:
    """Progress is a line on a terminal that goes away again, and nothing anywhere else."""
    terminal = Terminal(tty=tty)
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress("reading the page table", quiet=quiet)
    for ratio in (0.0, 0.5, 0.5, 1.0):
        progress(ratio)
    progress.close()
    assert ("reading the page table: 50%" in terminal.text) is shown
    assert (terminal.text.endswith("\r\x1b[K")) is shown


@pytest.mark.parametrize("room", [1, 2, 3, 5, 40])
def test_every_width_ends(room: int) -> None:
    """However narrow the place and wide the indentation, words are cut, lines end, and nothing is lost."""
    text = "a b kvctl ps -w \u6f22\u5b57 longerword"
    lines = wrap(text, room, first=" " * 4, rest=" " * 6)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("room", [36, 44, 60])
def test_a_command_that_would_be_clipped_goes_on_behind_a_backslash(room: int) -> None:
    """Where lines are clipped a shell still reads a copied command as it was, and no word of it is broken."""
    command = "kvctl decisions --where 'reason=window_hole or more' --snapshot tests/data/gemma3.kvsnap"
    lines = wrap(f"Then {command}", room, rest="  ", whole=False)
    assert all(width_of(line) <= room for line in lines)
    begin = next(at for at, line in enumerate(lines) if "kvctl" in line)
    assert shlex.split("\n".join(lines[begin:]).replace("\\\n", "")) == shlex.split(command)
    assert wrap(f"Then {command}", room, rest="  ")[-1].strip() == command


def test_a_command_stands_further_left_where_it_fits_only_so() -> None:
    """A command that is as wide as the line is one line, whatever label stands before it."""
    command = "kvctl decisions --where reason=window_hole --snapshot tests/data/gemma3.kvsnap"
    block = Facts(facts=[("DO", ["Look at these:", command, "word " * 20])])
    for width, whole in ((len(command), True), (len(command) + 2, False)):
        style = Style(width=width, whole_commands=whole)
        lines = block_lines(block, style)
        assert lines[1].strip() == command
        assert len(lines[1]) <= width
        assert lines[2].startswith("    word")


def test_a_long_word_is_cut_in_one_pass() -> None:
    """The work grows with the length of a word, not with its square: each character is measured a few times."""
    asked = 0

    def counted(text: str) -> int:
        nonlocal asked
        asked += len(text)
        return width_of(text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("inspector.wrap.width_of", counted)
        wrap("\u6f22" * 5_000, 40)
    assert asked < 50_000


@pytest.mark.parametrize("width", [100, None])
def test_a_million_tokens_shift_no_column(width: int | None) -> None:
    """Where there is room a follower's columns are as wide from the first line as numbers of millions ask for."""
    lines = LineTable(COLUMNS, Style(width=width))
    small, large = (
        replace(item, lookup_tokens=n, logical=n) for item, n in zip(gemma().decisions or (), (7, 10**6), strict=False)
    )
    texts = [lines.add(row_of(gemma().geometry, item)) for item in (small, large)]
    assert texts[0].count("LOOKUP") == 1
    assert "LOOKUP" not in texts[1]
    assert texts[0].splitlines()[1].index(small.outcome) == texts[1].index(large.outcome)
    assert texts[0].splitlines()[1].index("chatcmpl") == texts[1].index("chatcmpl")


@pytest.mark.parametrize("tokens", [999, 1_000_000, 123_456_789_012])
def test_numbers_below_each_other_line_up(tokens: int) -> None:
    """In explanations and overviews the last digits of counts stand below each other, however large they are."""
    snapshot = gemma()
    worst = next(item for item in snapshot.decisions or () if item.id == 4)
    large = replace(worst, lookup_tokens=tokens, logical=tokens, per_group=(0, tokens, 1))
    groups = tuple(f"{group.name} " for group in snapshot.geometry.groups)
    for report in (story(snapshot, large), overview(replace(snapshot, decisions=(worst, large)))):
        text = render(report, Style(width=None))
        for names in (("looked up  ", "logical hit", "usable hit"), groups):
            ends = {len(line) for line in text.splitlines() for name in names if name in line and line[-1].isdigit()}
            assert len(ends) <= 1, text
