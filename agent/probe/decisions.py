"""The recorder of decisions: stashes a look-up, commits it when the request is admitted.

Invariant: a request that waits is looked up often and counted once; first admissions and resumptions after preemption
are apart. Bounded memory. Engine's thread only, except :meth:`Recorder.since`.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from ..decisionformat import DecisionRecord, encode_parts, flags_of
from ..model.decision import Phase
from .counters import Counters
from .options import Options

STASH_LIMIT: Final = 8192
MAX_ID: Final = 1024
TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})


class StampSource(Protocol):
    """The part of the feed's stamps that decisions need."""

    @property
    def mark(self) -> int:
        """Stamp of the last registration."""
        ...


class DecisionFeed(Protocol):
    """The part of the feed that decisions need."""

    @property
    def stamps(self) -> StampSource:
        """The stamps."""
        ...

    def cut(self) -> int:
        """Publish what changed; return the epoch."""
        ...

    def cut_at(self, point: Any) -> int:
        """Publish what had changed at a point; return the epoch, or :data:`UNKNOWN_TABLE`."""
        ...

    @property
    def published(self) -> int:
        """Epoch of the table at the end of the ring."""
        ...

    def put_decision(self, body: bytes) -> None:
        """Put a DECISION record into the ring without a cut."""
        ...


Stash = tuple[int, int, int | None, int, int, int]
"""The latest look-up of a request that is not admitted yet: number of look-ups, step, duration in nanoseconds, epoch,
stamp, tokens that a connector brings."""

UNKNOWN_TABLE: Final = -2
"""Epoch of a table that could not be captured: no look-up is compared with it."""

NO_LOOKUP: Final[Stash] = (1, -1, None, 0, 0, 0)

UNDECIDED: Final = 0
"""Number of a look-up that is shown to readers and is no decision yet."""


