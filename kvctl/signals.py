"""Signals that end a command, for commands that must put something away first.

Invariant: a signal is only noted, unless the command says that it may come now; it raises once, and whatever is put
away in a ``finally`` after that is not disturbed. A signal that was ignored before stays ignored. Called by ``kvctl
demo`` on the main thread.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

import typer

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class EndedError(BaseException):
    """A signal came while it was let through; no ``except Exception`` is meant by it."""


class Signals:
    """Turns signals into one exception at a moment that the command chooses; a context manager.

    Leaving it exits with the code of the signal, as a shell gives it, if there was one.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came."""
        self._open = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Note signals from now on."""
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._come)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the handlers back, and exit where a signal came."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self.number is not None:
            raise typer.Exit(128 + self.number) from None

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals through: at once for one that came before."""
        self._open = True
        self._raise()
        try:
            yield
        finally:
            self._open = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back for a moment, for what must be done as a whole."""
        was, self._open = self._open, False
        try:
            yield
        finally:
            self._open = was
        self._raise()

    def _come(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self._raise()

    def _raise(self) -> None:
        if self._open and self.number is not None:
            self._open = False
            raise EndedError
