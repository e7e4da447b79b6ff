"""Start an engine with the agent in it, read-only unless allowed."""

from pathlib import Path
from typing import Annotated

import typer

from kvctl.options import new_app

app = new_app()


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND [ARGS]...", help="The engine's own command.")
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let kvctl invalidate pages and set options of the agent.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option("--agent-log", metavar="FILE", help="File for the lines of the agent.")
    ] = None,
) -> None:
    """Start an engine with the agent in it: kvctl run -- vllm serve MODEL ...

    The engine takes the place of this process: signals, exit status and output are its own. The agent reads and never
    changes anything unless --allow-changes is given; it leaves the engine running whatever happens to it.
    """
    from agent.attach.launch import run as launch

    launch(command or [], allow_changes=allow_changes, log=log)
