"""The entry point: runs one command and turns whatever comes of it into an exit code.

Invariant: an error is one clear message and never a traceback; ``KVCTL_DEBUG=1`` shows the traceback of a bug. Called
by the ``kvctl`` script and by ``python -m kvctl``.
"""

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


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    pin_packages()
    sys.excepthook = _report_bug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale without our signs, or a lone surrogate in a file name, must not end a command.
            stream.reconfigure(errors="replace")
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


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
    sys.stderr.write(f"kvctl: the library {name} is not installed\n")
    sys.stderr.write("  why:  kvctl was installed without what it depends on, as an engine's environment needs it\n")
    sys.stderr.write("  next: pip install kvctl in an environment of its own, or here\n")
    sys.stderr.flush()
    os._exit(2)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say that kvctl itself is at fault, and exit with 4: a crash must not look like a verdict (1)."""
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in _LIBRARIES:
        _report_missing_library(error.name.split(".")[0])
    if os.environ.get("KVCTL_DEBUG"):
        sys.__excepthook__(kind, error, trace)
    sys.stderr.write(f"kvctl: internal error: {kind.__name__}: {error}\n")
    sys.stderr.write("  why:  a bug in kvctl; the engine is not affected\n")
    sys.stderr.write(f"  next: run it again with KVCTL_DEBUG=1 and report the traceback to {_BUG_URL}\n")
    sys.stderr.flush()
    os._exit(4)
