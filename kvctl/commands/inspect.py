"""Look at one engine: overview, groups, states, pages, prefixes, requests."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import UsageError
from inspector.format import clean
from inspector.hints import quoted
from kvctl.options import LORA, READ, SALT, Options, new_app, with_options
from kvctl.reading import show
from kvctl.targets import Need

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.model.snapshot import Snapshot
    from inspector.report import Report

app = new_app()


class View(StrEnum):
    """What can be looked at."""

    OVERVIEW = "overview"
    GROUPS = "groups"
    STATES = "states"
    PAGES = "pages"
    PREFIXES = "prefixes"
    PREFIX = "prefix"
    REQUESTS = "requests"
    TIERS = "tiers"


_NEEDS = {
    View.OVERVIEW: Need.OVERVIEW,
    View.GROUPS: Need.QUICK,
    View.STATES: Need.QUICK,
    View.PAGES: Need.REFERENCES,
    View.PREFIXES: Need.CONTENT,
    View.PREFIX: Need.REFERENCES,
    View.REQUESTS: Need.QUICK,
    View.TIERS: Need.OVERVIEW,
}


def _view(text: str) -> View:
    """Read the VIEW, inside the command so that its hints are aimed; a SELECTOR is told where it belongs."""
    if text in set(View):
        return View(text)
    shown = clean(text)[:60]
    from inspector.selector import is_bare_hash, parse

    if ":" in text or is_bare_hash(text):
        selector = str(parse(text))  # what is no selector either is told so
        raise UsageError(
            f"{shown!r} is a SELECTOR, no VIEW", next_step=f"kvctl inspect prefix {quoted(selector, 'SELECTOR')}"
        )
    raise UsageError(f"there is no view {shown!r}", next_step=f"one of {', '.join(View)}")


@app.command()
@with_options(*READ)
def inspect(
    options: Options,
    view: Annotated[
        View,
        typer.Argument(
            help="What to look at.",
            metavar="VIEW",
            show_default=False,
            parser=lambda text: View(text) if text in set(View) else text,
            autocompletion=lambda incomplete: [name for name in View if name.startswith(incomplete)],
        ),
    ] = View.OVERVIEW,
    selector: Annotated[
        str | None, typer.Argument(help="For prefix: which one.", metavar="SELECTOR", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Rows of pages and prefixes.")] = 20,
    salt: Annotated[str | None, SALT] = None,
    lora: Annotated[str | None, LORA] = None,
) -> None:
    r"""Look at one engine, live or from a saved snapshot.

    \b
    VIEW is one of
      overview            logical against usable, what limits, what to do
      groups              each cache group: pages, stranded ones, tokens lost
      states              the five kinds of state
      pages               what the pool's memory is doing
      prefixes            the tree of cached prefixes, state by state
      prefix SELECTOR     one prefix: what each group has and lacks
      requests            what each request computes and holds
      tiers               other places that hold prefixes

    \b
    SELECTOR is one of
      hash:HEX            a prefix by its key, as the tables show it (or bare)
      request:ID          what a request has in the cache
      page:ID             the prefix that ends with a page
      tokens:FILE         a JSON list of token ids, - for stdin; live engines only
    """
    wanted = _view(view)
    if wanted is View.PREFIX and selector is None:
        raise UsageError(
            "inspect prefix needs a SELECTOR",
            next_step="kvctl inspect prefixes, then kvctl inspect prefix hash:…",
        )
    if wanted is not View.PREFIX and selector is not None:
        raise UsageError(
            f"inspect {wanted} takes no SELECTOR",
            next_step=f"kvctl inspect prefix {quoted(selector, 'SELECTOR')}, or leave it out",
        )
    chain = None if selector is None else _chain(options, selector, salt, lora)
    show(options, _NEEDS[wanted], _function(wanted, selector, limit, chain, reveal=options.reveal))


def _chain(options: Options, selector: str, salt: str | None, lora: str | None) -> tuple[bytes, ...] | None:
    """Have the engine hash the tokens of ``tokens:FILE``; None for another kind of selector."""
    from inspector.selector import parse
    from kvctl.targets import open_session
    from kvctl.tokens import chain_of, tokens_of

    tokens = tokens_of(parse(selector))
    if tokens is None:
        return None
    if options.target.snapshot is not None:
        raise UsageError(
            "tokens: needs a live engine", why="only the engine can hash them", next_step="leave out --snapshot"
        )
    with open_session(options.target, options.timeout_s) as session:
        return chain_of(session, tokens, salt=salt, lora=lora)


def _function(
    view: View, selector: str | None, limit: int, chain: tuple[bytes, ...] | None, *, reveal: bool
) -> "Callable[[Snapshot], Report]":
    """Import only the view that was chosen."""
    match view:
        case View.OVERVIEW:
            from inspector.views.overview import overview

            return overview
        case View.GROUPS:
            from inspector.views.groups import groups

            return groups
        case View.STATES:
            from inspector.views.states import states

            return states
        case View.PAGES:
            from inspector.views.pages import pages

            return lambda snapshot: pages(snapshot, limit=limit, reveal=reveal)
        case View.PREFIXES:
            from inspector.views.prefixes import prefixes

            return lambda snapshot: prefixes(snapshot, limit=limit, reveal=reveal)
        case View.PREFIX:
            from inspector.views.prefix import prefix

            return lambda snapshot: prefix(snapshot, selector or "", chain=chain, reveal=reveal)
        case View.REQUESTS:
            from inspector.views.requests import requests

            return requests
        case View.TIERS:
            from inspector.views.tiers import tiers

            return tiers
