"""A reader of a feed as a process of its own: ``python -m tests.support.feed_reader RING_FD SOCKET_FD LEVEL WORK``.

Speaks one byte at a time over its socket: ``b`` asks for a bootstrap, ``a`` says that an audit was compared. Ends when
the engine closes the socket, and then prints what it saw as JSON. WORK repeats the checksum of each audit, which makes
a slow reader.
"""

import contextlib
import json
import select
import socket
import sys
from pathlib import Path
from typing import Any

from agent.model.snapshot import Level
from agent.table import RingReader


def follow(ring: int, link: socket.socket, level: Level, work: int) -> dict[str, Any]:
    """Read until the writer is gone."""

    def tell(byte: bytes) -> None:
        with contextlib.suppress(OSError):  # an engine that is gone is noticed below
            link.send(byte)

    reader = RingReader(ring, level=level, on_bootstrap=lambda: tell(b"b"))
    reader.restart()
    told = 0
    indexed = False
    while True:
        applied = reader.poll(limit=1 + 200 // (1 + work))
        if reader.audits > told:
            tell(b"a" * (reader.audits - told))
            told = reader.audits
            for _ in range(work):
                reader.table.checksum(references=False)
        if reader.complete and not indexed:
            indexed = bool(reader.table.presence())
        if not applied:
            readable, _, _ = select.select([link], [], [], 0.001)
            if readable:  # the engine never sends anything: this is the end of file
                break
    reader.poll()
    index = reader.table.presence()
    reader.table.forget_index()
    return {
        "audits": reader.audits,
        "failed": reader.failed_audits,
        "overruns": reader.overruns,
        "resyncs": reader.resyncs,
        "garbled": reader.garbled,
        "mismatches": reader.table.mismatches,
        "complete": reader.complete,
        "index_equal": index == reader.table.presence(),
        "extra": len(reader.table.extra),
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Return the largest resident size that this process had (``VmHWM``; a parent's does not count)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Run as a process."""
    ring, link, level, work = sys.argv[1:]
    peer = socket.socket(fileno=int(link))
    print(json.dumps(follow(int(ring), peer, Level(level), int(work))))


if __name__ == "__main__":
    main()
