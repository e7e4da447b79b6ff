"""Settings: flags beat the environment (``KVCTL_*``) beats ``~/.config/kvctl/config.toml`` beats the default.

Invariant: reads, never writes; a value that does not fit is a usage error that names where it came from. Called by
:mod:`kvctl.options` for each option that was not given as a flag.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from agent.errors import UsageError

T = TypeVar("T")

SETTINGS = (
    "output", "bytes", "no_headers", "quiet", "reveal", "timeout", "interval", "pid", "engine", "socket", "snapshot",
)  # fmt: skip
"""Names that the environment (upper case, with ``KVCTL_``) and the file may set."""

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def config_path() -> Path:
    """Return where the config file lies: ``KVCTL_CONFIG``, else the XDG folder."""
    named = os.environ.get("KVCTL_CONFIG")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "kvctl" / "config.toml"


@cache
def _file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the config file {path}", why=str(error), next_step="fix or remove it") from error
    import tomllib  # noqa: PLC0415 - only who has a config file pays for it

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the config file {path} is not valid TOML", why=str(error), next_step="fix it") from error
    unknown = sorted(set(values) - set(SETTINGS))
    if unknown:
        raise UsageError(
            f"the config file {path} sets {unknown[0]!r}, which is no setting",
            next_step=f"use one of: {', '.join(SETTINGS)}",
        )
    return values


def setting(name: str, flag: T | None, parse: Callable[[str], T], default: T) -> T:
    """Return the value of one setting from the first place that has it.

    Args:
        name: One of :data:`SETTINGS`.
        flag: The value from the command line; None where it was not given.
        parse: Makes a value of text; raises ``ValueError`` with the sentence that says what would fit.
        default: The value where nobody says anything.

    Raises:
        UsageError: A value that does not fit, with the place it came from.
    """
    if flag is not None:
        return flag
    variable = f"KVCTL_{name.upper()}"
    text = os.environ.get(variable)
    place = f"the environment variable {variable}"
    if text is None:
        path = config_path()
        value = _file(path).get(name)
        if value is None:
            return default
        text = str(value).lower() if isinstance(value, bool) else str(value)
        place = f"{name} in {path}"
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{place} is {text!r}", why=str(error), next_step="correct or remove it") from error


def switch(text: str) -> bool:
    """Parse a yes or no."""
    lowered = text.strip().lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    raise ValueError("it should be true or false")


def positive(text: str) -> float:
    """Parse a positive number of seconds."""
    number = float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else 0.0
    if number <= 0:
        raise ValueError("it should be a number of seconds above 0")
    return number
