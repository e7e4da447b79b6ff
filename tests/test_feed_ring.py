"""The ring: allocated, sealed, anonymous, and readable only as whole records."""

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from agent import feedformat as wire
from agent.errors import ProtocolError
from agent.feedformat import Counts, Kind
from agent.model.snapshot import Level
from agent.probe.feed import Feed, FeedOffError
from agent.probe.ring import Ring, checksum, unsupported_machine
from agent.table import RingReader
from tests.support.fake_pool import FakePool


def _ring(capacity: int = 1 << 16) -> Ring:
    return Ring(capacity, pages=64, key_bytes=36)


def _put(ring: Ring, body: bytes) -> None:
    ring.put(Kind.DECISION, Counts(rows=len(body)), [body], epoch=1, committed=0)


def test_a_reader_cannot_write_shrink_or_grow_it() -> None:
    """The seals refuse a writable map, ftruncate in both directions, and more seals."""
    ring = _ring()
    with pytest.raises(PermissionError):
        mmap.mmap(ring.fd, wire.HEADER_BYTES)
    for size in (4096, ring.capacity * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(ring.fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(ring.fd, b"x", 0)
    mmap.mmap(ring.fd, 0, access=mmap.ACCESS_READ).close()
    ring.close()


def test_it_is_fully_allocated_and_has_no_name() -> None:
    """Every byte has memory behind it before it is mapped, and the file is an unlinked memory file."""
    ring = _ring(1 << 20)
    assert os.fstat(ring.fd).st_blocks * 512 >= ring.capacity + wire.HEADER_BYTES
    assert os.fstat(ring.fd).st_nlink == 0
    assert "memfd:" in str(Path(f"/proc/self/fd/{ring.fd}").readlink())
    ring.close()


def test_records_come_out_whole_across_the_wrap() -> None:
    """Bodies of many sizes survive the end of the buffer in order."""
    ring = _ring()
    reader = RingReader(ring.fd)
    got: list[bytes] = []
    sent = []
    for number in range(600):
        body = bytes([number % 251]) * (number * 7 % 3000 + 1)
        sent.append(body)
        _put(ring, body)
        reader.poll(got.append)
    assert got == sent
    assert ring.position > 4 * ring.capacity
    assert reader.overruns == reader.garbled == 0
    reader.close()
    ring.close()


def test_a_slow_reader_sees_an_overrun_never_old_bytes() -> None:
    """When more than a ring was written the reader starts anew at the newest record and asks for a bootstrap."""
    ring = _ring()
    asked: list[int] = []
    reader = RingReader(ring.fd, on_bootstrap=lambda: asked.append(1))
    for _ in range(100):
        _put(ring, bytes(1000))
    assert reader.poll() == 0
    assert (reader.overruns, asked) == (1, [1])
    got: list[bytes] = []
    _put(ring, b"after")
    reader.poll(got.append)
    assert got == [b"after"]
    ring.close()


@pytest.mark.parametrize("at", [0, 5, 9, 17, wire.RECORD_BYTES - 2, wire.RECORD_BYTES + 3])
def test_a_damaged_record_is_a_gap(at: int) -> None:
    """One changed byte in header or body is noticed; the next record is read again."""
    ring = _ring()
    reader = RingReader(ring.fd)
    start = ring.position
    _put(ring, b"hello, look-up")
    ring._data[start + at] ^= 0x40
    got: list[bytes] = []
    reader.poll(got.append)
    assert got == []
    assert reader.garbled == 1
    _put(ring, b"next")
    reader.poll(got.append)
    assert got == [b"next"]
    ring.close()


def test_a_ring_of_garbage_is_given_up() -> None:
    """A writer that publishes nothing but garbage ends in a protocol error, not in an endless loop."""
    ring = _ring()
    reader = RingReader(ring.fd)

    def read_garbage() -> None:
        for _ in range(100):
            start = ring.position
            _put(ring, bytes(64))
            ring._data[start : start + 4] = b"\xff" * 4
            reader.poll()

    with pytest.raises(ProtocolError, match="cannot be read"):
        read_garbage()
    ring.close()


@pytest.mark.parametrize(
    ("word", "value", "says"),
    [
        (wire.HEADER_MAGIC, 1, "not a feed"),
        (wire.HEADER_VERSION, 99, "version 99"),
        (wire.HEADER_CAPACITY, 12345, "sizes"),
        (wire.HEADER_PAGES, 0, "sizes"),
    ],
)
def test_a_foreign_header_is_refused(word: int, value: int, says: str) -> None:
    """A file that is no ring, or of another version, is a protocol error that says which."""
    ring = _ring()
    ring._header[word] = value
    with pytest.raises(ProtocolError) as caught:
        RingReader(ring.fd)
    assert says in f"{caught.value} {caught.value.why}"
    ring.close()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    """A file shorter than the header, or empty, is a protocol error."""
    for size in (0, 100):
        path = tmp_path / "short"
        path.write_bytes(bytes(size))
        with path.open("rb") as file, pytest.raises(ProtocolError):
            RingReader(file.fileno())


def test_a_record_larger_than_the_ring_is_refused_before_anything_is_written() -> None:
    """The writer refuses it and the ring stays readable."""
    ring = _ring()
    with pytest.raises(ValueError, match="does not fit"):
        _put(ring, bytes(ring.capacity))
    assert ring.position == 0
    ring.close()


def test_long_checksums_equal_the_one_call() -> None:
    """Slicing does not change a checksum."""
    import zlib

    body = os.urandom(50_001)
    assert checksum(body) == zlib.crc32(body)
    assert checksum(body, 7) == zlib.crc32(body, 7)


def test_a_machine_without_total_store_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On aarch64 joining says why there is no feed; stamps and the fence still work."""
    name = list(os.uname())
    name[4] = "aarch64"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(name))
    assert "aarch64" in str(unsupported_machine())
    feed = Feed(FakePool(64))
    feed.install()
    with pytest.raises(FeedOffError, match="aarch64"):
        feed.join(Level.CONTENT)
    feed.before_schedule(1)
    feed.after_schedule(1, {})
    assert feed.ring_fd is None


def test_a_full_memory_is_an_error_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file cannot be allocated nothing is mapped and the descriptor is closed."""
    opened: list[int] = []
    create = os.memfd_create

    def remember(*args: Any) -> int:
        opened.append(create(*args))
        return opened[-1]

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", remember)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        _ring()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
