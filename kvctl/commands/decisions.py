"""Show what each request could reuse, one line a decision; -f follows."""

from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import UsageError
from kvctl.options import READ, Options, new_app, with_options
from kvctl.output import Progress
from kvctl.reading import show
from kvctl.targets import LiveSource, Need, open_source, pause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.model.decision import Decision
    from agent.model.groups import Geometry
    from agent.model.snapshot import Snapshot
    from inspector.report import Report

app = new_app()

_POLL_S = 0.2
"""Pause between two looks into the ring while following: short for an eye, cheap for a core."""


@app.command()
@with_options(*READ)
def decisions(
    options: Options,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new decisions until ^C.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only these; may be repeated (all must fit)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="The last N; with -f stop after N.")
    ] = None,
) -> None:
    r"""Show what each request could reuse: one line for each decision, oldest first.

    \b
    KEY is one of
      outcome   reuse, partial, prefetching, recompute, unknown
      reason    window_hole, not_retained, ... (to list them: kvctl explain)
      phase     first, resumed
      group     name or number of the limiting group
      state     compressed, tail, swa, indexer, on_disk
      request   a request id, whole or as the table cut it

    A VALUE may be several with commas (outcome=partial,recompute) and != turns it around.
    """
    from inspector.filters import parse

    wanted = parse(where or [])
    if follow:
        _follow(options, wanted, limit)
        return

    def view(snapshot: "Snapshot") -> "Report":
        from inspector.views.decisions import decisions as listed

        found = snapshot.decisions
        picked = None if found is None else wanted.picked(snapshot.geometry, found)
        return listed(snapshot, picked if picked is None or limit is None else picked[-limit:])

    show(options, Need.DECISIONS, view)


def _follow(options: Options, wanted: "Filter", limit: int | None) -> None:
    from inspector.views.danger import remark
    from inspector.views.decisions import COLUMNS, item_of, row_of

    if options.watch is not None:
        raise UsageError("--follow and --watch do the same in two ways", next_step="leave out --watch")
    with open_source(options.target, options.timeout_s) as source:
        if not isinstance(source, LiveSource):
            source.fresh_decisions()
            return
        progress = Progress("reading the page table", quiet=options.output.quiet)
        try:
            source.follow(progress)
        finally:
            progress.close()
        geometry = source.geometry
        lines = options.output.stream("decision", COLUMNS)
        if not options.output.machine:
            options.output.note("following decisions; ^C ends it")
        said = False
        for item in _first(_endless(source, geometry, wanted), limit):
            for note in () if said else remark(geometry, [item]):
                options.output.note(note.removeprefix("note: "))
                said = True
            lines.add(item_of(geometry, item), row_of(geometry, item), name=str(item.id))


def _endless(source: LiveSource, geometry: "Geometry", wanted: "Filter") -> "Iterator[Decision]":
    while True:
        fresh = source.fresh_decisions()
        yield from (item for item in fresh if wanted.fits(geometry, item))
        if not fresh:
            pause(_POLL_S)


def _first(items: "Iterable[Decision]", limit: int | None) -> "Iterator[Decision]":
    for number, item in enumerate(items, 1):
        yield item
        if number == limit:
            return


if TYPE_CHECKING:
    from inspector.filters import Filter
