"""The append-only log of everything that was changed through the probe.

Invariant: one JSON line a change, opened append-only with mode 0600; a log that cannot be written refuses the change
before it happens. Called by the probe on the engine's thread.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RefusedError


class AuditLog:
    """Write the log.

    Args:
        path: The file; None: there is nowhere to write, and changes are refused.
        engine: Pid and start ticks of the engine.
    """

    def __init__(self, path: Path | None, engine: tuple[int, int]) -> None:
        self._path = path
        self._engine = engine

    def write(self, uid: int, pid: int, operation: str, details: Mapping[str, Any]) -> None:
        """Append one line: who, when, what, how many, result.

        Raises:
            RefusedError: It cannot be written.
        """
        line = {
            "time_ns": time.time_ns(),
            "engine_pid": self._engine[0],
            "engine_start_ticks": self._engine[1],
            "uid": uid,
            "pid": pid,
            "operation": operation,
            **details,
        }
        if self._path is None:
            raise RefusedError(
                "nothing is changed without an audit log", why="there is no runtime folder to write it to"
            )
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise RefusedError("nothing is changed without an audit log", why=str(error)) from error
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise RefusedError("nothing is changed without an audit log", why="the disk is full")
        except OSError as error:
            raise RefusedError("nothing is changed without an audit log", why=str(error)) from error
        finally:
            os.close(descriptor)
