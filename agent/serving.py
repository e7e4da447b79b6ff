"""The serving end of a page table that travels between readers: a socket of this reader, answered while it polls.

Invariant: whoever asks never holds up the reader: nothing here waits, few wait at once and none for long, and one copy
is made at a time, between two records of the ring. Only uids that may talk to an engine of ours get one, and only
while the table is complete and was never found to differ. Used by :mod:`agent.follower`; no thread of its own.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from . import paths, readers, wire
from .client import peer_of
from .discovery import Endpoint
from .errors import KvctlError, ProtocolError, RefusedError, UnsupportedError
from .model.snapshot import Level
from .probe.connection import listen
from .table import RingReader, handover

WAITING: Final = 4
"""Connections at once; the kernel keeps as many again."""
PATIENCE_S: Final = 1.0
"""How long one may take to say what it wants."""
MAX_QUESTION: Final = 1024


@dataclass(slots=True, eq=False)
class _Guest:
    """One connection that has not been answered."""

    link: socket.socket
    until: float
    frames: wire.FrameBuffer = field(default_factory=lambda: wire.FrameBuffer(MAX_QUESTION, quick=True))


class TableServer:
    """A socket at which this reader answers.

    Args:
        path: Where it listens.
        listener: Bound, not blocking.
        allowed: Uids that may ask.
        clock: Seconds that only rise.
    """

    def __init__(
        self,
        path: Path,
        listener: socket.socket,
        *,
        allowed: frozenset[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._listener = listener
        self._allowed = allowed
        self._clock = clock
        self._guests: list[_Guest] = []
        self.served = 0
        """Tables that were handed out."""

    @classmethod
    def open(cls, engine: Endpoint) -> Self | None:
        """Begin to listen; None where this process cannot, or this thread does already."""
        folder = readers.own_place(engine)
        if folder is None:
            return None
        readers.sweep(folder)
        path = folder / readers.own_name(engine)
        if os.path.lexists(path):
            return None
        try:
            listener = listen(folder, path.name, WAITING)
        except OSError:
            return None
        return cls(path, listener, allowed=paths.allowed_uids())

    def serve(self, reader: RingReader) -> None:
        """Look who asks, and answer at most one of them with the table as it is now. Does not wait."""
        self._accept()
        for guest in list(self._guests):
            question = self._question(guest)
            if question is None:
                continue
            self._guests.remove(guest)
            with guest.link:
                if self._answer(guest.link, question, reader):
                    return

    def _accept(self) -> None:
        while len(self._guests) < WAITING:
            try:
                link, _ = self._listener.accept()
            except OSError:  # nobody, or no descriptors: then not now
                return
            link.settimeout(0)
            self._guests.append(_Guest(link, self._clock() + PATIENCE_S))

    def _question(self, guest: _Guest) -> dict[str, Any] | None:
        """Return what a guest asks; one that is silent for too long, has gone or talks nonsense is shown out."""
        try:
            data = guest.link.recv(MAX_QUESTION)
            guest.frames.feed(data)
            question = guest.frames.next()
            # Who asked several readers leaves the others once one has answered.
            if data and question is not None and not _gone(guest.link):
                return question
            over = question is not None or not data
        except BlockingIOError:
            over = False
        except (OSError, ProtocolError):
            over = True
        if over or self._clock() > guest.until:
            self._guests.remove(guest)
            guest.link.close()
        return None

    def _answer(self, link: socket.socket, question: dict[str, Any], reader: RingReader) -> bool:
        """Answer one guest; return whether a table was copied for it."""
        wanted = question.get("table")
        try:
            self._check(link, wanted, reader)
            assert isinstance(wanted, dict)  # noqa: S101 - for the type checker
            references = reader.level is Level.REFERENCES and wanted.get("references") is True
            head, fd = handover.write(reader, references=references)
        except KvctlError as error:
            with contextlib.suppress(OSError):
                link.send(wire.encode({"error": wire.error_to_plain(error)}))
            return False
        except OSError:
            return False
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(link, [wire.encode({"table": head.to_plain()})], [fd])
                self.served += 1
        finally:
            os.close(fd)
        return True

    def _check(self, link: socket.socket, wanted: object, reader: RingReader) -> None:
        pid, uid = peer_of(link)
        if uid not in self._allowed or pid <= 0:
            raise RefusedError(f"uid {uid} may not have this table")
        if not isinstance(wanted, dict) or wanted.get("version") != handover.VERSION:
            raise ProtocolError("the question cannot be understood", why="another version of kvctl asks")
        if wanted.get("instance") != reader.instance:
            raise UnsupportedError("this reader follows another ring")
        if not reader.complete or reader.doubtful:
            raise UnsupportedError("this reader has no whole table now")

    def close(self) -> None:
        """Stop listening and remove the socket."""
        for guest in self._guests:
            guest.link.close()
        self._guests.clear()
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def _gone(link: socket.socket) -> bool:
    """Whether the other side has closed."""
    try:
        return link.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
