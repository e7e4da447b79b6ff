"""The record of one admitted look-up: as a value, as JSON, and as the body of a DECISION record in the ring.

Invariant: ``decode(encode(record)) == record`` for ids up to 1 KiB and trace headers up to 4 KiB; longer ones are cut.
The engine's thread writes, readers outside read. Standard library only.
"""

import struct
from dataclasses import dataclass
from typing import Final

from .errors import ProtocolError
from .model.decision import Decision, Outcome, Phase, Reason
from .model.states import KEY_BYTES, Tokens

VERSION: Final = 1

_HEAD: Final = struct.Struct("<BBBBIQQQQQIIIIIQ")
"""version, flags, key stride, trace count, lookups, id, time, step, epoch, stamp, tokens, usable, external, id bytes,
keys, duration."""

_RESUMED, _SKIPPED, _EXACT, _CHAIN, _UNTIMED, _MOVING = 1, 2, 4, 8, 16, 32
_MAX_ID: Final = 1024
_MAX_TRACE: Final = 4096
_STRIDE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What the engine knows of one admitted look-up, unexplained."""

    id: int
    """Sequence number in the probe, from 1; 0: the look-up of a request that waits for a tier, not decided yet."""
    time_ns: int
    """Wall clock, nanoseconds since the epoch."""
    step: int
    """Schedule call that admitted the request."""
    request: str
    phase: Phase
    tokens: Tokens
    """Tokens of the request at the look-up; the largest boundary that may be hit is one less."""
    engine_usable: Tokens
    """What the engine reused from its own pool."""
    external: Tokens = 0
    """Tokens that a connector brought from another tier."""
    moving: bool = False
    """The request waited for them: the table to explain it from is that of its record with number 0."""
    lookups: int = 1
    skipped: bool = False
    """The request asked not to read the cache."""
    duration_ns: int | None = None
    epoch: int = 0
    """Feed epoch of the table at the look-up; 0 where no reader was joined."""
    stamp: int = 0
    """Registration stamp at the look-up: pages and ghost entries with a smaller or equal one were there before."""
    exact: bool = False
    """The table of the ring, where this record stands, is the table of the look-up."""
    trace: tuple[tuple[str, str], ...] = ()
    chain: tuple[bytes, ...] | None = None
    """16-byte keys, ``chain[i]`` ends at ``(i + 1) * hash_unit`` tokens; None where the budget did not allow it."""

    def to_decision(self) -> Decision:
        """Return the decision as far as the engine's side knows it: analysis fields None, outcome unknown.

        A request that asked not to read the cache needs no table to be explained.
        """
        return Decision(
            id=self.id,
            time_ns=self.time_ns,
            step=self.step,
            request=self.request,
            phase=self.phase,
            outcome=self._outcome(),
            lookup_tokens=self.tokens,
            engine_usable=self.engine_usable,
            logical=None,
            usable=None,
            external=self.external,
            limiting_group=None,
            limiting_state=None,
            reason=Reason.SKIPPED if self.skipped else None,
            lookups=self.lookups,
            skipped=self.skipped,
            duration_ns=self.duration_ns,
            epoch=self.epoch if self.exact else None,
            trace=self.trace,
            chain=self.chain,
        )

    def _outcome(self) -> Outcome:
        if self.skipped:
            return Outcome.RECOMPUTE
        return Outcome.PREFETCHING if self.moving else Outcome.UNKNOWN


def encode_parts(
    *, head: tuple[int, ...], flags: int, request: str, trace: tuple[tuple[str, str], ...], hashes: list[bytes] | None
) -> bytes:
    """Return a body from raw parts, without building a :class:`DecisionRecord` (engine's thread).

    Args:
        head: lookups, id, time_ns, step, epoch, stamp, tokens, engine_usable, external, duration_ns.
        flags: Combination of :func:`flags_of`.
        request: The engine's request id.
        trace: Trace headers.
        hashes: Full chained hashes of 32 bytes, joined in one C call; the reader keeps 16 of each.
    """
    name = request.encode("utf-8", "surrogatepass")[:_MAX_ID]
    pairs = _trace_bytes(trace)
    lookups, number, time_ns, step, epoch, stamp, tokens, usable, external, duration = head
    chain = b"".join(hashes) if hashes else b""
    stride = len(hashes[0]) if hashes else 0
    if stride * len(hashes or ()) != len(chain):
        chain, stride, flags = b"", 0, flags & ~_CHAIN
    packed = _HEAD.pack(
        VERSION,
        flags,
        stride,
        len(pairs) // 2,
        lookups,
        number,
        time_ns,
        step,
        epoch,
        stamp,
        tokens,
        usable,
        external,
        len(name),
        len(chain) // stride if stride else 0,
        duration,
    )
    return b"".join((packed, name, *(len(part).to_bytes(2, "little") + part for part in pairs), chain))


def flags_of(*, phase: Phase, skipped: bool, exact: bool, chain: bool, timed: bool, moving: bool = False) -> int:
    """Return the flags byte of a body."""
    return (
        (_RESUMED if phase is Phase.RESUMED else 0)
        | (_SKIPPED if skipped else 0)
        | (_EXACT if exact else 0)
        | (_CHAIN if chain else 0)
        | (0 if timed else _UNTIMED)
        | (_MOVING if moving else 0)
    )


def _trace_bytes(trace: tuple[tuple[str, str], ...]) -> list[bytes]:
    parts = [part.encode("utf-8", "surrogatepass")[:_MAX_TRACE] for pair in trace[:8] for part in pair]
    return parts if sum(map(len, parts)) <= _MAX_TRACE else []


def encode(record: DecisionRecord) -> bytes:
    """Return the body of a DECISION record."""
    return encode_parts(
        head=(
            record.lookups,
            record.id,
            record.time_ns,
            record.step,
            record.epoch,
            record.stamp,
            record.tokens,
            record.engine_usable,
            record.external,
            record.duration_ns or 0,
        ),
        flags=flags_of(
            phase=record.phase,
            skipped=record.skipped,
            exact=record.exact,
            chain=record.chain is not None,
            timed=record.duration_ns is not None,
            moving=record.moving,
        ),
        request=record.request,
        trace=record.trace,
        hashes=None if record.chain is None else list(record.chain),
    )


def decode(body: bytes) -> DecisionRecord:
    """Read the body of a DECISION record.

    Raises:
        ProtocolError: It is truncated or of another version.
    """
    if len(body) < _HEAD.size or body[0] != VERSION:
        raise ProtocolError("cannot read a decision record", why="truncated, or of another version")
    (
        _,
        flags,
        stride,
        pairs,
        lookups,
        number,
        time_ns,
        step,
        epoch,
        stamp,
        tokens,
        usable,
        external,
        name,
        keys,
        took,
    ) = _HEAD.unpack_from(body)
    request = body[_HEAD.size : _HEAD.size + name].decode("utf-8", "replace")
    trace, at = _read_trace(body, _HEAD.size + name, pairs)
    if at + stride * keys > len(body):
        raise ProtocolError("cannot read a decision record", why="its chain is truncated")
    chain = tuple(body[start : start + KEY_BYTES] for start in range(at, at + stride * keys, stride or 1))
    return DecisionRecord(
        id=number,
        time_ns=time_ns,
        step=step,
        request=request,
        phase=Phase.RESUMED if flags & _RESUMED else Phase.FIRST,
        tokens=tokens,
        engine_usable=usable,
        external=external,
        moving=bool(flags & _MOVING),
        lookups=lookups,
        skipped=bool(flags & _SKIPPED),
        duration_ns=None if flags & _UNTIMED else took,
        epoch=epoch,
        stamp=stamp,
        exact=bool(flags & _EXACT),
        trace=trace,
        chain=chain if flags & _CHAIN else None,
    )


def _read_trace(body: bytes, at: int, pairs: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return the trace headers at a place of a body, and the place behind them."""
    texts = []
    for _ in range(2 * pairs):
        size = int.from_bytes(body[at : at + 2], "little")
        texts.append(body[at + 2 : at + 2 + size].decode("utf-8", "replace"))
        at += 2 + size
    return tuple(zip(texts[::2], texts[1::2], strict=True)), at
