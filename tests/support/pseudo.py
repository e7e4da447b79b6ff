"""A pseudo-terminal that one command has for its own, as its controlling terminal: signalled, stopped, hung up.

Invariant: everything that is written to it is read at once, unless a test holds the reader back; leaving the context
ends the command. Used by tests that need no screen, only what becomes of the terminal.
"""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for

ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"
"""Switch to the screen of a full-screen program, and back."""


@dataclass
class Pseudo:
    """A command and the terminal that it runs on."""

    process: "subprocess.Popen[bytes]"
    ours: int
    before: list[Any]
    """The terminal's attributes before the command came."""
    written: bytearray = field(default_factory=bytearray)
    reading: threading.Event = field(default_factory=threading.Event)

    def shows(self, *words: str) -> None:
        """Wait until all words were written."""
        wait_for(lambda: all(word.encode() in self.written for word in words), f"{words} on the terminal")

    def send(self, number: int) -> None:
        """Send a signal to the command."""
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        """Wait for its end and return its exit code."""
        return self.process.wait(timeout=60)

    def attributes(self) -> list[Any]:
        """Return the terminal's attributes."""
        return termios.tcgetattr(self.ours)

    def comes_back(self) -> None:
        """Wait until screen and attributes are as they were before the command came."""
        wait_for(lambda: self.written.rfind(ALTERNATE) < self.written.rfind(NORMAL), "the normal screen")
        wait_for(lambda: self.attributes() == self.before, "the terminal's attributes of before")

    def hang_up(self) -> None:
        """Close the terminal, as its window is closed."""
        self.reading.clear()
        ours, self.ours = self.ours, -1
        os.close(ours)

    def read(self) -> None:
        """Read until the command has ended; for a thread."""
        while self.reading.wait() and self.ours >= 0:
            try:
                self.written += os.read(self.ours, 65_536)
            except OSError:  # the other end is closed
                return


@contextmanager
def pseudo(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, ignored: Sequence[int] = ()
) -> Iterator[Pseudo]:
    """Run a command on a terminal of 24 by 80 of its own.

    Args:
        command: What to run.
        environment: All its variables; ``TERM`` is ours.
        folder: Where it runs.
        ignored: Which of SIGHUP, SIGINT, SIGQUIT it inherits as ignored.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    before = termios.tcgetattr(theirs)

    def take() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # A shell starts its background jobs with some signals ignored, and children inherit that.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
        cwd=folder,
        start_new_session=True,
        preexec_fn=take,  # noqa: PLW1509 - a terminal can be taken nowhere else
    )
    os.close(theirs)
    window = Pseudo(process, ours, before)
    window.reading.set()
    threading.Thread(target=window.read, daemon=True).start()
    try:
        yield window
    finally:
        process.kill()
        process.wait()
        window.reading.set()
        if window.ours >= 0:
            window.hang_up()
