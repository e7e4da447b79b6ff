"""The shared ring: one memory file that the engine writes and readers map read-only.

Invariant: no name in any file system, every byte allocated before it is mapped (a sparse map on a full tmpfs would kill
the engine with SIGBUS), sealed so that no reader can shrink, grow or write it. The engine never waits for a reader.
Called by the feed on the engine's thread only.
"""

import fcntl
import mmap
import os
import zlib
from collections.abc import Iterable

from .. import feedformat as wire
from .port import Words

F_ADD_SEALS = 1033
SEALS = 0x1 | 0x2 | 0x4 | 0x10
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE (linux/fcntl.h); Python names not all of them."""

MIN_BYTES = 1 << 16

TOTAL_STORE_ORDER = frozenset({"x86_64", "AMD64", "i686", "i386"})
"""Machines on which "payload, then position" needs no barrier; others are refused until a soak test passed there."""

Part = bytes | Words


def unsupported_machine() -> str | None:
    """Return why no ring can be published on this machine, or None."""
    machine = os.uname().machine
    if machine in TOTAL_STORE_ORDER:
        return None
    return f"the feed publishes without memory barriers, which is tested on x86-64 only; this machine is {machine}"


class Ring:
    """Writer's side of a ring.

    Args:
        capacity: Bytes of records, rounded up to whole pages of memory.
        pages: Pages of the engine's pool.
        key_bytes: Length of the engine's keys.

    Raises:
        OSError: No memory for it, or the kernel knows no sealed memory files.
    """

    def __init__(self, capacity: int, *, pages: int, key_bytes: int) -> None:
        self.capacity = (max(capacity, MIN_BYTES) + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        self.position = 0
        self.sequence = 0
        size = wire.HEADER_BYTES + self.capacity
        self.fd = os.memfd_create("kvctl-feed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, size)
            self._map = mmap.mmap(self.fd, size)
            fcntl.fcntl(self.fd, F_ADD_SEALS, SEALS)
        except OSError:
            os.close(self.fd)
            raise
        view = memoryview(self._map)
        self._header = view[: wire.HEADER_BYTES].cast("Q")
        self._data = view[wire.HEADER_BYTES :]
        header = self._header
        header[wire.HEADER_VERSION] = wire.VERSION
        header[wire.HEADER_CAPACITY] = self.capacity
        header[wire.HEADER_PAGES] = pages
        header[wire.HEADER_KEY_BYTES] = key_bytes
        header[wire.HEADER_INSTANCE] = int.from_bytes(os.urandom(8), "little")
        header[wire.HEADER_MAGIC] = wire.MAGIC

    def put(
        self,
        kind: wire.Kind,
        counts: wire.Counts,
        parts: Iterable[Part],
        *,
        epoch: int,
        committed: int,
        base: int = 0,
        flags: int = 0,
    ) -> None:
        """Publish one record: payload, then position.

        Raises:
            ValueError: The record is larger than the ring.
        """
        body = b"".join(parts)
        length = wire.padded(wire.RECORD_BYTES + len(body))
        if length > self.capacity:
            raise ValueError(f"a record of {length} bytes does not fit a ring of {self.capacity}")
        self.sequence += 1
        head = wire.RECORD.pack(0, length, self.sequence, epoch, committed, base, kind, flags, *counts)
        crc = checksum(body, zlib.crc32(head[wire.CRC_BYTES :]))
        head = crc.to_bytes(wire.CRC_BYTES, "little") + head[wire.CRC_BYTES :]
        end = self.position + length
        if end > self.capacity:
            self._header[wire.HEADER_OLDEST] = end - self.capacity
        self._write(self.position, head)
        self._write(self.position + wire.RECORD_BYTES, body)
        self.position = end
        self._header[wire.HEADER_POSITION] = end

    def _write(self, position: int, payload: bytes) -> None:
        offset = position % self.capacity
        room = self.capacity - offset
        size = len(payload)
        if size <= room:
            self._data[offset : offset + size] = payload
        else:
            self._data[offset:] = payload[:room]
            self._data[: size - room] = payload[room:]

    def close(self) -> None:
        """Tell readers that nothing more will come, and give the memory back once the last of them unmaps it."""
        self._header[wire.HEADER_CLOSED] = 1
        self._header.release()
        self._data.release()
        self._map.close()
        os.close(self.fd)


def checksum(payload: bytes | memoryview, crc: int = 0) -> int:
    """Return the crc32 of ``payload`` continued from ``crc``, in slices short enough that zlib keeps the GIL."""
    size = len(payload)
    if size <= wire.CRC_SLICE:
        return zlib.crc32(payload, crc)
    view = memoryview(payload)
    for start in range(0, size, wire.CRC_SLICE):
        crc = zlib.crc32(view[start : start + wire.CRC_SLICE], crc)
    return crc
