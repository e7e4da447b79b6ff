"""Follow one engine's page table and explain its decisions as they come.

Invariant: a decision is explained only from the table of its own look-up; where that table is not at hand, the parts
that need it stay None. Used by :class:`agent.session.Session`; not thread-safe.
"""

import contextlib
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace

from . import decisionformat
from .borrowing import Loan, borrow
from .client import Client
from .decisionformat import DecisionRecord
from .errors import DeadlineError, TargetError
from .explain import explain
from .model.decision import Decision
from .model.groups import Geometry
from .model.snapshot import Consistency, Level, PageColumns
from .model.states import GroupId
from .serving import TableServer
from .table import RingReader

POLL_S = 0.002
"""Pause between two looks at the ring while a table or an epoch is awaited."""

RECENT = 4096
RECORDS_AT_ONCE = 4096

CATCH_UP_S = 1.0
"""How long a reader stays at the ring after a gap, at a time."""

SERVE_AFTER_S = 1.0
"""A reader that still looks at the ring so long after it had the table stays: it serves its table to others."""


class EngineGhost:
    """What the probe's ghost set says of one decision's keys: asked once for all of them, and only if needed."""

    def __init__(self, client: Client, chain: tuple[bytes, ...], stamp: int) -> None:
        self._client = client
        self._chain = chain
        self._before = stamp + 1
        self._answers: dict[bytes, int] | None = None
        self._groups: list[str] = []
        self._taken: list[str] = []

    def seen(self, group: GroupId | None, key: bytes, /) -> bool | None:
        """Tell whether a group (None: any) had registered a key before this look-up; None: cannot tell."""
        if self._answers is None:
            self._answers = self._ask()
        index = self._answers.get(key)
        if index is None:
            return None
        asked = self._groups if group is None else self._groups[group : group + 1]
        found = {text[index] for text in asked if index < len(text)}
        if "1" in found:
            return True
        return False if found == {"0"} else None

    def taken(self, group: GroupId | None, key: bytes, /) -> bool:
        """Tell whether a group's key (None: any group's) was taken out before this look-up; an older agent cannot."""
        if self._answers is None:
            self._answers = self._ask()
        index = self._answers.get(key)
        asked = self._taken if group is None else self._taken[group : group + 1]
        return index is not None and any(text[index : index + 1] == "1" for text in asked)

    def _ask(self) -> dict[bytes, int]:
        try:
            plain = self._client.call("seen", keys=b"".join(self._chain).hex(), before=self._before)
        except (TargetError, DeadlineError):
            # The engine is gone or busy: then nobody can tell. The next look at the ring says so.
            return {}
        self._groups = [str(text) for text in plain["groups"]]
        self._taken = [str(text) for text in plain.get("taken") or ()]
        return {one: index for index, one in enumerate(self._chain)}


def _settled(waited: Decision, record: DecisionRecord) -> Decision:
    """Complete what was explained when a request began to wait with what came of it."""
    return replace(
        waited,
        id=record.id,
        time_ns=record.time_ns,
        step=record.step,
        engine_usable=record.engine_usable,
        external=record.external,
        lookups=record.lookups,
        duration_ns=record.duration_ns,
        trace=record.trace,
    )


