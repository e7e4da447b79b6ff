"""One reader of the probe's socket, and the socket itself.

Invariant: what waits for a reader is counted, and descriptors that wait for it are ours to close. Used by ``server``.
"""

import contextlib
import os
import socket
import time
from collections import deque
from pathlib import Path

from .. import wire
from .answers import Reader


class Connection:
    """One reader."""

    def __init__(self, link: socket.socket, pid: int, uid: int) -> None:
        self.link = link
        self.frames = wire.FrameBuffer(wire.MAX_GREETING, quick=True)
        self.out: deque[tuple[memoryview, int | None]] = deque()
        """Bytes to send, each with the descriptor that rides on its first byte; it is ours to close."""
        self.waiting = 0
        """Bytes in ``out``."""
        self.greeted = False
        self.closing = False
        """Close as soon as everything is sent."""
        self.questions = 0
        self.since = time.monotonic()
        """When it connected, or last took bytes while some were waiting."""
        self.reader = Reader(pid=pid, uid=uid)


def listen(folder: Path, name: str, backlog: int) -> socket.socket:
    """Bind by way of the folder's descriptor: socket addresses hold 107 bytes, and the folder cannot be swapped."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=descriptor)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The folder is 0700, so nobody gets between bind and chmod; umask belongs to the whole host process.
            listener.bind(f"/proc/self/fd/{descriptor}/{name}")
            os.chmod(name, 0o600, dir_fd=descriptor)
            listener.listen(backlog)
            listener.settimeout(0)
        except OSError:
            listener.close()
            raise
        return listener
    finally:
        os.close(descriptor)
