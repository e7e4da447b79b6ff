"""How the dashboard ends when no key ends it: by a signal, with its terminal gone, or by an error of its own.

Invariant: whatever ends it, the terminal is put in order, and where the app itself hangs a thread ends the process
after :data:`GRACE_S`. A signal that was ignored before stays ignored. Entered around the run of the app, on the main
thread.
"""

import errno
import os
import select
import signal
import sys
import termios
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from .app import Dashboard

ENDING = tuple(getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU"))
"""Signals that end a program unless it answers them: without an answer the screen would be left as it is."""

GRACE_S = 3.0
"""Time for the app to end by itself."""

FAILED = 4
"""Exit code after an error of the dashboard itself."""

_AGAIN_S = 0.1
_LAST_S = 1.0
"""How long the terminal may take to be put in order by force: one that was stopped never takes it."""

_ORDER = b"".join(
    b"\x1b[" + what
    # paste, wrap, four kinds of mouse, keyboard, screen, cursor, focus
    for what in (
        b"?2004l", b"?7h", b"?1000l", b"?1003l", b"?1015l", b"?1006l", b"<u", b"?1049l", b"?25h", b"?1004l",
    )
)  # fmt: skip


class Leaving:
    """Watches what may end the app from outside; a context manager.

    Args:
        app: Not yet running.
        terminal: Descriptor of its keyboard.
    """

    def __init__(self, app: "Dashboard", terminal: int = 0) -> None:
        self._app, self._terminal = app, terminal
        self.signal: int | None = None
        """What ended it; SIGHUP also where the terminal went without one."""
        self.failure: BaseException | None = None
        """The first error that nobody caught."""
        self._over = False
        self._attributes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._threads: Callable[[Any], object] = threading.excepthook
        self._told, self._tell = -1, -1
        self._watcher = threading.Thread(target=self._watch, name="kvctl-top-leaving", daemon=True)

    @property
    def code(self) -> int:
        """Exit code for what ended it, as a shell gives it after a signal."""
        return FAILED if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        """Begin to watch."""
        with suppress(termios.error, OSError):
            self._attributes = termios.tcgetattr(self._terminal)
        self._told, self._tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._threads, threading.excepthook = threading.excepthook, self._thread_failed
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._signalled)
        # Textual answers these two and does not give them back.
        self._handlers |= {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Give everything back; an error that only says that the terminal is gone is not handed on."""
        self._over = True
        self._wake()
        self._watcher.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        threading.excepthook = self._threads
        told, tell, self._tell = self._told, self._tell, -1
        os.close(told)
        os.close(tell)
        if self._gone():
            self.signal = self.signal or signal.SIGHUP
            _let_go()
        return self.signal is not None and isinstance(error, Exception)

    def failed(self, error: BaseException) -> None:
        """End the app for an error that nobody caught. Any thread."""
        if isinstance(error, OSError) and error.errno == errno.EIO and self._gone():
            self.signal = self.signal or signal.SIGHUP
        else:
            self.failure = self.failure or error
        self._wake()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._wake()

    def _thread_failed(self, what: threading.ExceptHookArgs) -> None:
        if what.exc_value is not None and not isinstance(what.exc_value, SystemExit):
            self.failed(what.exc_value)

    def _wake(self) -> None:
        with suppress(OSError):  # it was told often enough, or there is nobody to tell
            os.write(self._tell, b"x")

    def _gone(self) -> bool:
        return self._attributes is not None and bool(_hang_up(self._terminal).poll(0))

    def _watch(self) -> None:
        poll = _hang_up(self._terminal) if self._attributes is not None else select.poll()
        poll.register(self._told, select.POLLIN)
        ready = dict(poll.poll())
        if self._terminal in ready and self.failure is None:
            self.signal = self.signal or signal.SIGHUP
        end = time.monotonic() + GRACE_S
        while not self._over and time.monotonic() < end:
            if (loop := self._app.loop) is not None:
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._app.exit, None, self.code)
            time.sleep(_AGAIN_S)
        if not self._over:
            self._by_force()

    def _by_force(self) -> None:
        """Put the terminal in order from here, and end the process: the app's own thread hangs."""
        last = threading.Timer(_LAST_S, os._exit, (self.code,))
        last.daemon = True
        last.start()
        with suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, _ORDER)
        with suppress(termios.error, OSError):
            if self._attributes is not None:
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._attributes)
        os._exit(self.code)


def _hang_up(descriptor: int) -> select.poll:
    """Return what waits for the other end of a terminal to go, and for nothing else."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return poll


def _let_go() -> None:
    """Write nowhere from now on: what waits to be written would be an error at the very end."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in range(3):
        if _hang_up(descriptor).poll(0):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