class Follower:
    """A joined reader.

    Args:
        client: Connection to the engine; the ring is joined on it.
        geometry: The engine's groups.
        level: How much of the table to follow.
        on_explained: Receives each decision when it is explained.

    Raises:
        UnsupportedError: The feed is off on this engine.
    """

    def __init__(
        self,
        client: Client,
        geometry: Geometry,
        level: Level,
        *,
        on_explained: Callable[[Decision], object] = lambda _decision: None,
    ) -> None:
        self._client = client
        self._geometry = geometry
        self.level = level
        self._on_explained = on_explained
        self._fresh: list[Decision] = []
        self._recent: deque[Decision] = deque(maxlen=RECENT)
        self._waiting: OrderedDict[str, Decision] = OrderedDict()
        """Explained look-ups of requests that wait for another tier; each is decided when its request is admitted."""
        client.call("join", level=level.value, explain=True)
        descriptor = client.take_descriptor()
        try:
            self._reader = RingReader(descriptor, level=level, on_bootstrap=self._ask_for_table)
        finally:
            os.close(descriptor)
        self._lender: int | None = None
        """Pid of the reader whose table this one went on from."""
        self._lent_at = 0
        """Epoch of that table."""
        self._lent_whole = True
        self._lender_wrong = False
        self._server: TableServer | None = None
        self._serve_at = math.inf

    def _ask_for_table(self) -> None:
        self._client.call("bootstrap")

    def covers(self, level: Level) -> bool:
        """Return whether this level is followed already."""
        return self.level is level or self.level is Level.REFERENCES

    def bootstrap(self, *, progress: Callable[[float], None] | None, deadline_s: float, borrows: bool = True) -> None:
        """Wait for the whole table.

        Args:
            progress: Receives 0 to 1 while it arrives.
            deadline_s: For all of it.
            borrows: Another reader's will do.

        Raises:
            DeadlineError: It did not arrive in time.
            TargetError: The engine ended meanwhile.
        """
        until = time.monotonic() + deadline_s
        loan = None
        if borrows:
            loan = borrow(self._client.endpoint, self._reader, groups=len(self._geometry.groups), deadline_s=deadline_s)
        if loan is None:
            self._reader.restart()
        else:
            self._adopt(loan)
        while True:
            self.apply()
            if progress is not None:
                progress(self._reader.progress)
            if self._reader.complete:
                self._serve_at = time.monotonic() + SERVE_AFTER_S
                return
            if time.monotonic() > until:
                share = f"{self._reader.progress:.0%}"
                raise DeadlineError(f"the page table did not arrive in {deadline_s:g} s", why=f"{share} of it is here")
            time.sleep(POLL_S)

    def _adopt(self, loan: Loan) -> None:
        """Go on from another reader's table; what that lacks the engine sends, and it is compared on the way."""
        self._lender, self._lent_at = loan.pid, loan.epoch
        self._reader.adopt(loan.table, loan.position, loan.sequence)
        self.apply()
        if not self._reader.complete:
            self._lent_whole = False
            self._ask_for_table()

    def _doubt(self) -> None:
        """Begin anew from the engine if another reader's table turns out to be wrong."""
        if self._lender is not None and self._reader.doubtful and not self._lender_wrong:
            self._lender_wrong = True
            self._reader.renew()

    def _origin(self) -> tuple[str, ...]:
        """Say where the table came from, if not from the engine."""
        if self._lender is None:
            return ()
        if self._lender_wrong:
            return (f"the page table of reader {self._lender} was wrong: it was read anew from the engine",)
        # After a gap the engine sent every page again; what it cannot tell stayed.
        whole = self._lent_whole and not self._reader.gaps
        what = "the page table was" if whole else "the parents of cached pages were"
        return (f"{what} taken over from reader {self._lender}, at epoch {self._lent_at}",)

    def serve(self) -> None:
        """Hand the table to readers that ask for it, once it is clear that this one stays. Does not wait."""
        if self._server is not None:
            self._server.serve(self._reader)
        elif time.monotonic() >= self._serve_at:
            self._serve_at = math.inf
            self._server = TableServer.open(self._client.endpoint)

    def apply(self, *, until_epoch: int | None = None) -> None:
        """Apply what is in the ring.

        Args:
            until_epoch: Stop before the first record of a later epoch.

        Raises:
            TargetError: The engine ended, or its probe was taken out.
        """
        while self._reader.poll(self._decided, limit=RECORDS_AT_ONCE, until_epoch=until_epoch) >= RECORDS_AT_ONCE:
            pass
        self._doubt()
        if self._reader.closed or not self._client.alive():
            raise TargetError(
                "the engine's agent has ended the feed",
                why="the engine ended, or its probe was switched off",
                next_step="to see whether it runs: kvctl ps",
            )

    def keep_up(self) -> None:
        """Apply what is in the ring; after a gap, stay with it for a moment, or until there is a decision.

        An idle engine sends a large table in less time than passes between two looks: one that always came too late
        would ask for it for ever.

        Raises:
            TargetError: The engine ended, or its probe was taken out.
        """
        until = time.monotonic() + CATCH_UP_S
        self.apply()
        while not (self._reader.complete or self._fresh) and time.monotonic() < until:
            time.sleep(POLL_S)
            self.apply()

    def _decided(self, body: bytes) -> None:
        record = decisionformat.decode(body)
        if not record.id:
            if len(self._waiting) >= RECENT:
                self._waiting.popitem(last=False)
            self._waiting[record.request] = self._explained(record)
            return
        waited = self._waiting.pop(record.request, None)
        decided = _settled(waited, record) if record.moving and waited is not None else self._explained(record)
        self._fresh.append(decided)
        self._recent.append(decided)
        self._on_explained(decided)

    def _explained(self, record: DecisionRecord) -> Decision:
        decision, reader = record.to_decision(), self._reader
        known = record.exact and reader.complete and reader.epoch == record.epoch and record.chain is not None
        ghost = EngineGhost(self._client, record.chain, record.stamp) if known and record.chain else None
        if not known:
            decision = replace(decision, chain=None)
        return explain(self._geometry, reader.table.presence(), ghost, decision)

    def take_decisions(self) -> tuple[Decision, ...]:
        """Return decisions since the last call, oldest first."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    def recent_decisions(self) -> tuple[Decision, ...]:
        """Return the latest decisions without taking them."""
        return tuple(self._recent)

    def pages_at(self, epoch: object, *, deadline_s: float) -> tuple[PageColumns, Consistency, tuple[str, ...]]:
        """Return the table at an epoch that the engine named.

        Returns:
            Columns, how consistent they are with what was read at that epoch, and notes.
        """
        until = time.monotonic() + deadline_s
        wanted = epoch if isinstance(epoch, int) else None
        while True:
            self.apply(until_epoch=wanted)
            reader = self._reader
            notes = self._origin()
            if reader.complete and (wanted is None or reader.epoch == wanted):
                return self._columns(), Consistency.ATOMIC, notes
            if reader.complete and wanted is not None and reader.epoch > wanted:
                note = f"the page table is of epoch {reader.epoch}, everything else of epoch {wanted}"
                return self._columns(), Consistency.TORN, (note, *notes)
            if time.monotonic() > until:
                raise DeadlineError("the page table did not arrive in time", why=f"{reader.progress:.0%} of it is here")
            # A gap began a new bootstrap: its records are later than the epoch that was read.
            wanted = wanted if reader.complete else None
            time.sleep(POLL_S)

    def _columns(self) -> PageColumns:
        """Return the table as it is now, with what this reader follows of it."""
        return self._reader.table.to_columns(references=self._reader.level is Level.REFERENCES)

    def close(self) -> None:
        """Leave the feed."""
        if self._server is not None:
            self._server.close()
        self._reader.close()
        with contextlib.suppress(TargetError, DeadlineError):
            if self._client.alive():
                self._client.call("leave")
