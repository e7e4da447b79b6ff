"""A picture: everything that one refresh of the screen needs, computed before it reaches the screen.

Invariant: frozen; made by the reading thread, shown by the app. A report is made here and not in a widget, because a
million pages take longer to sum up than a key press may wait.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agent.model.decision import Decision
from agent.model.snapshot import Snapshot

from ..report import Report
from ..views.decisions import decisions
from ..views.groups import groups
from ..views.overview import overview
from ..views.pages import pages
from ..views.prefixes import prefixes
from .history import Series

PREFIXES_SHOWN = 200
PAGES_SHOWN = 200


class Pane(StrEnum):
    """The screens, by the key that opens them."""

    OVERVIEW = "overview"
    GROUPS = "groups"
    PREFIXES = "prefixes"
    PAGES = "pages"
    DECISIONS = "decisions"
    FINDINGS = "findings"


NEEDS_TABLE = frozenset({Pane.GROUPS, Pane.PREFIXES, Pane.PAGES})
"""Screens that show the page table; the others must not cost one."""

NEEDS_REFERENCES = frozenset({Pane.PAGES})
"""Screens that say who holds the pages: followed only while one is shown."""

_VIEWS: dict[Pane, Callable[[Snapshot], Report]] = {
    Pane.OVERVIEW: overview,
    Pane.GROUPS: groups,
    Pane.PREFIXES: lambda snapshot: prefixes(snapshot, limit=PREFIXES_SHOWN),
    Pane.PAGES: lambda snapshot: pages(snapshot, limit=PAGES_SHOWN),
    Pane.DECISIONS: lambda snapshot: decisions(snapshot, snapshot.decisions),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the screen shows until the next one comes."""

    pane: Pane
    """The screen that it was read for."""
    snapshot: Snapshot
    """Its decisions are those that were followed, oldest first."""
    report: Report | None
    """The view of ``pane``; None for one that is not computed from a snapshot alone."""
    series: Series
    live: bool
    unexplained: str | None = None
    """Why decisions come without an explanation, where they do."""

    @property
    def lossy(self) -> Decision | None:
        """The latest decision that lost something that was cached."""
        for item in reversed(self.snapshot.decisions or ()):
            if item.degraded:
                return item
        return None


def report_of(pane: Pane, snapshot: Snapshot) -> Report | None:
    """Return the view of one screen; the live log makes its rows itself, one window at a time."""
    view = None if pane is Pane.DECISIONS else _VIEWS.get(pane)
    return None if view is None else view(snapshot)


def json_report(picture: Picture) -> Report | None:
    """Return the report whose JSON stands for a screen."""
    view = _VIEWS.get(picture.pane)
    return picture.report or (None if view is None else view(picture.snapshot))
