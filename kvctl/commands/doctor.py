"""Say what works on this machine, what does not, and how to fix it."""

from dataclasses import asdict
from typing import Annotated

import typer

from kvctl.diagnostics import ExitCode
from kvctl.options import Options, Part, new_app, with_options

app = new_app()


@app.command()
@with_options(Part.OUTPUT, Part.TIMEOUT)
def doctor(
    options: Options,
    fix: Annotated[bool, typer.Option("--fix", help="Remove leftovers of engines that are provably dead.")] = False,
) -> None:
    """Say what works on this machine, what does not, and how to fix it.

    Exit code 1 when there is something to fix. --fix removes sockets whose process is gone, and nothing else.
    """
    from inspector.views.checks import checks
    from kvctl.health import Health, all_checks, clean_up

    fixed = clean_up() if fix else []
    found = all_checks(options.timeout_s)
    items = [{**asdict(check), "health": check.health.value} for check in found]
    options.output.show(checks(items, fixed=fixed))
    if any(check.health is Health.PROBLEM for check in found):
        raise typer.Exit(ExitCode.VERDICT)
