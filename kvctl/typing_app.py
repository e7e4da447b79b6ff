"""The Typer app of one command file, and how its help is written.

Invariant: imports Typer and nothing else: ``kvctl --help`` pays for it. No line of a help ends inside the name of an
option, and no type of Python stands in it.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_OPTION = re.compile(r"(?<!\w)--?[a-z][a-z-]*")
_COMMAND = re.compile(r"\bkvctl [a-z]+(?: --?[a-z-]+)*")
_TYPE = re.compile(r" <(?:str|int|float|path|list\[str\])>$")
_HYPHEN, _SPACE = "\ue001", "\ue000"
"""In place of a hyphen and a space at which no line may end."""


class PlainCommand(TyperCommand):
    """A command whose help keeps options and commands whole."""

    def get_help(self, ctx: Any) -> str:
        """Return the help as text."""
        ctx.formatter_class = _whole(ctx.formatter_class)
        return super().get_help(ctx)


def _whole(formatter: Any) -> Any:
    """Return the formatter of a help that breaks no option and shows no types."""

    class Formatter(formatter):  # type: ignore[misc]
        def write_text(self, text: str) -> None:
            super().write_text(_glued(text))

        def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
            super().write_dl([(_TYPE.sub("", name), _glued(text)) for name, text in rows], *args, **kwargs)

        def getvalue(self) -> str:
            return str(super().getvalue()).replace(_HYPHEN, "-").replace(_SPACE, " ")

    return Formatter


def _glued(text: str) -> str:
    text = _COMMAND.sub(lambda match: match[0].replace(" ", _SPACE), text)
    return _OPTION.sub(lambda match: match[0].replace("-", _HYPHEN), text)


class App(typer.Typer):
    """An app whose commands are :class:`PlainCommand`."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Add a command, as Typer does."""
        return super().command(*args, **{"cls": PlainCommand, **kwargs})


def new_app() -> typer.Typer:
    """Return the Typer app of one command file: plain help, no completion of its own, no decorated tracebacks."""
    return App(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
