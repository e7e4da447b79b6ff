"""Save what an engine holds to a file, look into one, compare two."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import RefusedError
from kvctl import __version__
from kvctl.diagnostics import ExitCode
from kvctl.options import Options, Part, new_app, with_options
from kvctl.reading import read
from kvctl.targets import LiveSource, Need, open_source

if TYPE_CHECKING:
    from inspector.report import Report
    from inspector.store import FileInfo

app = new_app()
_FILE = typer.Argument(metavar="FILE", help="A snapshot file.", show_default=False)


@app.callback()
def snapshot() -> None:
    """Save what an engine holds to a file, look into one, compare two.

    Every read command works on a file with --snapshot FILE. Keys and request ids in a file are replaced for good: it
    can be handed on, and it confirms no guessed prompt. --reveal keeps them.
    """


@app.command()
@with_options(Part.TARGET, Part.SNAPSHOT, Part.OUTPUT, Part.REVEAL, Part.TIMEOUT)
def save(
    options: Options,
    file: Annotated[Path, _FILE],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    evidence: Annotated[
        bool, typer.Option("--evidence/--no-evidence", help="With what kvctl validate asks engine and workers for.")
    ] = True,
) -> None:
    """Save an engine's tables, contract, requests, decisions and evidence.

    With the evidence kvctl validate finds in the file what it would have found on the engine. The file grows by a tenth
    at most, and the engine looks up some of its own requests, for about 5 ms at most.
    """
    from agent.jsonfile import is_there
    from inspector.store import info
    from inspector.store import save as write

    if is_there(file) and not force:
        raise RefusedError(
            f"{file} exists", why="a capture may be all that is left of a fault", next_step="add --force"
        )
    with open_source(options.target, options.timeout_s) as source:
        found = read(source, Need.EVIDENCE if evidence and source.live else Need.REFERENCES, options)
        if isinstance(source, LiveSource):
            found = source.with_contract(found)
    write(found, file, reveal=options.reveal, version=__version__)
    options.output.show(_info(info(file)))


@app.command("info")
@with_options(Part.OUTPUT)
def info_(options: Options, file: Annotated[Path, _FILE]) -> None:
    """Check every byte of a file and say what it holds."""
    from inspector.store import info, load

    load(file)
    options.output.show(_info(info(file)))


@app.command()
@with_options(Part.OUTPUT)
def diff(
    options: Options,
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The older file.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The newer file.", show_default=False)],
) -> None:
    """Show what changed between two files; exit code 1 if anything did."""
    from inspector.diff import report
    from inspector.store import info, load

    comparable = info(before).revealed and info(after).revealed
    found = report(load(before), load(after), keys_comparable=comparable)
    options.output.show(found)
    if found.items:
        raise typer.Exit(ExitCode.VERDICT)


def _info(found: "FileInfo") -> "Report":
    from inspector.store import load
    from inspector.views.snapshot_file import snapshot_file

    return snapshot_file(found, load(found.path))
