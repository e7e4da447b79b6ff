"""The entry point: runs one command and turns whatever comes of it into an exit code.

Invariant: an error is one clear message and never a traceback; ``KVCTL_DEBUG=1`` shows the traceback of a bug. Called
by the ``kvctl`` script and by ``python -m kvctl``.
"""

import codecs
import contextlib
import errno
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from agent.errors import KvctlError, UsageError

_LIBRARIES = frozenset({"typer", "rich", "numpy", "textual", "prometheus_client", "opentelemetry", "pynvml"})
"""Import names of what the command line depends on."""

_BUG_URL = "the project's issue tracker"

_PLAIN = {"●": "*", "◐": "%", "○": "o", "⇄": "~", "✗": "x", "█": "#", "░": ".", "·": "|", "…": ">", "µ": "u", "└": "`"}
_PLAIN |= dict(zip("▁▂▃▄▅▆▇", "__--==^", strict=True))
"""Our signs where the terminal's encoding has none of them; never "?", which means unknown."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    pin_packages()
    sys.excepthook = _report_bug
    prepare_streams()
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _report_bug(type(error), error, error.__traceback__)
    sys.exit(code)


def prepare_streams() -> None:
    """Make writing safe: a stream that the caller closed goes nowhere, a sign that cannot be encoded becomes plain.

    A closed stream's number would otherwise be given to the next file or socket that is opened.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the process
    codecs.register_error("kvctl", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="kvctl")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks, or a lone surrogate in a file name, as something that it has."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in lacking), error.end


def pin_packages() -> None:
    """Load our own packages by path: a serving script's ``agent.py`` may come first on the search path.

    A package that was imported already is left alone.
    """
    home = Path(__file__).resolve().parent.parent
    for name in ("agent", "inspector", "exporters"):
        source = home / name / "__init__.py"
        if name in sys.modules or not source.exists():
            continue
        spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=[str(source.parent)])
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: Without the program's name. None at all shows the help.
    """
    import typer  # noqa: PLC0415 - after pin_packages

    from agent.errors import KvctlError  # noqa: PLC0415

    from .app import build  # noqa: PLC0415
    from .diagnostics import ExitCode, ReaderGoneError  # noqa: PLC0415

    # Typer carries its own copy of Click and exports only leaves of its error tree: UsageError is BadParameter's base.
    command_line_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        result = build().main(list(arguments) or ["--help"], prog_name="kvctl", standalone_mode=False)
    except KvctlError as error:
        return _failed(error, arguments)
    except ReaderGoneError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except command_line_error as error:
        return _failed(_as_usage_error(error), arguments)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _failed(error: "KvctlError", arguments: Sequence[str]) -> int:
    """Say what failed, why, and what to do next; return the exit code."""
    from .diagnostics import exit_code_of  # noqa: PLC0415 - after pin_packages
    from .output import say_error  # noqa: PLC0415

    with contextlib.suppress(OSError):  # where nobody can be told, the exit code still says it
        say_error(error, as_json=_wants_json(arguments))
    return exit_code_of(error)


def _as_usage_error(error: BaseException) -> "UsageError":
    """Return the parser's complaint as one of our own errors, with the help of the command that was meant."""
    from agent.errors import UsageError  # noqa: PLC0415 - after pin_packages

    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "kvctl"
    message = str(getattr(error, "format_message", lambda: error)()).rstrip(".").replace("Value error, ", "")
    return UsageError(message[:1].lower() + message[1:], next_step=f"see {command} --help")


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether errors are to be JSON, found without parsing: the parser itself may be what fails."""
    wanted = os.environ.get("KVCTL_OUTPUT", "")
    for at, word in enumerate(arguments):
        if word == "--":
            break
        if word in {"-o", "--output"} and at + 1 < len(arguments):
            wanted = arguments[at + 1]
        elif word.startswith("--output="):
            wanted = word.removeprefix("--output=")
        elif word.startswith("-o") and len(word) > 2:
            wanted = word[2:]
    return wanted in {"json", "jsonl"}


def _report_missing_library(name: str) -> NoReturn:
    """Say that this is the bare wheel, which is all that an engine needs but not enough for the command line."""
    _say_and_exit(
        2,
        f"kvctl: the library {name} is not installed",
        "  why:  kvctl was installed without what it depends on, as an engine's environment needs it",
        "  next: in the checkout of kvctl, in an environment of its own or here: pip install .",
    )


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say that kvctl itself is at fault, and exit with 4: a crash must not look like a verdict (1)."""
    if issubclass(kind, KeyboardInterrupt):  # ^C while the command line was still loading is no bug
        _say_and_exit(130)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in _LIBRARIES:
        _report_missing_library(error.name.split(".")[0])
    if isinstance(error, OSError) and error.errno in _FULL:
        _say_and_exit(2, f"kvctl: the output cannot be written: {(error.strerror or kind.__name__).lower()}")
    if os.environ.get("KVCTL_DEBUG"):
        sys.__excepthook__(kind, error, trace)
    _say_and_exit(
        4,
        f"kvctl: internal error: {kind.__name__}: {error}",
        "  why:  a bug in kvctl; the engine is not affected",
        f"  next: run it again with KVCTL_DEBUG=1 and report the traceback to {_BUG_URL}",
    )


def _say_and_exit(code: int, *lines: str) -> NoReturn:
    """End this process at once, whatever becomes of its streams."""
    from inspector.format import clean  # noqa: PLC0415 - after pin_packages; needs the standard library only

    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("".join(f"{clean(line)}\n" for line in lines))
        sys.stderr.flush()
    os._exit(code)
