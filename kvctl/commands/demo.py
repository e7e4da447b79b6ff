"""Run the reference engine under mixed traffic and show logical against usable hits."""

from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import UsageError
from kvctl.diagnostics import ExitCode
from kvctl.options import Options, Part, new_app, with_options

if TYPE_CHECKING:
    from kvctl.demo_engine import DemoEngine
    from kvctl.demo_run import DemoRun

app = new_app()

FAULTS: dict[str, tuple[str, ...]] = {
    "drop-window-page": ("KV301",),
    "drop-indexer-page": ("KV303",),
    "tear-disk-file": ("KV408",),
    "foreign-disk-file": ("KV206",),
    "change-weights": ("KV201",),
    "skip-generation": ("KV522",),
    "unguarded-bind": ("KV521",),
    "dirty-padding": ("KV532",),
    "lose-acknowledgement": ("KV308",),
    "double-free": ("KV103", "KV106", "KV107"),
    "full-disk": ("stores_lost_full_disk",),
}
"""Faults that can be injected, with the codes, or the counter of a tier, that name them (the engine's own list: a test
holds the two equal)."""

_NEVER = "never"
_INJECT = typer.Option(
    "--inject",
    metavar="FAULT",
    help="Break something, and look for it.",
    autocompletion=lambda incomplete: [name for name in FAULTS if name.startswith(incomplete)],
)
_RESTART = typer.Option(
    "--restart-every",
    metavar="TIME",
    help="Restart the engine's cache from disk so often, or never (default: 12s; never with --inject).",
)


@app.command()
@with_options(Part.OUTPUT)
def demo(
    options: Options,
    headless: Annotated[bool, typer.Option("--headless", help="Run for --duration, print the report and end.")] = False,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="How long a --headless run takes: 20s, 2m.")
    ] = "20s",
    inject: Annotated[str | None, _INJECT] = None,
    restart_every: Annotated[str | None, _RESTART] = None,
    rate: Annotated[float, typer.Option("--rate", metavar="NUMBER", min=0.1, help="Requests a second.")] = 10.0,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let kvctl invalidate change the engine, to try it out.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="NUMBER", help="Fixes the traffic.")] = 0,
) -> None:
    r"""Run the reference engine under mixed traffic, with the agent in it, and show what its cache is worth.

    Needs no GPU, no other engine and no download; the extra 'reference' brings torch. It opens the dashboard of
    kvctl top, and every other command works on the engine meanwhile, from another terminal: kvctl inspect,
    kvctl decisions -f, kvctl validate, and with --allow-changes kvctl invalidate. Leaving the dashboard (q) ends the
    engine and prints the report.

    \b
    FAULT is one of
      drop-window-page  drop-indexer-page  tear-disk-file  foreign-disk-file
      change-weights    skip-generation    unguarded-bind  lose-acknowledgement
      dirty-padding     double-free        full-disk

    Exit code 1: the injected fault was not found.
    """
    from kvctl.dashboard import require_terminal
    from kvctl.demo_engine import DemoEngine, require_torch

    seconds = _seconds("--duration", duration)
    restart_s = _restart_s(restart_every or ("12s" if inject is None else _NEVER))
    if inject is not None and inject not in FAULTS:
        raise UsageError(f"there is no fault {inject!r}", next_step=f"one of {', '.join(FAULTS)}")
    if not headless:
        require_terminal("add --headless: it prints the report after --duration")
    require_torch()
    from agent import paths
    from kvctl.demo_run import DemoRun
    from kvctl.signals import Signals

    paths.own_folder()  # fails now, with a clear sentence, rather than in the engine
    options.output.note("starting the reference engine")
    fault = None if inject is None else (inject, FAULTS[inject])
    with Signals() as signals:
        engine = DemoEngine(rate=rate, seed=seed, restart_s=restart_s, allow_changes=allow_changes)
        try:
            with signals.raising():
                engine.start(signals.held)
                found = _show(options, engine, DemoRun(engine, fault), seconds if headless else None)
        finally:
            engine.close()
    raise typer.Exit(ExitCode.OK if found else ExitCode.VERDICT)


def _show(options: Options, engine: "DemoEngine", run: "DemoRun", seconds: float | None) -> bool:
    """Run for so long, or until the dashboard is left, and show the report; return whether every fault was found."""
    if seconds is None:
        run.dashboard()
    else:
        options.output.note(f"the engine runs; the report comes in {seconds:.0f} s")
        run.headless(seconds)
    report, found = run.report()
    engine.end()  # it takes a moment to, and nobody has to wait for the report so long
    options.output.show(report)
    if run.lost is not None:
        raise run.lost
    return found


def _restart_s(text: str) -> float:
    return 0.0 if text == _NEVER else _seconds("--restart-every", text)


def _seconds(option: str, text: str) -> float:
    units = {"s": 1.0, "m": 60.0}
    number, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{option} {text!r} is no length of time", next_step="give it as 20s or 2m")
    return seconds