class Recorder:
    """Record decisions.

    Args:
        options: Budgets.
        counters: What is counted here.
    """

    def __init__(self, options: Options, counters: Counters) -> None:
        self._options = options
        self._counters = counters
        self.stash: OrderedDict[str, Stash] = OrderedDict()
        """Look-ups of requests that are not admitted yet."""
        self.waiting: OrderedDict[str, int] = OrderedDict()
        """What requests that wait for another tier could reuse without it, at the look-up that they wait for."""
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=options["decisions_kept"])
        self._number = 0
        self._epoch = 0
        self._stamp = 0
        self._chain_left = 0
        self._chain_step = -1
        self.step = 0
        """Schedule call that runs, or ran last."""
        self.explaining = 0
        """Readers that want decisions with their keys, after a cut."""
        self.feed: DecisionFeed | None = None

    # ------------------------------------------------------- engine's thread

    def before_lookup(self) -> None:
        """A look-up follows: publish the table that it will see, if somebody compares."""
        if self.explaining and self.feed is not None:
            self._epoch = UNKNOWN_TABLE
            self._epoch, self._stamp = self.feed.cut(), self.feed.stamps.mark

    def saw(self, point: Any) -> None:
        """The look-ups that come next saw the table at this point of the feed; None: it is not known which."""
        self._epoch = UNKNOWN_TABLE
        if self.feed is not None and point is not None:
            self._epoch, self._stamp = self.feed.cut_at(point), point.mark

    def looked_up(self, request: str, duration_ns: int) -> None:
        """A look-up has been made; nothing is counted as a reuse yet."""
        known = self.stash.get(request)
        # The engine may look up twice in one schedule call (connectors); that is one look-up.
        again = known is not None and known[1] == self.step
        if known is None and len(self.stash) >= STASH_LIMIT:
            self.stash.popitem(last=False)
        lookups = (known[0] if known is not None else 0) + (0 if again else 1)
        self.stash[request] = (lookups, self.step, duration_ns, self._epoch, self._stamp, 0)
        if not again:
            self._counters.lookups += 1

    def brought(self, request: str, tokens: int) -> None:
        """A connector will bring ``tokens`` tokens for this request."""
        known = self.stash.get(request)
        if known is not None:
            self.stash[request] = (*known[:5], tokens)

    def waits(
        self, request: str, *, tokens: int, usable: int, external: int, resumed: bool, hashes: Sequence[bytes]
    ) -> None:
        """The request waits for ``external`` tokens from another tier: its table is now, its decision comes later.

        Readers explain this look-up from the table that it saw; what came of it is known when it is admitted.
        """
        if len(self.waiting) >= STASH_LIMIT:
            self.waiting.popitem(last=False)
        self.waiting[request] = usable
        if not self.explaining or self.feed is None:
            return
        lookups, step, duration_ns, epoch, stamp, _ = self.stash.get(request, NO_LOOKUP)
        exact = step == self.step and epoch == self._epoch == self.feed.published
        epoch = max(epoch, 0)
        head = (UNDECIDED, time.time_ns(), self.step, request[:MAX_ID], int(resumed), tokens, usable, external)
        self._publish((*head, lookups, False, duration_ns, epoch, stamp, exact, (), True), hashes)

    def admitted(
        self,
        request: str,
        *,
        tokens: int,
        usable: int,
        resumed: bool,
        skipped: bool,
        hashes: Sequence[bytes],
        trace: Mapping[str, str] | None,
        moving: bool = False,
    ) -> None:
        """The request was admitted with what its latest look-up found: count and record the decision.

        With ``moving`` it waited for another tier, which brought something: the look-up is that of :meth:`waits`.
        """
        self.waiting.pop(request, None)
        lookups, step, duration_ns, epoch, stamp, external = self.stash.pop(request, NO_LOOKUP)
        self._number += 1
        phase = 1 if resumed else 0
        self._counters.admit(phase, tokens, usable, external, skipped, lookups, duration_ns)
        # A cut between look-up and admission (another request was looked up) moves the table past this look-up.
        compared = bool(self.explaining) and self.feed is not None and epoch == self._epoch == self.feed.published
        exact = compared and step == self.step and not moving
        epoch = max(epoch, 0)
        row = (
            self._number,
            time.time_ns(),
            self.step,
            request[:MAX_ID],
            phase,
            tokens,
            usable,
            external,
            lookups,
            skipped,
            duration_ns,
            epoch,
            stamp,
            exact,
            _trace_of(trace) if trace else (),
            moving,
        )
        self._ring.append(row)
        if self.explaining and self.feed is not None:
            self._publish(row, hashes)

    def _publish(self, row: tuple[Any, ...], hashes: Sequence[bytes]) -> None:
        (
            number,
            now,
            step,
            request,
            phase,
            tokens,
            usable,
            external,
            lookups,
            skipped,
            took,
            epoch,
            stamp,
            exact,
            trace,
            moving,
        ) = row
        if self._chain_step != self.step:
            self._chain_step, self._chain_left = self.step, self._options["chain_bytes_per_step"]
        size = len(hashes) * len(hashes[0]) if hashes else 0
        fits = size <= self._chain_left
        if fits:
            self._chain_left -= size
        else:
            self._counters.chains_omitted += 1
        body = encode_parts(
            head=(lookups, number, now, step, epoch, stamp, tokens, usable, external, took or 0),
            flags=flags_of(
                phase=Phase.RESUMED if phase else Phase.FIRST,
                skipped=skipped,
                exact=exact,
                chain=fits,
                timed=took is not None,
                moving=moving,
            ),
            request=request,
            trace=trace,
            hashes=list(hashes) if fits else None,
        )
        assert self.feed is not None  # noqa: S101 - checked by the only caller
        self._counters.decisions_dropped += 1
        self.feed.put_decision(body)
        self._counters.decisions_dropped -= 1

    def forget(self, request: str) -> None:
        """The request is gone without having been admitted."""
        self.stash.pop(request, None)
        self.waiting.pop(request, None)

    def resize(self) -> None:
        """Take over a changed ``decisions_kept``."""
        self._ring = deque(self._ring, maxlen=self._options["decisions_kept"])

    # --------------------------------------------------------- probe's thread

    def since(self, number: int, limit: int) -> list[DecisionRecord]:
        """Return at most ``limit`` decisions after ``number``, oldest first. Any thread."""
        rows = [row for row in self._ring.copy() if row[0] > number]
        return [_record(row) for row in (rows[:limit] if number else rows[-limit:] if limit else [])]

    @property
    def last(self) -> int:
        """Number of the latest decision."""
        return self._number


def _trace_of(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name.lower(), str(value)[:MAX_ID]) for name, value in headers.items() if name.lower() in TRACE_HEADERS
    )


def _record(row: tuple[Any, ...]) -> DecisionRecord:
    number, now, step, request, phase, tokens, usable, external, lookups, skipped, took, epoch, stamp, exact = row[:14]
    trace, moving = row[14:]
    return DecisionRecord(
        id=number,
        time_ns=now,
        step=step,
        request=request,
        phase=Phase.RESUMED if phase else Phase.FIRST,
        tokens=tokens,
        engine_usable=usable,
        external=external,
        moving=moving,
        lookups=lookups,
        skipped=skipped,
        duration_ns=took,
        epoch=epoch,
        stamp=stamp,
        exact=exact,
        trace=trace,
    )
