"""The one loop of every read command: read, make a report, show it, and again with ``--watch``.

Invariant: a view is a function of a snapshot, so that it says the same about a live engine and about a file. Called
by the command modules only.
"""

import sys
from itertools import count
from typing import TYPE_CHECKING

from agent.errors import UnsupportedError

from .options import Options
from .output import Progress
from .targets import Need, Source, open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.model.snapshot import Snapshot
    from inspector.report import Report

_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def show(options: Options, need: Need, view: "Callable[[Snapshot], Report]") -> None:
    """Read what ``view`` needs and show what it says, once or with ``--watch`` again and again."""
    with open_source(options.target, options.timeout_s) as source:
        if options.watch is not None:
            need = _joined(source, need, options)
        for number in count(1):
            report = view(read(source, need, options))
            screen = options.watch is not None and not options.output.machine and sys.stdout.isatty()
            if screen:
                options.output.write(_HOME_AND_CLEAR)
            elif number > 1 and not options.output.machine:
                options.output.write("\n")
            options.output.show(report)
            if options.watch is None or number == options.watch.count:
                return
            source.rest(options.watch.interval_s)


def read(source: Source, need: Need, options: Options) -> "Snapshot":
    """Read one snapshot, with progress on a terminal."""
    progress = Progress("reading the page table", quiet=options.output.quiet)
    try:
        return source.read(need, progress)
    finally:
        progress.close()


def _joined(source: Source, need: Need, options: Options) -> Need:
    """Join the feed of a live engine that is watched: only then do its decisions come explained."""
    if not source.live or need > Need.QUICK:
        return need
    try:
        read(source, Need.CONTENT, options)
    except UnsupportedError as error:
        options.output.note(f"note: decisions come unexplained: {error.why or error.what}")
        return need
    return Need.CONTENT
