"""Reuse over time: slices, their width, and what is no number."""

from dataclasses import replace

import pytest

from agent.model.decision import Decision, Outcome
from inspector.tui.history import EMPTY, History, level
from tests.support.snapshots import decision


def at(second: int, lookup: int, logical: int | None, usable: int) -> Decision:
    """Return a decision of one second."""
    item = decision(1, "r", Outcome.REUSE, lookup, logical, usable)
    return replace(item, time_ns=second * 1_000_000_000)


def test_sums_by_second() -> None:
    """Decisions of one second are one slice; a second without any is empty and not 0 %."""
    history = History()
    history.add([at(100, 10, 10, 0), at(100, 30, 10, 10), at(102, 10, 10, 10)])
    series = history.series(10)
    assert (series.slice_s, series.span_s) == (1, 3)
    assert series.line("logical") == f"{level(0.5)}{EMPTY}{level(1.0)}"
    assert series.line("usable") == f"{level(0.25)}{EMPTY}{level(1.0)}"


def test_unexplained_are_left_out() -> None:
    """A decision whose logical hit is unknown is in no slice."""
    history = History()
    history.add([at(100, 10, None, 5)])
    assert history.series(10).slices == ()


def test_width_fits_the_room() -> None:
    """A long time is drawn with wider slices, and nothing that is in sight is lost."""
    history = History()
    history.add([at(second, 10, 5, 5) for second in range(1000, 1600)])
    series = history.series(40)
    assert len(series.slices) <= 40
    assert sum(part.lookup for part in series.slices if part) == 6_000


def test_an_hour_is_kept() -> None:
    """What is older than an hour is forgotten."""
    history = History()
    history.add([at(0, 10, 5, 5), at(10_000, 10, 5, 5)])
    assert sum(part.lookup for part in history.series(1000).slices if part) == 10


@pytest.mark.parametrize(("ratio", "sign"), [(0.0, "▁"), (0.001, "▂"), (0.5, "▅"), (1.0, "█")])
def test_levels(ratio: float, sign: str) -> None:
    """Only 0 is the lowest sign, only a whole is the highest."""
    assert level(ratio) == sign
