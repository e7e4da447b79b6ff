"""What the questions on the socket mean.

Invariant: a question either is answered at once from the probe's own state, or becomes a job for a safe point; its
answer is turned into JSON on the probe's thread. Reading changes nothing; what changes something is refused unless the
engine was started with ``KVCTL_ALLOW_CHANGES=1``. Called by ``server`` on the probe's thread.
"""

import inspect
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from .. import wire
from ..codec import to_plain
from ..errors import ProtocolError, UnsupportedError, UsageError
from ..model.snapshot import Level
from .answers import (
    Deferred,
    FreeListWalk,
    Reader,
    copy_plain,
    group_keys_from,
    keys_from,
    natural,
    pack,
    request_plain,
)
from .explained import Explained
from .safepoint import AGAIN, SafePoint
from .sampling import sample_lookups
from .worker_operations import WorkerOperations

if TYPE_CHECKING:
    from ..engines.base import TableAdapter
    from .lifecycle import Probe

MAX_DEADLINE_S: Final = 600.0
DEFAULT_DEADLINE_S: Final = 10.0
MAX_DECISIONS: Final = 20_000
MAX_LOOKUPS: Final = 256


class Operations(WorkerOperations):
    """Answer questions.

    Args:
        probe: Whose engine it is.
    """

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self.safe_point: SafePoint = probe.safe_point
        self._explained = Explained(groups=len(probe.geometry.groups))

    def hello(self) -> dict[str, Any]:
        """Return the greeting that describes this engine."""
        probe = self._probe
        return {
            "protocol": wire.PROTOCOL,
            "engine": to_plain(probe.info),
            "readers": probe.readers(),
            "ops": sorted(name for name in wire.OPS if hasattr(self, f"op_{name}")),
        }

    def ask(self, reader: Reader, message: Mapping[str, Any]) -> Any:
        """Answer a question; a :class:`Deferred` where the engine's thread is needed.

        Raises:
            KvctlError: The question cannot be answered.
        """
        op, args = message.get("op"), message.get("args") or {}
        if not isinstance(op, str) or op not in wire.OPS or not isinstance(args, dict):
            raise ProtocolError("the question cannot be understood", why=f"operation {str(op)[:40]!r}")
        answer: Callable[..., Any] | None = getattr(self, f"op_{op}", None)
        if answer is None:
            raise UnsupportedError(f"this agent does not answer `{op}`", why="it is not implemented for this engine")
        deadline = message.get("deadline_ms")
        seconds = deadline / 1000 if isinstance(deadline, int) and deadline > 0 else DEFAULT_DEADLINE_S
        try:
            inspect.signature(answer).bind(reader, **args)
        except TypeError as error:
            raise UsageError(f"`{op}` does not take these arguments", why=str(error)) from error
        answered = answer(reader, **args)
        if isinstance(answered, Deferred):
            return replace(answered, deadline_s=min(seconds, MAX_DEADLINE_S))
        return answered

    def left(self, reader: Reader) -> None:
        """A reader is gone: leave the feed for it. Probe's thread."""
        level, reader.level = reader.level, None
        if level is not None:
            explain, reader.explain = reader.explain, False
            self.safe_point.submit(
                lambda: self._probe.leave(level, explain=explain),
                label="leave",
                deadline_s=MAX_DEADLINE_S,
                done=lambda _job: None,
            )

    def _job(
        self, label: str, run: Callable[[], Any], *, needs: str | None = None, finish: Callable[[Any], Any] = to_plain
    ) -> Deferred:
        self._probe.standing.require_on()
        if needs is not None:
            self._probe.standing.require(needs)
        return Deferred(label=label, deadline_s=DEFAULT_DEADLINE_S, run=run, finish=finish)

    # ------------------------------------------------- without the engine's thread

    def op_ping(self, _reader: Reader) -> dict[str, Any]:
        """Say that the probe's thread lives."""
        return {"time_ns": time.time_ns(), "steps": self._probe.recorder.step, "guard": self._probe.guard.state()}

    def op_geometry(self, _reader: Reader) -> Any:
        """Describe the groups."""
        return self._probe.geometry_plain

    def op_capabilities(self, _reader: Reader) -> dict[str, Any]:
        """Say what works here."""
        probe = self._probe
        return {
            "capabilities": to_plain(probe.standing.list()),
            "guard": probe.guard.state(),
            "feed": probe.feed_status(),
            "readers": probe.readers(),
            "explained": self._explained.state(),
        }

    def op_counters(self, _reader: Reader) -> dict[str, Any]:
        """Read the counters."""
        return {"taken_ns": time.time_ns(), "counters": self._probe.read_counters()}

    def op_decisions(self, _reader: Reader, since: int = 0, limit: int = 1000) -> dict[str, Any]:
        """Read recorded decisions."""
        recorder = self._probe.recorder
        records = recorder.since(natural("since", since), min(natural("limit", limit), MAX_DECISIONS))
        return {"decisions": [to_plain(record) for record in records], "last": recorder.last}

    def op_explained(
        self, _reader: Reader, lines: str = "", since: int | None = None, after: int = 0
    ) -> dict[str, Any]:
        """Take what a reader found out about decisions, and tell what all of them found out; the engine has no part."""
        wanted = None if since is None else (natural("since", since), natural("after", after))
        last = self._probe.recorder.last
        first = max(1, last - self._probe.options["decisions_kept"] + 1)
        posted = self._explained.post(lines, first=first, last=last)
        return posted if wanted is None else {**posted, **self._explained.told(since=wanted[0], after=wanted[1])}

    def op_account(self, _reader: Reader, **post: Any) -> dict[str, Any]:
        """Keep books for the exporters; changes nothing but them."""
        return self._probe.ledger.account(post, last=self._probe.recorder.last)

    def op_seen(self, _reader: Reader, keys: str = "", before: int | None = None) -> dict[str, Any]:
        """Say which keys each group registered before a stamp."""
        chain = keys_from(keys)
        probe = self._probe
        stamp = (1 << 63) if before is None else natural("before", before)
        groups = range(len(probe.geometry.groups))
        ghost = probe.ghost
        if probe.feed is not None and probe.feed.stamps.dropped:
            ghost.complete = False
        return {
            "groups": [ghost.seen(group, chain, before=stamp) for group in groups],
            "taken": [ghost.taken(group, chain, before=stamp) for group in groups],
            "complete": ghost.complete,
            "entries": len(ghost),
            "forgotten": ghost.forgotten,
        }

    def op_options(self, reader: Reader, set: Mapping[str, Any] | None = None) -> Any:  # noqa: A002 - the wire's word
        """Read or change options."""
        probe = self._probe
        if not set:
            return probe.options.describe()
        probe.standing.require_changes("options")

        def change() -> dict[str, int]:
            changed = probe.options.set(set)
            probe.options_changed()
            probe.audit_log.write(reader.uid, reader.pid, "options", changed)
            return changed

        return self._job("options", change)

    def op_stop(self, reader: Reader) -> Any:
        """Take the probe out of the engine: always allowed, it can only make the engine safer."""
        probe = self._probe

        def stop() -> dict[str, Any]:
            probe.audit_log.write(reader.uid, reader.pid, "stop", {})
            probe.stop_soon(f"stopped by uid {reader.uid}")
            return {"stopped": True}

        return self._job("stop", stop)

    # ---------------------------------------------------- at a safe point: reads

    def op_overview(self, _reader: Reader, decisions: int = 64) -> Deferred:
        """Read everything small."""
        probe = self._probe
        wanted = min(natural("decisions", decisions), MAX_DECISIONS)

        def finish(value: dict[str, Any]) -> dict[str, Any]:
            records = probe.recorder.since(0, wanted)
            return {**copy_plain(probe, value), "decisions": [to_plain(record) for record in records]}

        return self._job("overview", lambda: probe.copy(tables=False, holders=False), finish=finish)

    def op_requests(self, _reader: Reader, tables: bool = False) -> Deferred:
        """Read requests."""
        probe = self._probe
        return self._job(
            "requests",
            lambda: probe.adapter.requests(tables=bool(tables)),
            needs="requests",
            finish=lambda rows: {"requests": [request_plain(row, probe.adapter.page_ids) for row in rows]},
        )

    def op_holders(self, _reader: Reader) -> Deferred:
        """Read references beyond request tables."""
        return self._job(
            "holders", self._probe.adapter.holders, needs="holders", finish=lambda held: {"holders": to_plain(held)}
        )

    def op_read(
        self,
        _reader: Reader,
        tables: bool = True,
        free_list: bool = False,
        hash_table: bool = False,
        lookups: int = 0,
    ) -> Deferred:
        """Read requests, pool and holders at one epoch; the free list in slices where it is long.

        With ``lookups`` the engine's finder is asked about so many of its requests at the same safe point.
        """
        probe = self._probe
        most = min(natural("lookups", lookups), MAX_LOOKUPS)
        wanted = bool(free_list)
        if wanted:
            probe.standing.require("free_list")
        walk = FreeListWalk(probe) if wanted else None

        def run() -> Any:
            if walk is not None and not walk.advance():
                return AGAIN
            copied = probe.copy(tables=bool(tables), holders=True)
            if most and probe.standing.has("engine_hit") and probe.standing.has("chain"):
                copied["lookups"] = self._look_ups(copied, most)
            if hash_table and probe.standing.has("hash_table"):
                copied["hash_table"] = cast("TableAdapter", probe.adapter).hash_table()
            return {**copied, **(walk.result() if walk else {})}

        return self._job("read", run, finish=lambda value: copy_plain(probe, value))

    def _look_ups(self, copied: Mapping[str, Any], most: int) -> Any:
        """Ask the engine about requests that were copied just now. Engine's thread."""
        probe, epoch = self._probe, copied.get("epoch")
        if epoch is None:
            return None
        names = [(row.id, row.tokens) for row in copied.get("requests") or ()]
        attempt = probe.guard.attempt(sample_lookups, probe.adapter, names, epoch=epoch, most=most)
        return attempt.value

    def op_free_list(self, _reader: Reader) -> Deferred:
        """Walk the free list."""
        walk = FreeListWalk(self._probe)
        return self._job(
            "free_list",
            lambda: walk.result() if walk.advance() else AGAIN,
            needs="free_list",
            finish=lambda found: {**found, "free_list": pack(found["free_list"])},
        )

    def op_chain(self, _reader: Reader, request: str) -> Deferred:
        """Read the keys of a request."""
        adapter = self._probe.adapter
        return self._job(
            "chain",
            lambda: adapter.chain(request),
            needs="chain",
            finish=lambda hashes: {"keys": b"".join(key[:16] for key in hashes).hex(), "count": len(hashes)},
        )

    def op_engine_hit(
        self, _reader: Reader, request: str | None = None, hashes: str | None = None, limit: int | None = None
    ) -> Deferred:
        """Ask the engine's own finder."""
        probe = self._probe
        full = None if hashes is None else keys_from(hashes, size=32)
        if (request is None) == (full is None):
            raise UsageError("`engine_hit` takes either a request or hashes")

        def run() -> dict[str, Any]:
            epoch = probe.cut()
            chain = probe.adapter.chain(request) if full is None and request is not None else full or []
            bound = len(chain) * probe.geometry.hash_unit
            if limit is not None:
                # Engines make tables as long as the limit, whatever the chain: 2**40 tokens would take all memory.
                bound = min(bound, natural("limit", limit))
            keys = b"".join(key[:16] for key in chain)
            return {"tokens": probe.adapter.engine_hit(chain, bound), "limit": bound, "epoch": epoch, "keys": keys}

        return self._job("engine_hit", run, needs="engine_hit")

    # ------------------------------------------------------------------- the feed

    def op_join(self, reader: Reader, level: str = "content", explain: bool = True) -> Deferred:
        """Follow the page table."""
        probe = self._probe
        probe.standing.require("feed")
        try:
            wanted = Level(level)
        except ValueError as error:
            raise UsageError(f"there is no level {level!r}", next_step="levels are content and references") from error
        if reader.level is not None:
            raise UsageError("this reader has joined already", next_step="leave first")

        def run() -> dict[str, Any]:
            reply = probe.join(wanted, explain=bool(explain))
            reader.level, reader.explain = wanted, bool(explain)
            # The ring may be gone before the answer is sent, and its number then be another file of the host.
            return {**reply, "descriptor": os.dup(reply["descriptor"])}

        return Deferred(
            label="join",
            deadline_s=DEFAULT_DEADLINE_S,
            run=run,
            finish=lambda reply: {name: value for name, value in reply.items() if name != "descriptor"},
            descriptor=lambda reply: int(reply["descriptor"]),
        )

    def op_leave(self, reader: Reader) -> dict[str, Any]:
        """Stop following."""
        self.left(reader)
        return {"left": True}

    def op_bootstrap(self, reader: Reader) -> Deferred:
        """Ask for the whole table."""
        self._require_joined(reader)
        return self._job("bootstrap", lambda: {"epoch": self._probe.bootstrap()})

    def op_audit(self, reader: Reader) -> Deferred:
        """Put a checksum of the table into the ring."""
        self._require_joined(reader)
        return self._job("audit", lambda: {"epoch": self._probe.audit()})

    @staticmethod
    def _require_joined(reader: Reader) -> None:
        if reader.level is None:
            raise UsageError("this reader has not joined the feed", next_step="join first")

    # -------------------------------------------------------------------- changes

    def op_invalidate_plan(
        self, _reader: Reader, pages: list[int] | None = None, keys: list[list[Any]] | None = None
    ) -> Deferred:
        """Name the keys, pages and stamps that a change would take."""
        probe = self._probe
        wanted = group_keys_from(keys)
        ids = [natural("page", page) for page in pages or ()]
        return self._job(
            "invalidate_plan", lambda: probe.changes.plan(ids, wanted), needs="invalidate", finish=lambda plan: plan
        )

    def op_invalidate_apply(self, reader: Reader, plan: Mapping[str, Any], quarantine: bool = True) -> Deferred:
        """Evict exactly a plan."""
        probe = self._probe
        probe.standing.require_changes("invalidate_apply")
        return self._job(
            "invalidate_apply",
            lambda: probe.changes.apply(plan, uid=reader.uid, pid=reader.pid, quarantine=bool(quarantine)),
            needs="invalidate",
            finish=lambda done: probe.changes.done(plan, done),
        )
