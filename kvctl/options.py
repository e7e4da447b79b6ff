"""The options that commands share, each declared once.

Invariant: a command names the parts it takes with :func:`with_options` and gets one :class:`Options` value; names,
short forms, help and the layers of :mod:`kvctl.config` are the same everywhere. Called by the command modules only.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from agent.errors import KvctlError, UsageError
from inspector.hints import aim, quoted

from .config import positive, setting, switch
from .output import Format, Output
from .targets import Target
from .typing_app import new_app

__all__ = ["LORA", "READ", "SALT", "Options", "Part", "Watch", "new_app", "with_options"]

P = ParamSpec("P")

DEFAULT_TIMEOUT_S = 30.0
"""Long enough for the page table of a million pages under load (15 s), short enough for a person."""

DEFAULT_INTERVAL_S = 2.0


class Part(Enum):
    """A set of options that belong together."""

    OUTPUT = auto()
    TARGET = auto()
    SNAPSHOT = auto()
    """``--snapshot``: for commands that read. Part of a target, but not of one that must be alive."""
    WATCH = auto()
    REVEAL = auto()
    TIMEOUT = auto()


READ = (Part.TARGET, Part.SNAPSHOT, Part.OUTPUT, Part.WATCH, Part.REVEAL, Part.TIMEOUT)
"""What every read command takes."""

_ANNOTATIONS: dict[Part, dict[str, Any]] = {
    Part.TARGET: {
        "pid": Annotated[
            int | None, typer.Option("--pid", metavar="PID", help="The engine (or its server) with this pid.")
        ],
        "engine": Annotated[
            str | None, typer.Option("--engine", metavar="NAME", help="The engine with this name (see kvctl ps).")
        ],
        "socket": Annotated[
            Path | None, typer.Option("--socket", metavar="PATH", help="The engine behind this agent socket.")
        ],
    },
    Part.SNAPSHOT: {
        "snapshot": Annotated[
            Path | None, typer.Option("--snapshot", metavar="FILE", help="A saved snapshot instead of an engine.")
        ],
    },
    Part.OUTPUT: {
        "output": Annotated[
            Format | None, typer.Option("--output", "-o", help="Output format (default: table).", show_choices=True)
        ],
        "raw_bytes": Annotated[bool | None, typer.Option("--bytes", help="Sizes as plain numbers of bytes.")],
        "no_headers": Annotated[bool | None, typer.Option("--no-headers", help="Tables without titles and headers.")],
        "quiet": Annotated[bool | None, typer.Option("--quiet", "-q", help="Print nothing: the exit code only.")],
    },
    Part.WATCH: {
        "watch": Annotated[bool, typer.Option("--watch", "-w", help="Read and show again and again.")],
        "interval": Annotated[
            float | None, typer.Option("--interval", "-i", metavar="SECONDS", help="Pause of --watch (default: 2).")
        ],
        "count": Annotated[
            int | None, typer.Option("--count", "-n", metavar="COUNT", min=1, help="Stop --watch after this many.")
        ],
    },
    Part.REVEAL: {
        "reveal": Annotated[
            bool | None, typer.Option("--reveal", help="Show whole hashes; keep raw ids in saved files.")
        ],
    },
    Part.TIMEOUT: {
        "timeout": Annotated[
            float | None,
            typer.Option(
                "--timeout", metavar="SECONDS", help=f"Give up after this long (default: {DEFAULT_TIMEOUT_S:g})."
            ),
        ],
    },
}

SALT = typer.Option("--salt", metavar="SALT", help="For tokens: the cache salt of the request.")
LORA = typer.Option(
    "--lora",
    metavar="NAME[=PATH]",
    help="For tokens: the LoRA adapter of the request. Split where PATH is there, else at the last =.",
)
"""For commands that take ``tokens:FILE``: what belongs to a request's identity beside its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How often a reading is repeated."""

    interval_s: float
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The shared options of one call, every layer resolved."""

    target: Target = field(default_factory=Target)
    output: Output = field(default_factory=Output)
    watch: Watch | None = None
    reveal: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


def with_options(
    *parts: Part,
) -> Callable[[Callable[Concatenate[Options, P], None]], Callable[..., None]]:
    """Give a command the options of ``parts``; its first parameter becomes the resolved :class:`Options`."""

    def decorate(command: Callable[Concatenate[Options, P], None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if name == "watch" else None,
                annotation=annotation,
            )
            for part in parts
            for name, annotation in _ANNOTATIONS[part].items()
        ]

        @functools.wraps(command)
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            given = {parameter.name: kwargs.pop(parameter.name, None) for parameter in shared}
            options = _resolved(given)
            try:
                command(options, *args, **kwargs)
            except KvctlError as error:
                if error.next_step is not None:
                    error.next_step = aim(error.next_step, options.output.target)
                raise

        signature = inspect.Signature([*own, *shared], return_annotation=None)
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: item.annotation for name, item in signature.parameters.items()}
        del call.__dict__["__wrapped__"]
        # Help keeps the lines of a paragraph that begins with the control character; raw docstrings spell it.
        call.__doc__ = (command.__doc__ or "").replace(r"\b", "\b")
        return call

    return decorate


def _resolved(given: dict[str, Any]) -> Options:
    watch = None
    if given.get("watch"):
        interval = setting("interval", given.get("interval"), positive, DEFAULT_INTERVAL_S)
        watch = Watch(interval_s=_positive("--interval", interval), count=given.get("count"))
    elif given.get("count") is not None or given.get("interval") is not None:
        raise UsageError("--interval and --count belong to --watch", next_step="add --watch, or leave them out")
    output = Output(
        format=setting("output", given.get("output"), _format, Format.TABLE),
        raw_bytes=setting("bytes", given.get("raw_bytes"), switch, default=False),
        headers=not setting("no_headers", given.get("no_headers"), switch, default=False),
        quiet=setting("quiet", given.get("quiet"), switch, default=False),
        target=" ".join(_flag(name, given[name]) for name in _TARGETS if given.get(name) is not None),
    )
    return Options(
        target=_target(given),
        output=output,
        watch=watch,
        reveal=setting("reveal", given.get("reveal"), switch, default=False),
        timeout_s=_positive("--timeout", setting("timeout", given.get("timeout"), positive, DEFAULT_TIMEOUT_S)),
    )


_TARGETS = {"pid": "PID", "engine": "NAME", "socket": "PATH", "snapshot": "FILE"}
"""Options that choose a target, and what stands for a value that cannot be shown as it is."""


def _flag(name: str, value: object) -> str:
    return f"--{name} {quoted(str(value), _TARGETS[name])}"


def _target(given: dict[str, Any]) -> Target:
    """Return the target: one flag beats whatever the environment and the file say about any of them."""
    names = [name for name in _TARGETS if name in given]
    flags = [name for name in names if given[name] is not None]
    if len(flags) > 1:
        raise UsageError(
            f"--{flags[0]} and --{flags[1]} both choose a target",
            next_step="give one of them; kvctl ps lists the engines",
        )
    if flags:
        return Target(**{flags[0]: given[flags[0]]})
    parsers: dict[str, Callable[[str], Any]] = {"pid": _pid, "engine": str, "socket": Path, "snapshot": Path}
    for name in reversed(names):
        value = setting(name, None, parsers[name], None)
        if value is not None:
            return Target(**{name: value})
    return Target()


def _format(text: str) -> Format:
    try:
        return Format(text)
    except ValueError:
        raise ValueError(f"it should be one of {', '.join(Format)}") from None


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("it should be a process id")
    return int(text)


def _positive(name: str, seconds: float) -> float:
    if seconds <= 0:
        raise UsageError(f"{name} is {seconds:g}", next_step="give a number of seconds above 0")
    return seconds
