"""The asking end of a page table that travels between readers: all readers of an engine at once, for a bounded time.

Invariant: nothing that fails here reaches the caller: no reader, a slow one, a dead one, one that follows another ring
or sends what cannot be is as if nobody served, and the engine is asked instead. The other side's uid and process are
checked before anything is sent. Used by :mod:`agent.follower`.
"""

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from . import paths, wire
from .client import connect_path, peer_of
from .discovery import Endpoint
from .errors import ProtocolError
from .model.snapshot import Level
from .readers import Reader, of_engine
from .table import RingReader, Table, handover
from .table.handover import Head
from .table.records import GarbledError

WAIT_S: Final = 1.0
"""How long a newcomer waits for a reader, whatever the size of the pool. Readers look every 0.25 to 0.5 s. A small pool
arrives sooner from the engine, but without the parents of what was cached before."""
SHARE: Final = 0.5
"""Part of the caller's own deadline that may go by with waiting: the rest is for the engine."""
MOST_ASKED: Final = 8
MAX_ANSWER: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A table that another reader handed over."""

    pid: int
    """Of that reader."""
    table: Table
    epoch: int
    """Of that table."""
    position: int
    """Where in the ring to go on."""
    sequence: int
    references: bool
    """Whether references and free list are known, too."""


def borrow(engine: Endpoint, ring: RingReader, *, groups: int, deadline_s: float) -> Loan | None:
    """Ask the readers of an engine for their table; None if none hands over one that this ring goes on from.

    Args:
        engine: Whose table.
        ring: The newcomer, joined already.
        groups: Cache groups of the engine.
        deadline_s: Of the caller.
    """
    found = of_engine(engine)[:MOST_ASKED]
    if not found:
        return None
    until = time.monotonic() + min(WAIT_S, SHARE * deadline_s)
    references, best = ring.level is Level.REFERENCES, None
    for loan in _loans(found, _question(ring, references=references), ring, groups, until):
        if loan.references or not references:
            return loan
        best = best or loan
    return best


def _question(ring: RingReader, *, references: bool) -> bytes:
    wanted = {"version": handover.VERSION, "instance": ring.instance, "references": references}
    return wire.encode({"table": wanted})


def _loans(found: list[Reader], question: bytes, ring: RingReader, groups: int, until: float) -> Iterator[Loan]:
    """Yield what readers hand over, as it comes."""
    with ExitStack() as closing:
        asked: dict[int, tuple[Reader, socket.socket]] = {}
        poll = select.poll()
        for reader in found:
            link = _ask(reader.endpoint, question)
            if link is not None:
                closing.enter_context(link)
                asked[link.fileno()] = (reader, link)
                poll.register(link, select.POLLIN)
        while asked and (left := until - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                reader, link = asked.pop(number)
                poll.unregister(link)
                loan = _take(reader, link, ring, groups)
                if loan is not None:
                    yield loan


def _ask(reader: Endpoint, question: bytes) -> socket.socket | None:
    """Put the question to one reader, if it is the one that its socket's name says."""
    try:
        link = connect_path(reader.path, 0.0)
    except OSError:  # gone, or too many ask already
        return None
    try:
        pid, uid = peer_of(link)
        if uid == reader.uid and pid == reader.pid and paths.start_ticks(pid) == reader.start_ticks:
            link.settimeout(0.0)
            if link.send(question) == len(question):
                return link
    except OSError:
        pass
    link.close()
    return None


def _take(reader: Reader, link: socket.socket, ring: RingReader, groups: int) -> Loan | None:
    """Read the answer of one reader, whatever it is."""
    descriptors: list[int] = []
    try:
        data, descriptors, _, _ = socket.recv_fds(link, MAX_ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
        frames = wire.FrameBuffer(MAX_ANSWER, quick=True)
        frames.feed(data)
        return _loan(reader.endpoint.pid, frames.next(), descriptors, ring, groups)
    except (OSError, ProtocolError, GarbledError):
        return None
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


def _loan(
    pid: int, answer: dict[str, Any] | None, descriptors: list[int], ring: RingReader, groups: int
) -> Loan | None:
    if answer is None or not descriptors or "table" not in answer:
        return None
    head = Head.from_plain(answer["table"])
    # What is not of this ring, or too old to go on from, is not even read.
    if (head.instance, head.pages) != (ring.instance, ring.pages) or not ring.reaches(head.position):
        return None
    table = handover.read(head, descriptors[0], groups=groups)
    if not ring.reaches(head.position):
        return None
    return Loan(
        pid=pid,
        table=table,
        epoch=head.epoch,
        position=head.position,
        sequence=head.sequence,
        references=bool(head.references),
    )
