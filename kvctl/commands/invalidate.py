"""Take a prefix out of the cache, exactly as planned or not at all; a dry run unless --yes."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import RefusedError, UsageError
from kvctl.options import LORA, SALT, Options, Part, new_app, with_options
from kvctl.reading import read
from kvctl.targets import LiveSource, Need, open_session
from kvctl.tokens import chain_of, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.session import Session
    from inspector.invalidation import Plan
    from inspector.selector import Selector

app = new_app()


@app.command()
@with_options(Part.TARGET, Part.OUTPUT, Part.TIMEOUT)
def invalidate(
    options: Options,
    selector: Annotated[
        str | None, typer.Argument(help="What to take out.", metavar="SELECTOR", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Carry it out.")] = False,
    save_plan: Annotated[
        Path | None, typer.Option("--save-plan", metavar="FILE", help="Write the plan to a file.")
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Take a saved plan.")] = None,
    salt: Annotated[str | None, SALT] = None,
    lora: Annotated[str | None, LORA] = None,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine/--no-quarantine",
            help="Keep running requests from bringing it back.",
        ),
    ] = True,
) -> None:
    r"""Take a prefix out of the cache of a live engine.

    \b
    SELECTOR is one of
      hash:HEX     the prefix whose key begins so
      page:ID      the prefix that a page holds; page:15,16 takes several
      request:ID   everything that a request holds
      tokens:FILE  the prefix of these token ids (a JSON list, - for stdin)
      group:NAME   every page of a group
      state:NAME   every page that holds a state
      stale        under older weights, never computed, or on top of such a page
      all          everything

    A prefix is taken with everything that was computed on top of it.

    Without --yes the exact pages are shown and nothing is changed. With --yes the plan is carried out in the engine's
    own thread between two steps, and only if no page moved since it was made; otherwise it is refused (exit code 5).
    A group, a state, stale and all never hold still: they go in parts, and pages that moved are left alone and counted.
    Eviction goes by key and takes duplicates too. Requests that run go on undisturbed.

    The engine has to be started with kvctl run --allow-changes. Every change is written to its audit log.
    """
    from inspector.selector import parse

    if (selector is None) == (plan is None):
        raise UsageError("give a selector or --plan FILE", next_step="kvctl invalidate --help lists the selectors")
    if plan is not None and save_plan is not None:
        raise UsageError("--plan and --save-plan exclude each other")
    wanted = None if selector is None else parse(selector)
    tokens = None if wanted is None else tokens_of(wanted)
    with open_session(options.target, options.timeout_s) as session:
        hashed = None if tokens is None else partial(chain_of, session, tokens, salt=salt, lora=lora)
        _run(options, session, wanted, hashed, plan=plan, yes=yes, save=save_plan, quarantine=quarantine)


def _run(
    options: Options,
    session: "Session",
    wanted: "Selector | None",
    hashed: "Callable[[], tuple[bytes, ...]] | None",
    *,
    plan: Path | None,
    yes: bool,
    save: Path | None,
    quarantine: bool,
) -> None:
    from inspector.invalidation import Applied, apply_plan, holders_of, load_plan, make_plan
    from inspector.invalidation import save_plan as write
    from inspector.selection import select
    from inspector.views.plan import plan as view

    if yes and not session.info.allow_changes:
        raise RefusedError(
            "this engine allows no changes",
            why="its agent was started read-only",
            next_step="start it with kvctl run --allow-changes -- ...",
        )
    loaded = None if plan is None else _mine(load_plan(plan), session)
    session.borrows = False
    source = LiveSource(session, options.timeout_s)
    # The weights epoch is part of the evidence; everything else needs the tables alone.
    need = Need.EVIDENCE if wanted is not None and str(wanted) == "stale" else Need.REFERENCES
    snapshot = read(source, need, options)
    if loaded is None:
        assert wanted is not None  # noqa: S101 - one of the two was given
        chain = None if hashed is None else hashed()
        loaded = make_plan(session, snapshot, select(snapshot, wanted, chain=chain), deadline_s=options.timeout_s)
    if save is not None:
        write(loaded, save)
    held_by = holders_of(snapshot, loaded.pages)
    applied = None
    if yes and not loaded.entries:
        applied = Applied(pages=0, by_group={}, parts=0)
    elif yes:
        applied = apply_plan(session, loaded, quarantine=quarantine, deadline_s=options.timeout_s)
    options.output.show(view(snapshot, loaded, held_by=held_by, applied=applied))
    if not yes and loaded.entries:
        options.output.note("nothing was changed; add --yes to carry it out")


def _mine(plan: "Plan", session: "Session") -> "Plan":
    if plan.engine != (session.info.pid, session.info.start_ticks):
        raise RefusedError(
            "the plan was made for another engine",
            why=f"for pid {plan.engine[0]}; this is pid {session.info.pid}, or one that was started again",
            next_step="make a new plan",
        )
    return plan
