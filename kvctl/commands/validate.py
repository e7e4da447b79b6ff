"""Check the cache: four gates and the red lines; exit code 1 on a finding."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kvctl.diagnostics import ExitCode
from kvctl.options import READ, Options, new_app, with_options
from kvctl.reading import show
from kvctl.targets import Need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.model.finding import GateName, GateResult
    from agent.model.snapshot import Snapshot
    from inspector.report import Report

app = new_app()

_GATES = ("1", "2", "3", "4", "redlines")


class FailOn(StrEnum):
    """What makes the exit code something else than 0."""

    ERROR = "error"
    WARNING = "warning"
    ABSTAIN = "abstain"


@app.command()
@with_options(*READ)
def validate(
    options: Options,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            "--gate",
            metavar="GATE",
            help="1, 2, 3, 4 or redlines; may be repeated (default: all).",
            autocompletion=lambda incomplete: [name for name in _GATES if name.startswith(incomplete)],
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="SELECTOR", help="Only findings about this prefix.")
    ] = None,
    fail_on: Annotated[
        FailOn,
        typer.Option("--fail-on", help="What is not exit code 0; each includes those before it.", show_choices=True),
    ] = FailOn.WARNING,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Plant every fault into a copy of the snapshot and look for it.")
    ] = False,
) -> None:
    r"""Check the cache against everything that must hold, live or in a saved snapshot. Changes nothing.

    \b
    GATE is one of
      1         block: the page exists, is counted right and was computed
      2         contract: layout, precision and weights are what was agreed
      3         intersection: every group agrees on where to resume
      4         alignment: addresses and strides that the hardware can read
      redlines  admission, one recovery route a state, check and use, graphs

    \b
    Exit code 0: no finding at the --fail-on level or above it
              1: findings (--self-test: a gate is broken)
              6: a gate could not tell, with --fail-on abstain

    With --watch the exit code is the worst of all readings; it stays so when the watch is interrupted (130 where
    nothing was found until then). A decision is compared by one reading only; findings that the reading before did not
    have are new.

    An error is a warning marked experimental until it is on record as clean on this engine configuration. What
    could not be looked at is listed with its reason and never passes. kvctl explain CODE says what to do.
    """
    from agent.gates.runner import ALL_GATES, gate_of

    gates = tuple(gate_of(name) for name in gate) if gate else ALL_GATES
    session = _Validation(gates, prefix, fail_on, planted=self_test, watched=options.watch is not None)
    try:
        show(options, Need.EVIDENCE, session.view)
    except KeyboardInterrupt:  # how a watch usually ends
        if session.code is ExitCode.OK:
            raise
    raise typer.Exit(session.code)


class _Validation:
    """One run of the command: remembers the last snapshot and the worst exit code over ``--watch``."""

    def __init__(
        self, gates: "Sequence[GateName]", prefix: str | None, fail_on: FailOn, *, planted: bool, watched: bool
    ) -> None:
        """Look at nothing yet."""
        from inspector.readings import Watched

        self._watched = Watched() if watched else None
        self._gates = gates
        self._prefix = prefix
        self._fail_on = fail_on
        self._planted = planted
        self._previous: Snapshot | None = None
        self.code = ExitCode.OK

    def view(self, snapshot: "Snapshot") -> "Report":
        """Judge one snapshot."""
        from agent.gates.runner import run
        from agent.gates.selftest import selftest
        from inspector.views import findings as views

        if self._planted:
            planted = selftest(snapshot, self._gates)
            if any(result.broken for result in planted):
                self.code = ExitCode.VERDICT
            return views.selftest(snapshot, planted)
        results = run(snapshot, self._gates, self._previous)
        self._previous = snapshot
        remarks: tuple[str, ...] = ()
        if self._prefix is not None:
            from inspector.narrow import narrow

            results, remarks = narrow(snapshot, results, self._prefix)
        self._judge(results)
        report = views.findings(snapshot, results, remarks=remarks, watched=self._watched)
        if self._watched is not None:
            self._watched.take(results)
        return report

    def _judge(self, results: "Sequence[GateResult]") -> None:
        from agent.model.finding import Severity, Verdict

        counted = {Severity.ERROR} if self._fail_on is FailOn.ERROR else {Severity.ERROR, Severity.WARNING}
        if any(finding.severity in counted for result in results for finding in result.findings):
            self.code = ExitCode.VERDICT
        elif (
            self._fail_on is FailOn.ABSTAIN
            and self.code is ExitCode.OK
            and any(result.verdict is Verdict.ABSTAIN for result in results)
        ):
            self.code = ExitCode.INCONCLUSIVE
