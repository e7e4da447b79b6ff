"""Run the reference engine under mixed traffic and show logical against usable hits."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import UsageError
from kvctl.diagnostics import ExitCode
from kvctl.options import Options, Part, new_app, with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.model.decision import Decision
    from agent.model.finding import Finding, GateResult
    from agent.session import Session
    from inspector.views.demo import Injection
    from kvctl.demo_engine import DemoEngine

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
}
"""Faults that can be injected, with the codes that name them (kept equal to the engine's own list by a test)."""

_POLL_S = 0.05
_LOOK_S = 0.1
"""Pause between two runs of the gates while a fault is looked for: some heal as pages are used again."""
_FIND_S = 30.0
"""How long a fault is looked for."""
_FILL_S = 10.0


@app.command()
@with_options(Part.OUTPUT)
def demo(
    options: Options,
    headless: Annotated[bool, typer.Option("--headless", help="Run for --duration, print the report and end.")] = False,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="How long a --headless run takes: 20s, 2m.")
    ] = "20s",
    inject: Annotated[
        str | None, typer.Option("--inject", metavar="FAULT", help="Break something half way, and look for it.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Requests a second.")] = 10.0,
    seed: Annotated[int, typer.Option("--seed", help="Fixes the traffic.")] = 0,
) -> None:
    r"""Run the reference engine under mixed traffic, with the agent in it, and show what its cache was worth.

    Needs no GPU, no other engine and no download; the extra 'reference' brings torch. Without --headless it runs
    until ^C, so that every other command can be tried on it: kvctl inspect, kvctl decisions -f, kvctl validate.

    \b
    FAULT is one of
      drop-window-page  drop-indexer-page  tear-disk-file  foreign-disk-file  change-weights
      skip-generation  unguarded-bind  dirty-padding  lose-acknowledgement  double-free

    Exit code 1: the injected fault was not found.
    """
    from kvctl.demo_engine import DemoEngine, require_torch

    seconds = _seconds(duration)
    if inject is not None and inject not in FAULTS:
        raise UsageError(f"there is no fault {inject!r}", next_step=f"one of {', '.join(FAULTS)}")
    require_torch()
    options.output.note("starting the reference engine")
    with DemoEngine(rate=rate, seed=seed) as engine:
        run = _Run(engine, options, inject)
        run.watch(seconds if headless else None)
        found = run.report()
    raise typer.Exit(ExitCode.OK if found else ExitCode.VERDICT)


def _seconds(text: str) -> float:
    units = {"s": 1.0, "m": 60.0}
    number, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--duration {text!r} is no length of time", next_step="give it as 20s or 2m")
    return seconds


class _Run:
    """One run: follows the decisions, breaks what is to be broken, runs the gates."""

    def __init__(self, engine: "DemoEngine", options: Options, fault: str | None) -> None:
        """Connect to the engine and follow its page table."""
        from agent.model.snapshot import Level
        from agent.session import open_target

        self._engine, self._options, self._fault = engine, options, fault
        self._session: Session = open_target(engine.pid)
        self._session.follow(Level.REFERENCES)
        self._began = self._started = time.monotonic()
        self._decisions: list[Decision] = []
        self._injection: Injection | None = None
        self._gates: Sequence[GateResult] = ()

    def watch(self, seconds: float | None) -> None:
        """Follow for so long, or until ^C."""
        note = self._options.output.note
        if seconds is None:
            note(f"the engine runs as process {self._engine.pid}; try kvctl inspect, kvctl decisions -f; ^C ends it")
        else:
            note(f"the engine runs; the report comes in {seconds:.0f} s")
        try:
            self._follow(None if seconds is None else seconds / 2)
            if self._fault is not None:
                self._inject(self._fault)
            self._follow(None if seconds is None else seconds)
        except KeyboardInterrupt:
            if seconds is not None:
                raise
        if not self._gates:
            self._gates = self._look()

    def _follow(self, until_s: float | None) -> None:
        if until_s is None and self._fault is not None and self._injection is None:
            until_s = _FILL_S  # let the cache fill before something is broken
        while until_s is None or time.monotonic() - self._began < until_s:
            self._decisions += self._session.poll()
            time.sleep(_POLL_S)

    def _look(self) -> "Sequence[GateResult]":
        from agent.gates.runner import run

        self._decisions += self._session.poll()
        return run(self._session.snapshot(free_list=True))

    def _inject(self, fault: str) -> None:
        from inspector.views.demo import Injection

        expected = FAULTS[fault]
        before = _counts(self._look(), expected)
        self._engine.inject(fault)
        began, found, after_s = time.monotonic(), list["Finding"](), None
        while not found and time.monotonic() - began < _FIND_S:
            self._gates = self._look()
            found = [
                finding
                for result in self._gates
                for finding in result.findings
                if finding.code in expected and finding.sentence not in before
            ]
            if not found:
                time.sleep(_LOOK_S)
        if found:
            after_s = time.monotonic() - began
        self._injection = Injection(fault=fault, expected=expected, found=found, after_s=after_s)
        # What was broken stays broken: the run ends with what the gates saw of it.
        self._began = float("-inf")

    def report(self) -> bool:
        """Print the report; False where an injected fault was not found."""
        from inspector.views.demo import Run
        from inspector.views.demo import demo as view

        seconds = time.monotonic() - self._started
        run = Run(
            seconds=seconds,
            geometry=self._session.geometry,
            decisions=self._decisions,
            gates=self._gates,
            injection=self._injection,
        )
        self._session.close()
        self._options.output.show(view(run))
        return self._injection is None or self._injection.after_s is not None


def _counts(gates: "Sequence[GateResult]", codes: "Sequence[str]") -> set[str]:
    """Return the sentences of findings with these codes."""
    return {finding.sentence for result in gates for finding in result.findings if finding.code in codes}
