"""The probe as a whole: what it is made of, how it starts, how it is taken out, and what happens on a fork.

Invariant: :meth:`Probe.start` never raises and never waits; after :meth:`Probe.stop` the engine is as it was before.
Made by an engine adapter's entry hook; one for each engine core of a process.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import paths
from ..codec import to_plain
from ..errors import KvctlError, UnsupportedError
from ..model.groups import Geometry
from ..model.snapshot import EngineInfo, Level
from . import forks
from .auditlog import AuditLog
from .changes import Changes
from .counters import Counters
from .decisions import Recorder
from .ghost import Ghost
from .guard import Guard, Limits
from .ledger import Ledger
from .operations import Operations
from .options import Options, ring_bytes
from .safepoint import SafePoint
from .server import Server
from .stale import removal_of
from .standing import WHAT_WORKS, Standing
from .weightwalk import Readings

if TYPE_CHECKING:
    from ..engines.base import Adapter

KILL_S = 10.0
"""How long the kill file waits for a safe point before the hooks are taken out from beside the engine's thread."""


class Probe:
    """One engine's probe.

    Args:
        adapter: The engine.
        log: Receives single lines.
        turn: Lock of an engine that has no thread while it idles.
        limits: What the host tolerates.
        environ: Environment; the process's own by default.
    """

    def __init__(
        self,
        adapter: "Adapter",
        *,
        log: Callable[[str], None] | None = None,
        turn: Any | None = None,
        limits: Limits | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        env = dict(os.environ) if environ is None else environ
        self.adapter = adapter
        self.log = log
        self.guard = Guard(limits=limits, log=log)
        self.options = Options()
        self.counters = Counters()
        self.ledger = Ledger()
        self.ghost = Ghost(self.options["ghost_keys"])
        self.recorder = Recorder(self.options, self.counters)
        self.safe_point = SafePoint(self.guard, adapter.wake, turn=turn)
        self.safe_point.catch_up = self.dispatched
        # The first to be registered is the last to run: nothing waits for an engine that is no longer hooked.
        self.guard.on_open(self.safe_point.fail_all)
        self.standing = Standing(self.guard, allow_changes=env.get("KVCTL_ALLOW_CHANGES") == "1")
        self.changes = Changes(self)
        self.info = EngineInfo(pid=os.getpid(), start_ticks=0, engine=adapter.engine, version="", model="")
        self.geometry = Geometry(groups=(), hash_unit=1, alignment=1, caching=False)
        self.geometry_plain: Any = None  # as JSON values: it never changes and is part of many answers
        self.pages = 0
        self.feed: Any = None
        self.readings: Readings | None = None
        self.server: Server | None = None
        self.audit_log = AuditLog(None, (0, 0))
        self._environ = env
        self.outputs: dict[int, int] = {}
        self.unsettled = False
        """A schedule call returned, and what was left for the shadow of its batch is not done."""
        self.before_shadow: Callable[[], object] | None = None
        """What an adapter left for the shadow of the batch."""
        self.scheduled: Iterable[str] = ()  # by the call that is unsettled
        self.ahead = 0  # the schedule call that the feed was told of as soon as the one before it was settled
        self._kill_at: float | None = None
        self._stopping = 0  # no; then it counts the ticks until the socket goes

    # -------------------------------------------------------------- start, stop

    def start(self) -> bool:
        """Describe the engine, put in the hooks, listen. Engine's thread; never raises.

        Returns:
            Whether the probe runs. Parts that cannot work are off with a reason, the rest works.
        """
        folder = self.guard.attempt(paths.own_folder, self._environ).value
        if folder is not None and (folder / paths.KILL_FILE).exists():
            # Not left to the first tick: an operator who put it there wants no hook in this engine at all.
            self._say(f"probe not started: {folder / paths.KILL_FILE} exists")
            self.guard.open(f"{folder / paths.KILL_FILE} exists")
            return False
        started = self.guard.attempt(self._start)
        if started.error is not None:
            self._say(f"probe not started: {type(started.error).__name__}: {started.error}")
            self.guard.open(f"not started: {started.error}")
            return False
        return True

    def _start(self) -> None:
        adapter = self.adapter
        ticks = paths.start_ticks(os.getpid()) or 0
        self.info = self._try("overview", adapter.info) or self.info
        self.geometry = self._try("geometry", adapter.geometry) or self.geometry
        self.geometry_plain = to_plain(self.geometry)
        self.standing.found = adapter.capabilities()
        pool = self._try("pool", adapter.pool)
        self.pages = pool.pages if pool is not None else 0
        self._start_feed()
        self.recorder.feed = self.feed
        self.guard.on_open(adapter.uninstall)
        adapter.install(self)
        self._listen(ticks)
        forks.watch(self)
        if self.standing.has("weights_digest"):
            self.readings = Readings(self.safe_point, adapter)
            self.readings.ask()

    def _start_feed(self) -> None:
        if not self.standing.has("feed"):
            return
        self.feed = self._try("feed", self._make_feed)
        if self.feed is not None:
            self.guard.on_open(self.feed.uninstall)

    def _make_feed(self) -> Any:
        from .feed import Feed  # noqa: PLC0415 - an engine without a feed never loads it

        feed = Feed(self.adapter.pool_port(), ring_bytes=ring_bytes(self._environ), on_off=self._feed_off)
        feed.install()
        if feed.reason is not None:
            raise UnsupportedError(feed.reason)
        self.ghost.width = feed.stamps.hash_bytes
        feed.stamps.remember = self.ghost.sink
        if (removal := removal_of(self, self._environ)) is not None:
            feed.on_weights_change = removal.changed
        # Keys that were registered before the probe came are not known to the ghost set.
        pool = self.adapter.pool()
        self.ghost.complete = self.ghost.complete and not pool.keys
        return feed

    def _feed_off(self, reason: str) -> None:
        self.standing.off["feed"] = reason
        self._say(f"feed is off: {reason}")

    def _listen(self, ticks: int) -> None:
        folder = self._try("socket", lambda: paths.own_folder(self._environ))
        if folder is None:
            return
        self.audit_log = AuditLog(folder / paths.AUDIT_FILE, (os.getpid(), ticks))
        taken = {probe.server.path.name for probe in forks.running() if probe.server is not None}
        own = (paths.SocketName(pid=os.getpid(), start_ticks=ticks, part=part) for part in range(len(taken) + 1))
        name = next(name for name in own if name.text() not in taken)
        kill_file = folder / paths.KILL_FILE

        def listen() -> Server:
            server = Server(
                folder,
                name,
                Operations(self),
                self.guard,
                allowed=paths.allowed_uids(self._environ),
                on_tick=lambda: self._tick(kill_file),
            )
            server.start()
            return server

        self.server = self._try("socket", listen)
        if self.server is not None:
            self._say(f"listening on {self.server.path}")

    def _try(self, name: str, fn: Callable[[], Any]) -> Any:
        attempt = self.guard.attempt(fn)
        if attempt.error is not None:
            why = f": {attempt.error.why}" if isinstance(attempt.error, KvctlError) and attempt.error.why else ""
            self.standing.off[name] = f"{attempt.error}{why}"[:500]
            self._say(f"{name} is off: {self.standing.off[name]}")
        return attempt.value

    def _tick(self, kill_file: Path) -> None:
        self.safe_point.expire()
        if self._stopping:
            # Only at the second tick: the answer to `stop` is sent by then.
            self._stopping += 1
            if self._stopping > 2 and self.server is not None:
                self.server.stop()
        elif self.guard.on and kill_file.exists():
            self._obey(f"{kill_file} exists")

    def _obey(self, reason: str) -> None:
        """Stop at a safe point, or from here where none comes: the engine's thread may be inside a hook right now."""
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + KILL_S
            self.safe_point.submit(
                lambda: self.stop_soon(reason), label="stop", deadline_s=KILL_S, done=lambda _job: None
            )
        elif now > self._kill_at:
            self.stop_soon(reason)

    def stop_soon(self, reason: str) -> None:
        """Take the hooks out now, and the socket a moment later. Engine's thread, or any in need."""
        self.guard.open(reason)
        self._stopping = self._stopping or 1

    def stop(self, reason: str = "the engine is shutting down") -> None:
        """Take the probe out: hooks, feed, jobs, socket. Any thread; does not wait for the engine."""
        self.guard.open(reason)
        server, self.server = self.server, None
        if server is not None:
            server.stop()
            server.join(2.0)
        forks.forget(self)

    def abandon(self) -> None:
        """In a forked child: this process has no engine of ours. Hooks are passages from now on."""
        self.guard.on, self.guard.reason = False, "this process is a fork of the engine"
        server, self.server = self.server, None
        if server is not None:
            server.abandon()

    def _say(self, line: str) -> None:
        if self.log is not None:
            self.guard.attempt(self.log, line)

    # -------------------------------------------------------------------- hooks

    def begin_schedule(self) -> None:
        """A schedule call begins. Engine's thread."""
        step = self.recorder.step + 1
        try:
            self.dispatched()
        finally:  # the new batch has a number of its own, whatever became of the last one
            self.recorder.step = step
        feed = self.feed
        if feed is not None and (self.ahead != step or feed.stamps.log):
            feed.before_schedule(step)

    def end_schedule(self, output: object, scheduled: Iterable[str]) -> None:
        """A schedule call returned: only noted here, the batch waits. Engine's thread."""
        self.outputs[id(output)] = self.recorder.step
        self.scheduled = scheduled
        self.unsettled = True

    def dispatched(self) -> None:
        """The batch is on its way to the device: do what is left to do for its schedule call. Engine's thread."""
        if not self.unsettled:
            return
        self.unsettled = False
        scheduled, self.scheduled = self.scheduled, ()
        self.guard.step()
        if len(self.outputs) > 64:
            self.outputs.pop(next(iter(self.outputs)))
        if self.before_shadow is not None:
            self.before_shadow()
        feed, step = self.feed, self.recorder.step
        if feed is not None:
            feed.dispatched(step, scheduled)
            self.ahead = step + 1

    def begin_update(self, _output: object) -> None:
        """Results are about to be processed. Engine's thread."""
        self.dispatched()
        if self.feed is not None and self.feed.stamps.log:
            self.feed.stamps.fold()

    def end_update(self, output: object) -> None:
        """Results were processed. Engine's thread."""
        step = self.outputs.pop(id(output), None)
        if self.feed is not None and step is not None:
            self.feed.updated(step)

    def between_steps(self, *, idle: bool) -> None:
        """Nothing of the engine runs. Engine's thread."""
        if self.safe_point.waiting or (idle and self.safe_point.idle_work is not None):
            self.safe_point.drain(idle=idle)

    # --------------------------------------------------- at a safe point: reads

    def copy(self, *, tables: bool, holders: bool) -> dict[str, Any]:
        """Copy the small tables. Engine's thread, at a safe point."""
        begin = time.monotonic_ns()
        adapter = self.adapter
        notes: list[str] = []

        def part(name: str, read: Callable[[], Any]) -> Any:
            if not self.standing.has(name):
                return None
            attempt = self.guard.attempt(read)
            if attempt.error is not None:
                notes.append(f"{name} could not be read: {attempt.error}"[:300])
            return attempt.value

        copied = {
            "epoch": self.cut() if self.feed is not None else None,
            "pool": part("pool", adapter.pool),
            "requests": part("requests", lambda: adapter.requests(tables=tables)),
            "holders": part("holders", adapter.holders) if holders else None,
            "tiers": part("tiers", adapter.tiers),
            # Only adapters with the capability of that name have it.
            "evidence": part("evidence", adapter.evidence) if holders else None,
            "step": self.recorder.step,
            "taken_ns": time.time_ns(),
            "notes": notes,
        }
        return {**copied, "duration_ns": time.monotonic_ns() - begin}

    def cut(self) -> int:
        """Publish what changed; return the epoch. Engine's thread."""
        return int(self.feed.cut()) if self.feed is not None else 0

    def join(self, level: Level, *, explain: bool) -> dict[str, Any]:
        """Join a reader. Engine's thread."""
        from .feed import FeedOffError  # noqa: PLC0415 - an engine without a feed never loads it

        try:
            self.feed.join(level)
        except FeedOffError as error:
            what = "`feed` does not work on this engine"
            raise UnsupportedError(what, why=str(error), next_step=WHAT_WORKS) from error
        if explain:
            self.recorder.explaining += 1
        self.safe_point.idle_work = self.feed.idle
        return {"descriptor": self.feed.ring_fd, "pages": self.pages, "epoch": self.cut(), "ring": self.feed_status()}

    def leave(self, level: Level, *, explain: bool) -> None:
        """A reader left. Engine's thread."""
        if explain:
            self.recorder.explaining -= 1
        if self.guard.on:
            self.feed.leave(level)
            self.safe_point.idle_work = None if self.feed.ring_fd is None else self.feed.idle

    def bootstrap(self) -> int:
        """Have the whole table put into the ring. Engine's thread."""
        self.feed.request_bootstrap()
        return self.cut()

    def audit(self) -> int:
        """Put a checksum of the table into the ring. Engine's thread."""
        epoch = self.cut()
        self.feed.audit()
        return epoch

    def options_changed(self) -> None:
        """Take over changed options. Engine's thread."""
        self.recorder.resize()
        self.ghost.resize(self.options["ghost_keys"])
        if self.feed is not None:
            self.feed.stamps.remember = self.ghost.sink

    # ------------------------------------------------------------- descriptions

    def feed_status(self) -> dict[str, Any]:
        """Describe the feed."""
        if self.feed is None:
            return {"on": False, "reason": self.standing.off.get("feed")}
        with contextlib.suppress(RuntimeError):
            return {"on": True, **self.feed.status()}
        return {"on": True}

    def read_counters(self) -> dict[str, float]:
        """Return all counters. Any thread."""
        guard = self.guard
        return self.counters.read(
            {
                "probe_overhead_seconds": guard.spent_ns / 1e9,
                "probe_safepoint_seconds": self.safe_point.spent_ns / 1e9,
                "probe_errors": guard.errors,
                "probe_breaker_open": 0.0 if guard.on else 1.0,
                "engine_steps": self.recorder.step,
                "ghost_keys": len(self.ghost),
                "ghost_forgotten": self.ghost.forgotten,
                **(self.changes.read() | self.ledger.read() | getattr(self.adapter, "counters", dict)()),
            }
        )

    def readers(self) -> int:
        """Return the number of connections."""
        return 0 if self.server is None else self.server.readers
