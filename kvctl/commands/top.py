"""The dashboard: what can be used, what cannot and why, refreshed while you look."""

from functools import partial
from typing import Annotated

import typer

from agent.errors import UsageError
from kvctl.options import Options, Part, new_app, with_options

app = new_app()


@app.command()
@with_options(Part.TARGET, Part.SNAPSHOT, Part.TIMEOUT)
def top(
    options: Options,
    interval: Annotated[
        float | None, typer.Option("--interval", "-i", metavar="SECONDS", help="Pause between readings (default: 2).")
    ] = None,
) -> None:
    r"""Show the dashboard of one engine, or of a saved snapshot.

    \b
    1 overview    usage, logical against usable, what degrades, what to do
    2 groups      what each group holds and costs, and how a decision fell
    3 prefixes    what is cached, state by state
    4 pages       what the memory of the pool is doing
    5 decisions   live log; enter explains one
    6 findings    what the gates say; v runs them

    ? shows all keys. It changes nothing: x shows a plan and asks, and needs an engine that allows changes.
    Decisions are explained from the moment that it, or another reader, has joined; the page table is read only for
    screens that show it.
    """
    from kvctl.dashboard import require_terminal, show

    require_terminal("use kvctl inspect --watch or kvctl decisions -f")
    from inspector.tui.link import EngineLink, FileLink, Link
    from kvctl.config import positive, setting
    from kvctl.options import DEFAULT_INTERVAL_S

    every = setting("interval", interval, positive, DEFAULT_INTERVAL_S)
    if every <= 0:
        raise UsageError(f"--interval is {every:g}", next_step="give a number of seconds above 0")
    target = options.target
    link: Link
    if target.snapshot is not None:
        link = FileLink(target.snapshot)
    else:
        from agent.session import open_target

        opener = partial(
            open_target, pid=target.pid, name=target.engine, socket=target.socket, deadline_s=options.timeout_s
        )
        link = EngineLink(opener, options.timeout_s)
    show(link, interval_s=every, timeout_s=options.timeout_s, target=options.output.target)
