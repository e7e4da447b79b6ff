"""Pieces of views that a screen shows side by side, and the few that only a screen has room for.

Invariant: picks blocks and facts out of reports and leaves their words alone. Used by the screens.
"""

from collections.abc import Iterable

from ..format import bar, duration, percent
from ..report import Block, Cell, Column, Facts, Kind, Prose, Report, Table, Tone, Value
from ..reuse import sum_up
from ..symbols import FIVE
from ..views.decisions import COLUMNS, row_of, story
from .history import EMPTY, Series
from .picture import Picture

NARROW = 100
"""Columns below which a screen puts its pieces below each other."""


def joined(*parts: Facts | None) -> Facts:
    """Return facts under each other, so that their labels line up."""
    return Facts(facts=[fact for part in parts if part is not None for fact in part.facts])


def facts_of(report: Report | None, *labels: str) -> Facts | None:
    """Return the facts with these labels in the order asked for; None where the report has none of them."""
    if report is None:
        return None
    found = [fact for block in report.blocks if isinstance(block, Facts) for fact in block.facts]
    picked = [fact for label in labels for fact in found if fact[0] == label]
    return Facts(facts=picked) if picked else None


def tables_of(report: Report | None) -> list[Table]:
    """Return the tables of a report."""
    return [] if report is None else [block for block in report.blocks if isinstance(block, Table)]


def present(blocks: Iterable[Block | None]) -> list[Block]:
    """Leave out what is not there."""
    return [block for block in blocks if block is not None]


def over_time(series: Series, cells: int) -> Facts:
    """Return logical above usable, one character a slice of time, the latest at the right.

    Args:
        series: What is remembered.
        cells: Room for the line.
    """
    if not series.slices:
        return Facts(facts=[("TIME", ["no decision with a page table yet: send a request"])])
    shown = Series(slice_s=series.slice_s, slices=series.slices[-cells:])
    parts = [part for part in shown.slices if part is not None]
    lookup = sum(part.lookup for part in parts)

    def line(name: str) -> str:
        total = sum(getattr(part, name) for part in parts)
        return f"{name:<9}{shown.line(name)}  {percent(total / lookup if lookup else None)}"

    span = f"{shown.span_s} s" if shown.span_s < 120 else duration(shown.span_s * 1_000_000_000)
    scale = f"last {span}, {shown.slice_s} s a sign, {EMPTY} nothing decided"
    lines: list[str | Cell] = [line("logical"), line("usable"), Cell(scale, Tone.DIM)]
    return Facts(facts=[("TIME", lines)])


def by_state(picture: Picture) -> Table | Prose:
    """Return what the loss of each of the five states cost: tokens, and decisions that it limited."""
    snapshot = picture.snapshot
    reuse = None if snapshot.decisions is None else sum_up(snapshot.decisions)
    if reuse is None or not reuse.explained:
        return Prose(lines=["unknown: no decision came with a page table yet"], title="degraded by state")
    total = sum(reuse.lost.values())
    rows: list[list[Value]] = []
    absent = []
    for state in FIVE:
        own = {group.id for group in snapshot.geometry.groups if group.state is state}
        if not any(state in group.states for group in snapshot.geometry.groups):
            absent.append(state.value)
            continue
        lost = sum(tokens for (_, group), tokens in reuse.lost.items() if group in own)
        limits = sum(times for group, times in reuse.degraded.items() if group in own)
        tone = Tone.BAD if lost else Tone.PLAIN
        rows.append([state.value, Cell(lost, tone), Cell(limits, tone), bar(lost / total if total else 0.0, 28)])
    if absent:
        rows.append([Cell(", ".join(absent), Tone.DIM), None, None, Cell("no group of this engine", Tone.DIM)])
    columns = (
        Column(header="DEGRADED BY"),
        Column(header="LOST TOKENS", kind=Kind.COUNT, blank="-"),
        Column(header="DECISIONS", kind=Kind.COUNT, blank="-"),
        Column(header="SHARE OF THE LOSS"),
    )
    return Table(columns=columns, rows=rows)


def latest(picture: Picture, number: int) -> Table:
    """Return the last decisions, the newest first."""
    geometry = picture.snapshot.geometry
    items = (picture.snapshot.decisions or ())[-number:]
    rows = [row_of(geometry, item) for item in reversed(items)]
    return Table(columns=COLUMNS, rows=rows, title="latest decisions" if rows else None, empty="no decision yet")


def waterfall(picture: Picture, chosen: int | None) -> list[Block]:
    """Return how one decision fell from logical to usable: the chosen one, or the latest lossy one."""
    decisions = picture.snapshot.decisions or ()
    item = next((one for one in decisions if one.id == chosen), None)
    what = "the decision chosen on screen 5" if item is not None else "the latest decision with a loss"
    item = item or picture.lossy
    if item is None:
        return [Prose(lines=["no decision has lost anything that was cached"], title="waterfall")]
    report = story(picture.snapshot, item)
    facts = facts_of(report, "DECISION", "TOKENS", "GROUPS", "WATERFALL", "WHY")
    return present([Prose(lines=[], title=f"waterfall of {what}"), facts])
