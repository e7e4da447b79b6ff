"""The command tree: one file in ``kvctl/commands`` is one command.

Invariant: nothing of a command is imported before it is chosen; ``kvctl --help`` reads the first line of each file
and no more. To add a command, add a file with a first docstring line that says what it does and a Typer app called
``app``; its place in the help is its line in :data:`SECTIONS`.
"""

import importlib
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from . import __version__
from .diagnostics import MEANING
from .typing_app import new_app

SECTIONS: dict[str, tuple[str, ...]] = {
    "Find and start": ("ps", "run", "attach", "detach"),
    "Look": ("inspect", "decisions", "explain", "top", "query"),
    "Check and change": ("validate", "invalidate", "fingerprint", "stress"),
    "Keep and pass on": ("snapshot", "export"),
    "Help": ("doctor", "demo", "completion"),
}
"""Order of the help. A command without a place here comes last."""

_FOLDER = Path(__file__).resolve().parent / "commands"

SUMMARY = """See which cached prefixes of an LLM engine can really be used, and why the others cannot.

A prefix that was found in the cache is a logical hit. It is a usable hit only where every cache group of the model can
resume. kvctl reads both from the running engine, explains the difference, and never changes anything unless allowed.
"""

EPILOG = (
    "Start here: kvctl ps, then kvctl inspect. Options can also be set as KVCTL_OUTPUT, KVCTL_ENGINE, ... or in "
    "~/.config/kvctl/config.toml. 'kvctl explain CODE' explains every word and code; 'kvctl explain exit-codes' the "
    "exit codes."
)


@cache
def summaries() -> dict[str, str]:
    """Return the one-line help of every command, in the order of the help."""
    found = {path.stem: _first_line(path) for path in sorted(_FOLDER.glob("[a-z]*.py"))}
    order = [name for names in SECTIONS.values() for name in names if name in found]
    return {name: found[name] for name in [*order, *(name for name in found if name not in order)]}


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').rstrip(".")


class LazyGroup(TyperGroup):
    """The root command: knows the names, imports a command when it is chosen."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        del ctx
        return list(summaries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import one command; None where there is none of that name."""
        del ctx
        return load(cmd_name) if cmd_name in summaries() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Let the parent class suggest names for a typo: it looks at a plain table of them."""
        if args and args[0] not in summaries():
            self.commands = dict.fromkeys(summaries(), cast("Any", None))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by section from the first lines of their files."""
        del ctx
        lines = summaries()
        width = max(map(len, lines))
        rest = dict(lines)
        for title, names in SECTIONS.items():
            rows = [(name.ljust(width), rest.pop(name)) for name in names if name in rest]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if rest:
            with formatter.section("More"):
                formatter.write_dl([(name.ljust(width), text) for name, text in rest.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the exit codes, then the parent's epilog."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning.replace("`", "")) for code, meaning in MEANING.items()])
        super().format_epilog(ctx, formatter)


def load(name: str) -> Any:
    """Import one command and return it, ready to be run."""
    module = importlib.import_module(f"kvctl.commands.{name}")
    command = get_command(module.app)
    command.name = name
    return command


def build() -> Any:
    """Return the root command."""
    if "_KVCTL_COMPLETE" in os.environ:
        from typer.completion import get_completion_inspect_parameters  # noqa: PLC0415 - only a shell that asks

        # Typer registers its shells as a side effect of describing the options that we do not have.
        get_completion_inspect_parameters()
    app = new_app()
    app.info.cls = LazyGroup
    app.callback(cls=LazyGroup, help=SUMMARY, epilog=EPILOG, invoke_without_command=False)(_root)
    return get_group(app)


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version.", is_eager=True, callback=lambda on: _version(on=on)),
    ] = False,
) -> None:
    """See SUMMARY."""


def _version(*, on: bool) -> None:
    if on:
        typer.echo(f"kvctl {__version__}")
        raise typer.Exit
