"""A feed without an engine, its readers, and who hands a table over or pretends to.

Invariant: the socket, its files and the memory are real; only the pool is small. Whoever hands over has a thread of its
own, as in a dashboard: the one that asks waits for it.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from agent import paths, readers
from agent.borrowing import Loan, borrow
from agent.discovery import Endpoint, EndpointState
from agent.follower import Follower
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Level
from agent.model.states import GroupId, ResumeKind, State
from agent.probe.connection import listen
from agent.probe.feed import Feed
from agent.serving import TableServer
from agent.table import RingReader, Table
from tests.support.fake_pool import FakePool

if TYPE_CHECKING:
    from agent.client import Client

GROUPS = 5
COLUMNS = ("key", "group", "tokens", "stamp", "parent", "references", "free")


@dataclass(slots=True)
class Lending:
    """A pool with its feed, and the readers that a test makes."""

    folder: Path
    pages: int = 200
    ring_bytes: int = 1 << 18
    pool: FakePool = field(init=False)
    feed: Feed = field(init=False)

    def __post_init__(self) -> None:
        """Install the feed."""
        self.pool = FakePool(self.pages)
        self.feed = Feed(self.pool, ring_bytes=self.ring_bytes)
        self.feed.install()

    @property
    def engine(self) -> Endpoint:
        """Where an engine with this pool would listen: in this process."""
        pid = os.getpid()
        ticks = paths.start_ticks(pid) or 0
        path = self.folder / paths.SocketName(pid=pid, start_ticks=ticks).text()
        return Endpoint(
            path=path, pid=pid, start_ticks=ticks, part=0, uid=os.geteuid(), state=EndpointState.LIVE, reason=None
        )

    def join(self, level: Level = Level.CONTENT) -> RingReader:
        """Join without a table."""
        self.feed.join(level)
        fd = self.feed.ring_fd
        assert fd is not None
        return RingReader(fd, level=level, on_bootstrap=self.feed.request_bootstrap)

    def bootstrapped(self, level: Level = Level.CONTENT) -> RingReader:
        """Join, and get the table from the engine."""
        reader = self.join(level)
        reader.restart()
        self.catch_up(reader)
        return reader

    def catch_up(self, *found: RingReader) -> None:
        """Let the engine send what is asked for, and readers apply it."""
        while self.feed.idle():
            for reader in found:
                reader.poll()
        for reader in found:
            reader.poll()

    def work(self, pages: int = 5, *, name: str = "one", group: int = 3) -> list[int]:
        """Admit a request, and publish what it changed; return its pages."""
        request = self.pool.request(name, pages)
        self.pool.register(request, 0, pages, group=group)
        self.feed.cut()
        return [page.number for page in request.table]

    def borrowed(self, ring: RingReader, *, deadline_s: float = 20.0) -> Loan | None:
        """Ask this engine's readers."""
        return borrow(self.engine, ring, groups=GROUPS, deadline_s=deadline_s)

    def audit(self, *found: RingReader) -> None:
        """Have readers compare their tables with the pool."""
        before = [reader.audits for reader in found]
        self.feed.audit()
        for reader, audits in zip(found, before, strict=True):
            reader.poll()
            assert (reader.audits, reader.failed_audits, reader.table.mismatches) == (audits + 1, 0, 0)


class PooledEngine:
    """The connection to an engine that is such a pool: each look whether it lives lets it work once, as if it idled.

    Args:
        lending: The pool.
    """

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._level = Level.CONTENT
        self.endpoint = lending.engine
        self.bootstraps = 0

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        """Join, leave, or ask for the table."""
        feed = self._lending.feed
        if op == "join":
            self._level = Level(args["level"])
            feed.join(self._level)
        elif op == "leave":
            feed.leave(self._level)
        elif op == "bootstrap":
            self.bootstraps += 1
            feed.request_bootstrap()
        else:
            raise AssertionError(op)
        return {}

    def take_descriptor(self) -> int:
        """The ring."""
        fd = self._lending.feed.ring_fd
        assert fd is not None
        return os.dup(fd)

    def alive(self) -> bool:
        """It is, and works."""
        self._lending.feed.idle()
        return True


def follower(lending: Lending, level: Level = Level.CONTENT) -> tuple[Follower, PooledEngine]:
    """Join as a session does; the table is not there yet."""
    client = PooledEngine(lending)
    group = Group(id=GroupId(0), name="full16#0", states=(State.COMPRESSED,), kind=ResumeKind.FULL, block_size=16)
    groups = tuple(replace(group, id=GroupId(number)) for number in range(GROUPS))
    geometry = Geometry(groups=groups, hash_unit=16, alignment=16)
    return Follower(cast("Client", client), geometry, level), client


def adopt(ring: RingReader, loan: Loan | None) -> None:
    """Go on from a table that was handed over."""
    assert loan is not None
    ring.adopt(loan.table, loan.position, loan.sequence)


def same(one: Table, two: Table, *, parents: bool = True, references: bool = False) -> None:
    """Hold two tables against each other, column by column."""
    left_out = {
        name for name, wanted in (("parent", parents), ("references", references), ("free", references)) if not wanted
    }
    for name in COLUMNS:
        if name not in left_out:
            assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert (one.never, one.tainted) == (two.never, two.tainted)
    assert {page: set(keys) for page, keys in one.extra.items()} == {
        page: set(keys) for page, keys in two.extra.items()
    }
    assert (one.epoch, one.committed_step, one.complete) == (two.epoch, two.committed_step, two.complete)
    assert one.checksum(references=references) == two.checksum(references=references)


@contextmanager
def _running(turn: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Do something again and again on another thread, until the context is left."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.002):
            turn()
        end()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


@contextmanager
def serving(
    lending: Lending, reader: RingReader, *, allowed: frozenset[int] | None = None
) -> Iterator[list[TableServer]]:
    """Let a reader hand its table over; it must not poll meanwhile."""
    opened: list[TableServer] = []
    ready = threading.Event()

    def turn() -> None:
        if not opened:
            server = TableServer.open(lending.engine)
            assert server is not None
            if allowed is not None:
                server._allowed = allowed
            opened.append(server)
            ready.set()
        opened[0].serve(reader)

    def end() -> None:
        opened[0].close()

    with _running(turn, end):
        assert ready.wait(30)
        yield opened


@contextmanager
def pretending(
    lending: Lending, answer: Callable[[socket.socket], object], *, pid: int | None = None
) -> Iterator[Path]:
    """Listen as a reader of the engine would, under a thread's number that nobody has, and answer as the test wants."""
    own = os.getpid() if pid is None else pid
    numbers = (*readers.identity(lending.engine), own, paths.start_ticks(own) or 0, 1)
    name = f"reader-{'-'.join(map(str, numbers))}.sock"
    assert readers.READER_NAME.match(name)
    listener = listen(lending.folder, name, 4)
    held: list[socket.socket] = []

    def turn() -> None:
        try:
            link, _ = listener.accept()
        except BlockingIOError:
            return
        link.settimeout(5)
        held.append(link)
        answer(link)

    def end() -> None:
        for link in (listener, *held):
            link.close()

    with _running(turn, end):
        yield lending.folder / name
