"""Whatever another process hands over as a page table: it is that of this engine, or the engine is asked instead."""

import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent import readers, wire
from agent.borrowing import WAIT_S
from agent.table import RingReader, handover
from tests.support.lending import Lending, adopt, pretending, same, serving
from tests.support.waiting import wait_for

Answer = Callable[[socket.socket], object]
SHORT_S = 0.2
"""Deadline of a caller that will get no answer."""


@pytest.fixture
def lending(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Lending:
    """A pool with a feed; its readers' sockets are in a private folder."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    lending = Lending(runtime)
    lending.work()
    return lending


@pytest.fixture
def old(lending: Lending) -> RingReader:
    """A reader that has the table."""
    return lending.bootstrapped()


def send(link: socket.socket, head: dict[str, Any], fd: int) -> None:
    """Answer with a head and a file."""
    try:
        socket.send_fds(link, [wire.encode({"table": head})], [fd])
    finally:
        os.close(fd)


def whole(old: RingReader, **changes: Any) -> Answer:
    """Answer as a reader does, with changes of the head."""

    def answer(link: socket.socket) -> None:
        head, fd = handover.write(old, references=False)
        send(link, head.to_plain() | changes, fd)

    return answer


def test_the_fixture_is_good_enough(lending: Lending, old: RingReader) -> None:
    """Who answers as a reader does is believed: what is refused below is refused for what it says."""
    new = lending.join()
    with pretending(lending, whole(old)):
        adopt(new, lending.borrowed(new))
    same(old.table, new.table)


HEADS: list[dict[str, Any]] = [
    {"version": 2},
    {"version": None},
    {"instance": 1},
    {"position": 1 << 50},
    {"position": 4},
    {"position": -8},
    {"pages": 199},
    {"pages": 1 << 40},
    {"pages": "200"},
    {"pages": 200.0},
    {"references": True},
    {"references": 1},
    {"references": 2},
    {"never": 1},
    {"never": 1 << 60},
    {"tainted": 201},
    {"tainted": 3},
    {"extra": 1 << 62},
    {"extra": 7},
    {"sequence": 1 << 64},
]


@pytest.mark.parametrize("changes", HEADS, ids=str)
def test_a_head_that_cannot_be(lending: Lending, old: RingReader, changes: dict[str, Any]) -> None:
    """Another version, ring, pool, place or length is refused before anything is made of it."""
    with pretending(lending, whole(old, **changes)):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None


@pytest.mark.parametrize("name", [*handover.Head.__dataclass_fields__])
def test_a_head_that_lacks_something(lending: Lending, old: RingReader, name: str) -> None:
    """Each number is needed."""

    def answer(link: socket.socket) -> None:
        head, fd = handover.write(old, references=False)
        send(link, {key: value for key, value in head.to_plain().items() if key != name}, fd)

    with pretending(lending, answer):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None


def _unsealed(size: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def _sealed(size: int) -> int:
    fd = _unsealed(size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, handover.SEALS)
    return fd


def _pipe(_size: int) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


FILES: dict[str, Callable[[int], int]] = {
    "unsealed": _unsealed,
    "short": lambda size: _sealed(size - 1),
    "long": lambda size: _sealed(size + 1),
    "empty": lambda _size: _sealed(0),
    "pipe": _pipe,
    "folder": lambda _size: os.open("/", os.O_RDONLY),
    "zeros": lambda _size: os.open("/dev/zero", os.O_RDONLY),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_table(lending: Lending, old: RingReader, kind: str) -> None:
    """Only a sealed memory file of exactly the size is read: no other can block, shrink or change meanwhile."""

    def answer(link: socket.socket) -> None:
        head, fd = handover.write(old, references=False)
        size = os.fstat(fd).st_size
        os.close(fd)
        send(link, head.to_plain(), FILES[kind](size))

    with pretending(lending, answer):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None


def spoil_group(old: RingReader) -> None:
    """A group that the engine does not have."""
    old.table.group[np.flatnonzero(old.table.tokens)[0]] = 5


def spoil_tainted(old: RingReader) -> None:
    """A page that the pool does not have."""
    old.table.tainted[200] = 1


def spoil_extra_page(old: RingReader) -> None:
    """Another such page."""
    old.table.extra[1 << 31] = (bytes(24),)


def spoil_extra_group(old: RingReader) -> None:
    """A secondary key of a group that the engine does not have."""
    old.table.extra[3] = (bytes(16) + b"\1\0\0\0" + bytes(4),)


@pytest.mark.parametrize("spoil", [spoil_group, spoil_tainted, spoil_extra_page, spoil_extra_group])
def test_content_that_cannot_be(lending: Lending, old: RingReader, spoil: Callable[[RingReader], None]) -> None:
    """Pages and groups that this engine does not have are refused."""
    spoil(old)
    with pretending(lending, whole(old)):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None


ANSWERS: dict[str, bytes] = {
    "garbage": b"\xff" * 100,
    "too long": (1 << 30).to_bytes(4, "little") + b"{}",
    "no object": wire.HEAD_BYTES.to_bytes(4, "little") + b"[1]\n",
    "no table": wire.encode({"error": {"type": "refused", "what": "no"}}),
    "no file": wire.encode({"table": json.loads("{}")}),
    "half": wire.encode({"table": {}})[:7],
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_that_are_none(lending: Lending, old: RingReader, kind: str) -> None:
    """Noise, a refusal and half an answer are as if nobody served."""
    del old
    with pretending(lending, lambda link: link.sendall(ANSWERS[kind])):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None


def test_one_that_closes(lending: Lending) -> None:
    """Who hangs up is not waited for."""
    with pretending(lending, lambda link: link.close()):
        assert lending.borrowed(lending.join(), deadline_s=3600.0) is None


def test_a_silent_one_is_given_up_and_no_obstacle(lending: Lending, old: RingReader) -> None:
    """Who never answers costs a bounded time where it is alone, and none where another one answers."""
    new = lending.join()
    with pretending(lending, lambda _link: None):
        assert lending.borrowed(new, deadline_s=3600.0) is None
        with serving(lending, old):
            adopt(new, lending.borrowed(new, deadline_s=3600.0))
    same(old.table, new.table)
    assert WAIT_S <= 1.0


def test_one_that_was_stopped_is_not_waited_for(lending: Lending) -> None:
    """A process that was put aside cannot answer; once it goes on it is asked again."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process, pretending(lending, str, pid=process.pid) as path:

        def asked() -> list[Path]:
            return [item.endpoint.path for item in readers.of_engine(lending.engine)]

        assert asked() == [path]
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: not asked(), "the process to stop")
        process.send_signal(signal.SIGCONT)
        wait_for(asked, "the process to go on")
        process.kill()


def test_two_good_ones(lending: Lending, old: RingReader) -> None:
    """With two readers that answer the table is the same, whoever was quicker."""
    new = lending.join()

    def answer(link: socket.socket) -> None:
        with suppress(BrokenPipeError):  # the other one was quicker, and who asked has left
            whole(old)(link)

    with pretending(lending, answer), serving(lending, old):
        adopt(new, lending.borrowed(new))
    same(old.table, new.table)


def test_another_process_behind_the_name(lending: Lending, old: RingReader) -> None:
    """A socket whose name says another process than the one that listens is told nothing."""
    asked: list[socket.socket] = []

    def answer(link: socket.socket) -> None:
        asked.append(link)
        whole(old)(link)

    with pretending(lending, answer, pid=os.getppid()):
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None
        assert all(link.recv(100) == b"" for link in asked)


def test_an_open_folder_is_not_trusted(lending: Lending, old: RingReader) -> None:
    """Where others could put their socket nobody is asked."""
    with pretending(lending, whole(old)):
        lending.folder.chmod(0o777)
        assert lending.borrowed(lending.join(), deadline_s=SHORT_S) is None
        lending.folder.chmod(0o700)
