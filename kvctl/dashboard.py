"""The dashboard on this terminal, for the commands that open it.

Invariant: the screen is taken only after the link is connected, so that no engine or a bad file is an ordinary error
with its exit code. Called by ``kvctl top`` and ``kvctl demo``.
"""

import sys
from typing import TYPE_CHECKING

import typer

from agent.errors import UsageError

from .output import Format, Output

if TYPE_CHECKING:
    from inspector.tui.link import Link


def require_terminal(next_step: str) -> None:
    """Refuse where there is no terminal.

    Args:
        next_step: What to do instead.

    Raises:
        UsageError: Standard input, output or error is no terminal.
    """
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError(
            "the dashboard needs a terminal",
            why="standard input, output or error is not one",
            next_step=next_step,
        )


def show(link: "Link", *, interval_s: float, timeout_s: float, target: str = "") -> None:
    """Connect and show the dashboard until it is left; a signal leaves it, too, and ends the command with its code.

    Args:
        link: What to show.
        interval_s: Seconds between two readings.
        timeout_s: For the page table and for each call.
        target: Options of this call that choose what is shown.
    """
    from inspector.tui.app import Dashboard  # noqa: PLC0415 - textual is loaded where a screen is shown

    from . import __version__  # noqa: PLC0415 - as above

    link.connect()
    dashboard = Dashboard(
        link,
        to_json=Output(format=Format.JSON).text,
        interval_s=interval_s,
        timeout_s=timeout_s,
        version=__version__,
        target=target,
    )
    with dashboard.leaving as leaving:
        dashboard.run()
    if leaving.signal is not None:
        raise typer.Exit(leaving.code)
    if leaving.failure is not None:
        raise leaving.failure
