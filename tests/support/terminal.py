"""A terminal that a test can look at: tmux with a server of its own, or a bare pseudo-terminal for one command.

Invariant: touches no other tmux server and no settings of the user; leaving the context ends what runs in it.
"""

import os
import pty
import shlex
import subprocess
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine_env import short_folder
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Terminal:
    """One window."""

    socket: Path

    def screen(self) -> str:
        """Return what it shows as text."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        for key in keys:
            self._tmux("send-keys", key)

    def resize(self, columns: int, rows: int) -> None:
        """Give it another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def shows(self, *words: str, deadline_s: float = 120.0) -> str:
        """Return the screen as soon as it shows all words."""

        def found() -> str | None:
            text = self.screen()
            return text if all(word in text for word in words) else None

        try:
            return str(wait_for(found, f"{words} on the screen", deadline_s=deadline_s))
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows\n{self.screen()}") from None

    def title(self) -> str:
        """Return the title that programs in it gave it."""
        return self._tmux("display-message", "-p", "#{pane_title}")

    def record(self, file: Path) -> None:
        """Keep every byte that is written to it from now on; ``file`` is there at once."""
        file.touch()
        self._tmux("pipe-pane", f"cat >> {shlex.quote(str(file))}")

    def gone(self) -> bool:
        """Whether what ran in it has ended."""
        done = subprocess.run(["tmux", "-S", str(self.socket), "has-session"], capture_output=True, check=False)
        return done.returncode != 0

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", str(self.socket), *words], capture_output=True, text=True, check=True
        ).stdout


@contextmanager
def terminal(
    command: Sequence[str], *, columns: int, rows: int, environment: Mapping[str, str], folder: Path
) -> Iterator[Terminal]:
    """Run a command in a terminal of this size.

    Args:
        command: What to run.
        columns: Of the terminal.
        rows: Of the terminal.
        environment: All its variables.
        folder: Where it runs.
    """
    with short_folder() as own:
        window = Terminal(own / "tmux")
        begin = ["tmux", "-u", "-f", "/dev/null", "-S", str(window.socket), "new-session", "-d"]
        begin += ["-x", str(columns), "-y", str(rows), shlex.join(command)]
        variables = {**environment, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        subprocess.run(begin, env=variables, cwd=folder, check=True, capture_output=True)
        try:
            yield window
        finally:
            subprocess.run(["tmux", "-S", str(window.socket), "kill-server"], capture_output=True, check=False)


def on_terminal(
    command: Sequence[str], *, columns: int, environment: Mapping[str, str], folder: Path, errors: bool = True
) -> str:
    """Run a command whose output is a terminal; return what it wrote there, not a byte changed.

    Args:
        command: What to run; it reads nothing.
        columns: Of the terminal.
        environment: All its variables.
        folder: Where it runs.
        errors: Its standard error is the terminal too, not that of the test.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if errors else None,
        env=environment,
        cwd=folder,
    )
    os.close(theirs)
    parts = []
    try:
        while part := _read(ours):
            parts.append(part)
        process.wait(timeout=120)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return b"".join(parts).decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other end is closed
        return b""
