"""A conversation with one live engine: overview, following its page table, snapshots, explained decisions.

Invariant: a snapshot states how consistent it is and never mixes epochs silently; no call waits longer than its
deadline. The command line, the inspector and the exporters use live engines through this module only; not thread-safe.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import paths, replies
from .client import Client
from .discovery import Endpoint, EndpointState, discover, endpoint_at
from .errors import TargetError, UsageError
from .explainedformat import knowledge
from .follower import Follower
from .lineage import standing_for, stranger
from .model.decision import Decision
from .model.groups import Geometry
from .model.snapshot import Consistency, EngineInfo, Level, Snapshot
from .sharing import Sharing

DEFAULT_DEADLINE_S = 10.0
REST_S = 0.25
"""Between two looks at the ring while nobody asks for anything."""
DECISIONS_KEPT = 1000
"""Decisions in a snapshot: as many as the probe names at first."""


class Session:
    """One engine, one connection. Open it with :meth:`open` or :func:`open_target`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.info: EngineInfo = replies.engine(client.hello)
        self._geometry: Geometry | None = None
        self._follower: Follower | None = None
        self.serves = True
        """Whether it hands its page table on if it stays; what must leave no file when it is killed does not."""
        self._sharing = Sharing(client)
        self.borrows = True
        """Whether it takes over the page table of a reader that stays. What judges the engine, or changes it, does not:
        a reader's memory may be wrong where no checksum looks."""
        self._listed: dict[int, Decision] = {}
        """The latest decisions that the probe named, explained as far as others did that."""
        self._last_id = 0

    @classmethod
    def open(cls, endpoint: Endpoint, *, deadline_s: float = 5.0) -> Self:
        """Connect to an engine that discovery found.

        Raises:
            TargetError: It cannot be reached, or it is not the engine that its socket's name says.
            DeadlineError: Nobody answered in time.
        """
        return cls(Client(endpoint, deadline_s=deadline_s))

    @property
    def endpoint(self) -> Endpoint:
        """Where this session is connected."""
        return self._client.endpoint

    @property
    def geometry(self) -> Geometry:
        """The cache groups; read once (an engine never changes them)."""
        if self._geometry is None:
            self._geometry = replies.geometry(self._client.call("geometry"))
        return self._geometry

    def call(self, op: str, /, *, deadline_s: float = DEFAULT_DEADLINE_S, **args: Any) -> dict[str, Any]:
        """Run any operation of :data:`agent.wire.OPS`; the result is always an object."""
        result = self._client.call(op, deadline_s=deadline_s, **args)
        return result if isinstance(result, dict) else {"value": result}

    def overview(self, *, decisions: int = 64, deadline_s: float = DEFAULT_DEADLINE_S) -> Snapshot:
        """Read everything that needs no page table, at one safe point."""
        plain = self._client.call("overview", decisions=decisions, deadline_s=deadline_s)
        snapshot = replies.overview(plain)
        self._geometry = snapshot.geometry
        return replace(snapshot, decisions=self._told(snapshot.decisions or ()))

    def decisions(self, *, since: int = 0, limit: int = 1000) -> tuple[Decision, ...]:
        """Read decisions after number ``since`` from the probe's own ring; oldest first.

        They are explained where this session, or another reader, followed the engine when they were made.
        """
        return self._told(replies.decisions(self._client.call("decisions", since=since, limit=limit)))

    @property
    def not_shared(self) -> str | None:
        """Why this engine's agent does not pass on what its readers explain; None where it does."""
        return self._sharing.off

    def _told(self, found: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """Explain decisions as far as this session or any other reader did."""
        if not found:
            return found
        told = {item.id: item for item in self._sharing.told(found, groups=len(self.geometry.groups))}
        own = () if self._follower is None else self._follower.recent_decisions()
        return _merged(told, (item for item in own if item.id in told))

    def follow(
        self,
        level: Level = Level.CONTENT,
        *,
        progress: Callable[[float], None] | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        """Join the feed and wait until the whole page table is here.

        Args:
            level: How much of the table to follow; a session that follows already is raised to it if need be.
            progress: Receives 0 to 1 while the table arrives.
            deadline_s: For the whole bootstrap.

        Raises:
            UnsupportedError: The feed is off on this engine; the reason says why.
            DeadlineError: The table did not arrive in time.
        """
        if self._follower is not None and self._follower.covers(level):
            return
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        follower = Follower(self._client, self.geometry, level, on_explained=self._sharing.add)
        try:
            follower.bootstrap(progress=progress, deadline_s=deadline_s, borrows=self.borrows)
        except BaseException:
            follower.close()
            raise
        self._follower = follower

    def poll(self) -> tuple[Decision, ...]:
        """Apply what is in the ring; return the decisions it held, explained, oldest first.

        Does not wait, but for a moment where the page table was lost and comes anew.

        Raises:
            TargetError: The engine ended; decisions that it left in the ring are returned first.
        """
        if self._follower is None:
            raise UsageError("this session does not follow the engine yet", next_step="call follow first")
        try:
            self._follower.keep_up()
        except TargetError:
            if left := self._follower.take_decisions():
                return left
            raise
        self._behind()
        return self._follower.take_decisions()

    def rest(self, seconds: float) -> None:
        """Wait; where the engine is followed it still is, and others are served. Decisions stay for :meth:`poll`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(left if self._follower is None else min(left, REST_S))
            if self._follower is None:
                continue
            try:
                self._follower.keep_up()
            except TargetError:
                return  # whatever is read next says so
            self._behind()

    def _behind(self) -> None:
        """Pass on what other readers can use; does not wait."""
        self._sharing.post()
        if self.serves and self._follower is not None:
            self._follower.serve()

    def snapshot(
        self,
        *,
        tables: bool = True,
        free_list: bool = False,
        lookups: int = 0,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> Snapshot:
        """Read everything at one epoch: the page table, and at the same safe point pool, requests and holders.

        Args:
            tables: Read the page table of every request.
            free_list: Walk the engine's free list and copy its hash table, too.
            lookups: Have the engine look up so many of its requests at the same safe point, without effect.
            deadline_s: For the read itself; following begins first where it has not.
        """
        begin = time.monotonic_ns()
        if self._follower is None:
            self.follow()
        assert self._follower is not None  # noqa: S101 - for the type checker
        # Before the table, so that none is later than the moment that the table shows.
        self._remember(replies.decisions(self._client.call("decisions", since=self._last_id, limit=DECISIONS_KEPT)))
        plain = self._client.call(
            "read",
            tables=tables,
            free_list=free_list,
            hash_table=free_list,
            deadline_s=deadline_s,
            **({"lookups": lookups} if lookups else {}),
        )
        pages, consistency, notes = self._follower.pages_at(plain.get("epoch"), deadline_s=deadline_s)
        self._sharing.post()
        if plain.get("free_list_torn"):
            consistency = Consistency.TORN
            notes = (*notes, "the free list changed while it was walked")
        return replies.full(
            plain,
            pages=pages,
            level=self._follower.level,
            consistency=consistency,
            notes=notes,
            duration_ns=time.monotonic_ns() - begin,
            decisions=_merged(self._listed, self._follower.recent_decisions()),
        )

    def _remember(self, found: Iterable[Decision]) -> None:
        """Keep what the probe named, so that it is asked for new decisions only."""
        self._listed.update((item.id, item) for item in found)
        self._last_id = max(self._listed, default=0)
        for number in sorted(self._listed)[:-DECISIONS_KEPT]:
            del self._listed[number]
        # All of them: some were not explained yet, or not posted, when they were named.
        listed = tuple(self._listed[number] for number in sorted(self._listed))
        self._listed.update((item.id, item) for item in self._told(listed))

    def close(self) -> None:
        """Leave the feed and close the connection."""
        if self._follower is not None:
            self._sharing.post(last=True)
            self._follower.close()
            self._follower = None
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _merged(listed: dict[int, Decision], explained: Iterable[Decision]) -> tuple[Decision, ...]:
    """Return the decisions that the probe remembers, explained by who knows most of them, this session first."""

    def better(item: Decision) -> bool:
        other = listed.get(item.id)
        return other is None or other.logical is None or knowledge(item) >= knowledge(other)

    both = listed | {item.id: item for item in explained if better(item)}
    return tuple(both[number] for number in sorted(both))


def open_target(
    pid: int | None = None,
    *,
    name: str | None = None,
    socket: Path | None = None,
    trusted: Iterable[int] = (),
    deadline_s: float = 5.0,
) -> Session:
    """Open the engine that an operator means; with one engine on the host nothing need be named.

    Args:
        pid: Process id of the engine core, or of one above it that stands for it (API server, launcher).
        name: Served model name.
        socket: Path of its socket.
        trusted: Uids besides the caller's own whose sockets may be used.
        deadline_s: For connecting.

    Raises:
        TargetError: None fits, or several do; the sentence lists them.
    """
    if socket is not None:
        return Session.open(endpoint_at(socket, trusted=trusted), deadline_s=deadline_s)
    endpoints = discover(trusted=trusted)
    live = [endpoint for endpoint in endpoints if endpoint.state is EndpointState.LIVE]
    if pid is not None:
        return Session.open(_by_pid(pid, live, endpoints), deadline_s=deadline_s)
    if name is not None:
        return _by_name(name, live, deadline_s)
    if len(live) == 1:
        return Session.open(live[0], deadline_s=deadline_s)
    raise _none_or_several(live, endpoints)


def _by_pid(pid: int, live: list[Endpoint], endpoints: list[Endpoint]) -> Endpoint:
    below = standing_for(pid, live)
    if len(below) == 1:
        return below[0]
    if below:
        listed = ", ".join(str(endpoint.pid) for endpoint in below)
        raise TargetError(
            f"process {pid} has {len(below)} engine cores",
            why=f"pids {listed}",
            next_step="name one of them with --pid",
        )
    other = next((endpoint for endpoint in endpoints if endpoint.pid == pid), None)
    if other is not None:
        raise TargetError(f"the engine of process {pid} cannot be used", why=other.reason, next_step="see kvctl doctor")
    raise stranger(pid, live)


def _by_name(name: str, live: list[Endpoint], deadline_s: float) -> Session:
    found: list[Session] = []
    for endpoint in live:
        try:
            session = Session.open(endpoint, deadline_s=deadline_s)
        except TargetError:
            continue
        if name in {session.info.name, session.info.model}:
            found.append(session)
        else:
            session.close()
    if len(found) == 1:
        return found[0]
    pids = ", ".join(str(session.info.pid) for session in found)
    for session in found:
        session.close()
    if found:
        raise TargetError(f"{len(found)} engines serve this name", why=f"pids {pids}", next_step="name one with --pid")
    raise TargetError("no engine serves this name", next_step="to list the engines of this host: kvctl ps")


def _none_or_several(live: list[Endpoint], endpoints: list[Endpoint]) -> TargetError:
    if live:
        listed = ", ".join(str(endpoint.pid) for endpoint in live)
        return TargetError(
            f"{len(live)} engines run on this host", why=f"pids {listed}", next_step="name one with --pid or --engine"
        )
    reasons = "; ".join(f"{endpoint.path.name}: {endpoint.reason}" for endpoint in endpoints if endpoint.reason)
    deaf = paths.deaf()
    return TargetError(
        "no engine with an agent runs on this host",
        why=reasons or (None if deaf is None else f"no agent can listen here: {deaf}"),
        next_step="start one with `kvctl run -- vllm serve ...`" if deaf is None else "see kvctl doctor",
    )
