"""Small JSON files of an operator: written whole or not at all, read with one clear error.

Invariant: a file names its kind and version in its first field; nothing but that kind is ever read. Outside the engine;
used by :mod:`agent.fingerprint`, ``inspector.invalidation`` and the commands that write files.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import FileError, UsageError


def is_there(path: Path) -> bool:
    """Tell whether a file is at a path that an operator gave; where nobody can look there is none to replace."""
    try:
        return path.exists()
    except OSError:  # too long, or in a folder that is closed: writing says it
        return False


def write(body: Mapping[str, Any], path: Path, *, pretty: bool = False, private: bool = False) -> None:
    """Write a file through a temporary one beside it.

    Args:
        body: What to write.
        path: Where; its folder has to exist.
        pretty: For people: indented, names sorted.
        private: Only its owner may read it.

    Raises:
        UsageError: It cannot be written; what was there before is still there.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    how = os.O_EXCL if private else os.O_TRUNC
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | how, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(body, file, indent=1 if pretty else None, sort_keys=pretty)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UsageError(f"{path} cannot be written", why=error.strerror) from error


def read(path: Path, kind: str, *, version: int, make: str) -> dict[str, Any]:
    """Read a file of one kind.

    Args:
        path: Where it lies.
        kind: ``plan`` for files with a field ``kvctl_plan``.
        version: The newest version that is understood.
        make: The command that makes such a file.

    Raises:
        FileError: It is missing, of another kind, or of a newer version.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read", why=error.strerror, next_step=f"make one with {make}") from error
    except ValueError as error:
        raise FileError(
            f"{path} is no {kind}", why="it is not JSON, or cut short", next_step=f"make one with {make}"
        ) from error
    found = body.get(f"kvctl_{kind}") if isinstance(body, dict) else None
    if not isinstance(found, int):
        raise FileError(f"{path} is no {kind}", next_step=f"make one with {make}")
    if found > version:
        raise FileError(
            f"{path} was written by a newer kvctl", why=f"{kind} version {found}", next_step="upgrade kvctl"
        )
    return dict(body)
