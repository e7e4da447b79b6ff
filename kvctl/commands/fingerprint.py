"""Show, pin and compare what the cached pages of an engine depend on: contract and weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import RefusedError, UsageError
from kvctl.diagnostics import ExitCode
from kvctl.options import Options, Part, new_app, with_options
from kvctl.targets import open_session

if TYPE_CHECKING:
    from agent.model.evidence import Weights
    from agent.model.fingerprint import Fingerprint

app = new_app()
_FULL = typer.Option("--full", help="Read every byte of the weights, not a sample of every tensor.")
_LIVE = (Part.TARGET, Part.OUTPUT, Part.TIMEOUT)


@app.callback()
def fingerprint() -> None:
    """Show, pin and compare what the cached pages of an engine depend on: contract and weights.

    The contract says how a page is laid out and how it is named: engine and version, backends, layouts, groups,
    precision, hash, parallel geometry. The weights say what computed it: model, adapters, and a digest of the tensors
    that really are in memory. Where a worker cannot read something the result is partial: it can fail, never pass.
    """


@app.command()
@with_options(*_LIVE, Part.SNAPSHOT)
def show(options: Options, full: Annotated[bool, _FULL] = False) -> None:
    """Read contract and weights of a live engine, or what a saved snapshot holds of them; say what is not known."""
    from inspector.views.fingerprint import fingerprint as view

    file = options.target.snapshot
    if file is None:
        options.output.show(view(*_read(options, full=full)))
        return
    if full:
        raise UsageError(
            "--full needs a live engine", why="a file holds no weights", next_step="leave out --full or --snapshot"
        )
    from agent.fingerprint import of_snapshot
    from inspector.store import load

    snapshot = load(file)
    seen = snapshot.weights
    options.output.show(view(of_snapshot(snapshot), seen, file=str(file)))


@app.command()
@with_options(*_LIVE)
def check(
    options: Options,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A fingerprint (default: the pin).", show_default=False)
    ] = None,
) -> None:
    r"""Compare a live engine with a fingerprint in a file, field by field. The weights are read as they were then.

    Without FILE: with what was pinned for an engine of this name.

    \b
    Exit code 0: everything is equal
              1: a field differs
              6: no field differs, but something could not be compared
    """
    from agent.fingerprint import load, read

    before = None if file is None else load(file)
    with open_session(options.target, options.timeout_s) as session:
        before = before or _pinned(session.info.name)
        after = read(session, mode=before.mode, deadline_s=options.timeout_s)
    _compare(options, before, after, ("the pin" if file is None else str(file), "the engine"))


def _pinned(name: str) -> "Fingerprint":
    """Return what was pinned for an engine of this name."""
    from agent.fingerprint import pin_path, pinned

    found = pinned(name)
    if found is None:
        raise UsageError(
            f"no fingerprint is pinned for the engine {name!r}",
            why=f"{pin_path(name)} is not there",
            next_step="kvctl fingerprint pin keeps the one in force; kvctl fingerprint check FILE takes another",
        )
    return found


@app.command()
@with_options(Part.OUTPUT)
def diff(
    options: Options,
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The older file.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The newer file.", show_default=False)],
) -> None:
    """Compare two files, field by field; exit codes as of check."""
    from agent.fingerprint import load

    _compare(options, load(before), load(after), (str(before), str(after)))


@app.command()
@with_options(*_LIVE)
def pin(
    options: Options,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Write here, not where validate looks for it."),
    ] = None,
    full: Annotated[bool, _FULL] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a pin that is there.")] = False,
) -> None:
    """Keep the fingerprint of a live engine; kvctl validate compares engines of this name with it from then on."""
    from agent.fingerprint import pin_path, save
    from agent.jsonfile import is_there
    from inspector.views.fingerprint import fingerprint as view

    found, weights = _read(options, full=full)
    path = file or pin_path(found.name)
    if is_there(path) and not force:
        raise RefusedError(
            f"{path} exists", why="a pin is what was agreed; it is not replaced in passing", next_step="add --force"
        )
    save(found, path)
    options.output.show(view(found, weights, file=str(path)))


def _read(options: Options, *, full: bool) -> "tuple[Fingerprint, Weights | None]":
    from agent.fingerprint import changes, read
    from agent.model.fingerprint import Mode

    with open_session(options.target, options.timeout_s) as session:
        found = read(session, mode=Mode.FULL if full else Mode.SAMPLE, deadline_s=options.timeout_s)
        return found, changes(session, deadline_s=options.timeout_s)  # reading the weights may have found one


def _compare(options: Options, before: "Fingerprint", after: "Fingerprint", names: tuple[str, str]) -> None:
    from inspector.views.fingerprint import compared

    report, different, unsure = compared(before, after, names=names)
    options.output.show(report)
    if different:
        raise typer.Exit(ExitCode.VERDICT)
    if unsure:
        raise typer.Exit(ExitCode.INCONCLUSIVE)
