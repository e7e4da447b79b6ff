"""Where the dashboard's pictures come from: a live engine that may go and come back, or a saved file.

Invariant: used by the reading thread only, except for :meth:`Link.aside`, which gives a job its own conversation so
that a long check never holds up the screen.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.errors import DeadlineError, KvctlError, UnsupportedError, UsageError
from agent.model.decision import Decision
from agent.model.snapshot import Level, Snapshot
from agent.session import Session

from ..store import load

if TYPE_CHECKING:
    from agent.discovery import Endpoint

Progress = Callable[[float], None]
"""Receives 0 to 1 while the page table arrives."""


class Link(Protocol):
    """Something that can be read again and again."""

    live: bool
    """False: it never changes."""

    def connect(self) -> None:
        """Begin a conversation; ends one that is still open."""

    def follow(self, progress: Progress) -> str | None:
        """Join the feed; return why not where this engine has none."""

    def poll(self) -> tuple[Decision, ...]:
        """Return the decisions since the last call, explained where the feed was joined; see ``Session.poll``."""

    def read(self, *, table: bool, references: bool = False) -> Snapshot:
        """Read a snapshot, with the page table where that is asked for and there is one.

        Args:
            table: With the page table.
            references: And with references and free list, which cost the engine more.
        """

    def aside(self) -> Session:
        """Open another conversation with the same engine; the caller closes it."""

    def close(self) -> None:
        """End the conversation."""


class FileLink:
    """A saved snapshot.

    Args:
        path: The file.
    """

    live = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._snapshot: Snapshot | None = None

    def connect(self) -> None:
        """Read the file."""
        self._snapshot = load(self._path)

    def follow(self, progress: Progress) -> str | None:
        """Do nothing: a file holds all it will ever hold."""
        del progress
        return None

    def poll(self) -> tuple[Decision, ...]:
        """Return nothing new."""
        return ()

    def read(self, *, table: bool, references: bool = False) -> Snapshot:
        """Return what the file holds."""
        del table, references
        if self._snapshot is None:
            self.connect()
        assert self._snapshot is not None  # noqa: S101 - connect raises or sets it
        return self._snapshot

    def aside(self) -> Session:
        """Refuse: nobody is there to talk to."""
        raise UsageError("this is a saved snapshot", next_step="leave out --snapshot to work on the live engine")

    def close(self) -> None:
        """Nothing is open."""


class EngineLink:
    """A live engine.

    Args:
        opener: Finds the engine and opens a session; called again after it was lost.
        timeout_s: For the page table and for each reading.
    """

    live = True

    def __init__(self, opener: Callable[[], Session], timeout_s: float) -> None:
        self._opener = opener
        self._timeout_s = timeout_s
        self._session: Session | None = None
        self._endpoint: Endpoint | None = None
        self._following = False
        self._beside: Session | None = None
        """Follows references, too, while a screen shows them."""
        self._left: tuple[Decision, ...] = ()
        """Decisions that came while that was waited for."""

    def connect(self) -> None:
        """Find the engine, which may be another process than before."""
        self.close()
        self._session = self._opener()
        self._endpoint = self._session.endpoint

    def follow(self, progress: Progress) -> str | None:
        """Join at content level: what explains decisions and shows the page table."""
        session = self._open()
        try:
            session.follow(Level.CONTENT, progress=progress, deadline_s=self._timeout_s)
        except UnsupportedError as error:
            return error.why or error.what
        except DeadlineError as error:
            return f"{error.what}"
        self._following = True
        return None

    def poll(self) -> tuple[Decision, ...]:
        """Apply what is in the ring."""
        left, self._left = self._left, ()
        return (*left, *(self._open().poll() if self._following else ()))

    def read(self, *, table: bool, references: bool = False) -> Snapshot:
        """Read counters, or everything at one epoch."""
        session = self._open()
        if not references:
            self._leave_references()
        if table and self._following:
            if references:
                session = self._with_references(session)
            return session.snapshot(tables=True, deadline_s=self._timeout_s)
        return session.overview(deadline_s=self._timeout_s)

    def _with_references(self, session: Session) -> Session:
        """Return a session that follows references, too; decisions are followed on the first all the while."""
        if self._beside is not None:
            return self._beside

        def meanwhile(_ratio: float) -> None:
            self._left += session.poll()

        self._beside = self.aside()
        try:
            self._beside.follow(Level.REFERENCES, progress=meanwhile, deadline_s=self._timeout_s)
        except (UnsupportedError, DeadlineError):
            self._leave_references()
            return session
        return self._beside

    def _leave_references(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            with suppress(KvctlError):
                beside.close()

    def aside(self) -> Session:
        """Open a second session with the engine that the screen shows."""
        if self._endpoint is None:
            return self._opener()
        return Session.open(self._endpoint, deadline_s=self._timeout_s)

    def close(self) -> None:
        """Leave the feed and close the connection; an engine that is gone is closed, too."""
        self._leave_references()
        session, self._session, self._following = self._session, None, False
        if session is None:
            return
        try:
            session.close()
        except KvctlError:
            return

    def _open(self) -> Session:
        if self._session is None:
            self.connect()
        assert self._session is not None  # noqa: S101 - connect raises or sets it
        return self._session


@contextmanager
def aside(link: Link) -> Iterator[Session]:
    """Open another conversation and close it again."""
    session = link.aside()
    try:
        yield session
    finally:
        session.close()
