"""Where a read command gets its snapshot: a live engine or a saved file, behind one face.

Invariant: views never know which of the two it is. Nothing of the live side is imported for a file. Called by
:mod:`kvctl.reading` and by the commands that need a live session.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.errors import DeadlineError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.errors import KvctlError
    from agent.model.decision import Decision
    from agent.model.groups import Geometry
    from agent.model.snapshot import Snapshot
    from agent.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which engine or file; nothing set means the only engine on this host."""

    pid: int | None = None
    engine: str | None = None
    socket: Path | None = None
    snapshot: Path | None = None


class Need(IntEnum):
    """How much has to be read, from cheap to dear."""

    OVERVIEW = 0
    """Counters, groups, requests, the latest decisions: no page table, answers at once."""
    DECISIONS = 1
    """The same, with as many decisions as a snapshot has."""
    QUICK = 2
    """The page table and the tables of requests if they come within :data:`QUICK_S`; else the overview, with a note."""
    CONTENT = 3
    """The page table: keys, positions, stamps."""
    REFERENCES = 4
    """Reference counts and free list on top."""
    EVIDENCE = 5
    """What the gates ask for on top: look-ups of the engine, the workers' tensors, the devices' health."""


QUICK_S = 2.0
"""How long a command waits for a page table that it can do without."""


class Source(Protocol):
    """Something that snapshots can be read from."""

    live: bool

    def read(self, need: Need, progress: "Callable[[float], None]") -> "Snapshot":
        """Return a snapshot that holds at least what is needed, as far as the source has it."""

    def fresh_decisions(self) -> "tuple[Decision, ...]":
        """Return the decisions since the last call, oldest first; does not wait for one."""

    def rest(self, seconds: float) -> None:
        """Wait between two readings."""


class FileSource:
    """A saved snapshot: the same at every reading."""

    live = False

    def __init__(self, path: Path) -> None:
        """Remember the file; it is read at the first use."""
        self._path = path
        self._snapshot: Snapshot | None = None

    def read(self, need: Need, progress: "Callable[[float], None]") -> "Snapshot":
        """Return what the file holds; views say ``unknown`` for what it lacks."""
        del progress
        if self._snapshot is None:
            from inspector.store import load  # noqa: PLC0415 - a live target needs no files

            self._snapshot = load(self._path)
        if need is not Need.EVIDENCE:
            return self._snapshot
        from agent.fingerprint import with_pin  # noqa: PLC0415 - only the gates compare

        return with_pin(self._snapshot)

    def fresh_decisions(self) -> "tuple[Decision, ...]":
        """Raise: nothing new ever comes out of a file."""
        raise UsageError(
            "a saved snapshot cannot be followed",
            why="nothing new ever comes out of a file",
            next_step="leave out -f, or leave out --snapshot to follow the live engine",
        )

    def rest(self, seconds: float) -> None:
        """Wait."""
        pause(seconds)


class LiveSource:
    """An engine behind an open session."""

    live = True

    def __init__(self, session: "Session", timeout_s: float) -> None:
        """Use a session; whoever opened it closes it."""
        self._session = session
        self._timeout_s = timeout_s
        self._level = Need.OVERVIEW

    def read(self, need: Need, progress: "Callable[[float], None]") -> "Snapshot":
        """Join the feed as far as needed, then freeze the table at one epoch."""
        if need is Need.OVERVIEW:
            return self._session.overview()
        if need is Need.DECISIONS:
            from agent.session import DECISIONS_KEPT  # noqa: PLC0415 - see the invariant

            return self._session.overview(decisions=DECISIONS_KEPT)
        if need is Need.QUICK:
            try:
                self._join(Need.CONTENT, progress, min(QUICK_S, self._timeout_s))
            except (UnsupportedError, DeadlineError) as error:
                return self._without_table(error)
        elif need is Need.EVIDENCE:
            return self._evidence(progress)
        else:
            self._join(need, progress, self._timeout_s)
        self._session.poll()
        return self._session.snapshot(tables=need is not Need.CONTENT, free_list=need is Need.REFERENCES)

    def _evidence(self, progress: "Callable[[float], None]") -> "Snapshot":
        """Return everything that the gates ask for; without a feed what there is, so that they abstain."""
        from agent.collect import MAX_LOOKUPS, collect  # noqa: PLC0415 - see the invariant

        try:
            self._join(Need.EVIDENCE, progress, self._timeout_s)
        except UnsupportedError as error:
            return collect(self._session, self._without_table(error))
        self._session.poll()
        return collect(self._session, self._session.snapshot(tables=True, free_list=True, lookups=MAX_LOOKUPS))

    def _without_table(self, error: "KvctlError") -> "Snapshot":
        """Return the overview with the reason why there is no page table."""
        snapshot = self._session.overview()
        note = f"the page table was not read: {error.why or error.what}"
        return replace(snapshot, capture=replace(snapshot.capture, notes=(*snapshot.capture.notes, note)))

    def with_contract(self, snapshot: "Snapshot") -> "Snapshot":
        """Add the contract now in force, as far as engine and workers tell it."""
        from agent.fingerprint import kept  # noqa: PLC0415 - see the invariant

        return kept(self._session, snapshot, deadline_s=self._timeout_s)

    @property
    def geometry(self) -> "Geometry":
        """The engine's groups."""
        return self._session.geometry

    def fresh_decisions(self) -> "tuple[Decision, ...]":
        """Return the explained decisions that have come since the last call."""
        return self._session.poll()

    def rest(self, seconds: float) -> None:
        """Wait, and keep up with the engine."""
        self._session.rest(seconds)

    def follow(self, progress: "Callable[[float], None]") -> None:
        """Join the feed so that decisions come explained."""
        self._join(Need.CONTENT, progress, self._timeout_s)

    def _join(self, need: Need, progress: "Callable[[float], None]", deadline_s: float) -> None:
        from agent.model.snapshot import Level  # noqa: PLC0415 - see the invariant

        if self._level >= need:
            return
        level = Level.REFERENCES if need >= Need.REFERENCES else Level.CONTENT
        if need >= Need.EVIDENCE:
            self._session.borrows = False
        self._session.follow(level, progress=progress, deadline_s=deadline_s)
        self._level = need


@contextmanager
def open_session(target: Target, timeout_s: float) -> "Iterator[Session]":
    """Open a session with a live engine and close it again."""
    from agent.session import open_target  # noqa: PLC0415 - see the invariant

    session = open_target(pid=target.pid, name=target.engine, socket=target.socket, deadline_s=timeout_s)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def open_source(target: Target, timeout_s: float) -> Iterator[FileSource | LiveSource]:
    """Open what a read command reads from."""
    if target.snapshot is not None:
        yield FileSource(target.snapshot)
        return
    with open_session(target, timeout_s) as session:
        yield LiveSource(session, timeout_s)


def pause(seconds: float) -> None:
    """Wait between two readings of ``--watch``."""
    time.sleep(seconds)
