"""Sockets of readers that serve their page table to other readers: names, places, and who is behind them.

Invariant: such a name is never one of an engine's, and looking connects to nothing and removes nothing but, in
:func:`sweep`, what is provably dead and ours. Used by :mod:`agent.serving`, :mod:`agent.borrowing` and ``kvctl
doctor``.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .discovery import Endpoint, EndpointState, sockets_in

READER_NAME = re.compile(
    r"\Areader-(?P<engine>[1-9]\d{0,9})-(?P<engine_ticks>\d{1,20})-(?P<part>\d{1,4})"
    r"-(?P<pid>[1-9]\d{0,9})-(?P<ticks>\d{1,20})-(?P<thread>\d{1,10})\.sock\Z"
)
"""Whose table it is (pid, start ticks and part of the engine), and who serves it (pid, start ticks, thread)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One socket of a reader."""

    engine: tuple[int, int, int]
    """Pid, start ticks and part of the engine that it follows."""
    thread: int
    """The kernel's number of the thread that follows."""
    endpoint: Endpoint
    """The reader's own process."""

    @property
    def here(self) -> bool:
        """Whether this very thread serves it: it would wait for itself."""
        return self.endpoint.pid == os.getpid() and self.thread == threading.get_native_id()


def identity(engine: Endpoint) -> tuple[int, int, int]:
    """Return what tells an engine from every other one of this host."""
    return engine.pid, engine.start_ticks, engine.part


def own_name(engine: Endpoint) -> str:
    """Return the name of the socket at which this thread serves an engine's table."""
    pid = os.getpid()
    numbers = (*identity(engine), pid, paths.start_ticks(pid) or 0, threading.get_native_id())
    return f"reader-{'-'.join(map(str, numbers))}.sock"


def places(engine: Endpoint, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the folders where readers of an engine listen: where it listens itself, else in their own."""
    return tuple(dict.fromkeys((engine.path.parent, *paths.folders(environ))))


def own_place(engine: Endpoint) -> Path | None:
    """Return the folder where this process may serve; None where there is none, or an operator switched it off."""
    for folder in places(engine):
        if paths.unfit(folder, uid=os.geteuid()) is None:
            return folder if paths.switched_off(folder) is None else None
    return None


def readers(folders: Iterable[Path], *, trusted: Iterable[int] = ()) -> list[Reader]:
    """List the sockets of readers, whatever their state.

    Args:
        folders: Where to look.
        trusted: Uids besides the caller's own whose tables may be used.
    """
    allowed = {os.geteuid(), *trusted}
    return [reader for folder in folders for reader in _in_folder(folder, allowed)]


def endpoints() -> list[Endpoint]:
    """List the sockets of this user's readers, whatever engine they follow."""
    return [reader.endpoint for reader in readers(paths.folders())]


def of_engine(engine: Endpoint) -> list[Reader]:
    """List the readers of one engine that can answer this thread: those of its own user and of the engine's.

    A dashboard that was put aside (SIGTSTP) is no such reader.
    """
    return [
        reader
        for reader in readers(places(engine), trusted=(engine.uid,))
        if reader.engine == identity(engine)
        and reader.endpoint.state is EndpointState.LIVE
        and not reader.here
        and not _stopped(reader.endpoint.pid)
    ]


def _stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger (``/proc/PID/stat`` field 3)."""
    fields = paths.stat_fields(pid)
    return fields is not None and fields[0] in {"T", "t"}


def _in_folder(folder: Path, allowed: set[int]) -> Iterator[Reader]:
    for endpoint in sockets_in(folder, allowed, _listener):
        parsed = READER_NAME.match(endpoint.path.name)
        assert parsed is not None  # noqa: S101 - for the type checker
        engine = (int(parsed["engine"]), int(parsed["engine_ticks"]), int(parsed["part"]))
        yield Reader(engine=engine, thread=int(parsed["thread"]), endpoint=endpoint)


def _listener(name: str) -> paths.SocketName | None:
    """Read who listens from the name of a file; None where it is not one of a reader."""
    parsed = READER_NAME.match(name)
    return None if parsed is None else paths.SocketName(pid=int(parsed["pid"]), start_ticks=int(parsed["ticks"]))


def sweep(folder: Path) -> None:
    """Remove what dead readers of this user left in a folder."""
    for reader in readers([folder]):
        if reader.endpoint.state is EndpointState.DEAD:
            with contextlib.suppress(OSError):
                reader.endpoint.path.unlink(missing_ok=True)
