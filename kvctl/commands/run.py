"""Start an engine with the agent in it, read-only unless allowed."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvctl.options import new_app

app = new_app()


class OnWeightsChange(StrEnum):
    """What the agent does with pages of older weights."""

    REPORT = "report"
    INVALIDATE = "invalidate"


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND [ARGS]...", help="The engine's own command.")
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let kvctl invalidate pages and set options of the agent.")
    ] = False,
    on_weights_change: Annotated[
        OnWeightsChange | None,
        typer.Option(
            "--on-weights-change",
            help="Pages of older weights after an update, a reload or a LoRA loaded in place: report them (default) or "
            "invalidate them.",
            show_choices=True,
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--agent-log", metavar="FILE", help="File for the lines of the agent.")
    ] = None,
) -> None:
    """Start an engine with the agent in it: kvctl run -- vllm serve MODEL ...

    The engine takes the place of this process: signals, exit status and output are its own. The agent reads and never
    changes anything unless --allow-changes or --on-weights-change invalidate is given; it leaves the engine running
    whatever happens to it.
    """
    from agent.attach.launch import run as launch

    launch(
        command or [],
        allow_changes=allow_changes,
        log=log,
        on_weights_change=None if on_weights_change is None else on_weights_change.value,
    )
