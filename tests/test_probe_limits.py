"""What a reader, or a host at its limits, must not be able to do to the engine by way of the probe."""

import os
import resource
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.client import Client, connect_path
from agent.discovery import Endpoint, EndpointState, discover
from agent.errors import AgentError, RefusedError
from agent.probe.ghost import TAKEN_KEYS, Ghost
from agent.probe.server import MAX_WAITING, Server
from tests.support.tiny_engine import TinyEngine, tiny_engine
from tests.support.waiting import wait_for


def endpoint(runtime: Path) -> Endpoint:
    """The only engine there."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    return found


def descriptors_open() -> int:
    """Number of descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def server_of(engine: TinyEngine) -> Server:
    """Its server."""
    assert engine.probe is not None
    assert engine.probe.server is not None
    return engine.probe.server


def note(ghost: Ghost, count: int, stamp: int) -> list[bytes]:
    """Register ``count`` new keys of group 0 in one call, as a fold does."""
    keys = [os.urandom(32) for _ in range(count)]
    assert ghost.sink is not None
    ghost.sink((stamp,), (32 * count,), (0,), b"".join(keys))
    return keys


def test_a_full_ghost_set_forgets_whole_generations_and_says_so() -> None:
    """It never holds more than its capacity, forgets the oldest, and an unknown key then means "cannot tell"."""
    capacity, batch = 1 << 12, 1 << 7
    ghost = Ghost(capacity)
    first = note(ghost, batch, 1)
    assert ghost.seen(0, [*first, bytes(16)], before=2) == "1" * batch + "0"
    assert ghost.seen(1, first, before=2) == "0" * batch
    assert ghost.seen(0, first, before=1) == "0" * batch
    for stamp in range(2, 200):
        last = note(ghost, batch, stamp)
        assert len(ghost) <= capacity + batch
    assert not ghost.complete
    assert ghost.forgotten == 199 * batch - len(ghost)
    assert ghost.seen(0, first, before=1 << 40) == "?" * batch
    assert ghost.seen(0, last, before=1 << 40) == "1" * batch


def test_a_ghost_set_that_shrinks_or_is_off_admits_it() -> None:
    """A lowered capacity is reached over some turns; without a capacity nothing is known."""
    ghost = Ghost(1 << 12)
    for stamp in range(32):
        note(ghost, 1 << 7, stamp)
    ghost.resize(1 << 9)
    for stamp in range(32, 96):
        last = note(ghost, 1 << 5, stamp)
    assert len(ghost) <= (1 << 9) + (1 << 5)
    assert ghost.seen(0, last, before=1 << 40) == "1" * len(last)
    ghost.resize(0)
    assert ghost.sink is None
    assert ghost.seen(0, last, before=1 << 40) == "?" * len(last)
    assert Ghost(0).seen(0, last, before=1) == "?" * len(last)


def test_a_ghost_set_tells_registrations_apart() -> None:
    """Every page has the stamp of its own call, the first one counts, and a question between two of them is right."""
    ghost = Ghost(1 << 12)
    keys = [bytes([number]) * 32 for number in range(4)]
    ghost.add(range(7, 10), [32, 0, 64], [0, 5, 1], keys[0] + keys[1] + bytes(32))
    assert [ghost.seen(0, keys[:1], before=stamp) for stamp in (7, 8)] == ["0", "1"]
    assert [ghost.seen(1, keys[1:2], before=stamp) for stamp in (9, 10)] == ["0", "1"]
    ghost.add([5, 11], [32, 32], [1, 2], keys[1] + keys[2])
    assert [ghost.seen(1, keys[1:2], before=stamp) for stamp in (5, 6)] == ["0", "1"]
    assert ghost.seen(2, keys[2:], before=12) == "10"
    assert ghost.seen(3, keys, before=12) == "0000"


def test_what_was_taken_out_on_purpose_is_known_until_it_is_registered_again() -> None:
    """Of the group that lost it, for look-ups that came after; memory of it is bounded."""
    ghost = Ghost(1 << 12)
    keys = [bytes([number]) * 32 for number in range(3)]
    ghost.add([5], [96], [1], b"".join(keys))
    ghost.take_out([(1, keys[0] + bytes(4)), (1, keys[1])], 7)

    def taken(group: int, before: int) -> str:
        ghost.seen(group, keys, before=before)
        return ghost.taken(group, keys, before=before)

    assert (taken(1, 8), taken(1, 7), taken(2, 8)) == ("110", "000", "000")
    ghost.add([9], [32], [1], keys[0])
    assert (taken(1, 10), taken(1, 9)) == ("010", "110"), "a question may come late"
    ghost.take_out([(1, number.to_bytes(32, "little")) for number in range(TAKEN_KEYS)], 11)
    assert taken(1, 12) == "100", "of the older ones none is left; 32 zero bytes are one of these"


def test_without_descriptors_the_probe_rests(engine: TinyEngine, runtime: Path) -> None:
    """A reader that cannot be accepted waits; the probe's thread does not turn in circles meanwhile."""
    where, server = endpoint(runtime), server_of(engine)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        folder = os.open(where.path.parent, os.O_PATH)
        lowest = os.dup(folder)
        os.close(lowest)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            link.connect(f"/proc/self/fd/{folder}/{where.path.name}")
            wait_for(lambda: server._deaf, "the probe to give up")
            listening = [key.fileobj for key in server._selector.get_map().values()]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(folder)
        assert server._listener not in listening
        link.settimeout(10)
        link.sendall(wire.encode({"hello": {"protocol": wire.PROTOCOL}}))
        assert link.recv(4096)


def test_a_limit_reaches_the_engine_no_longer_than_its_chain(
    engine: TinyEngine, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines make tables as long as the limit: a reader must not choose how much memory that takes."""
    seen: list[int] = []

    def engine_hit(_hashes: object, limit: int) -> int:
        seen.append(limit)
        return 0

    monkeypatch.setattr(engine, "engine_hit", engine_hit)
    with Client(endpoint(runtime)) as client:
        client.call("engine_hit", hashes="00" * 64, limit=1 << 50)
        client.call("engine_hit", hashes="00" * 64, limit=20)
    assert seen == [32, 20]


def test_answers_that_nobody_takes_do_not_pile_up(engine: TinyEngine, runtime: Path) -> None:
    """A reader that asks and does not read is not listened to any more; once it reads, it gets every answer."""
    where, server = endpoint(runtime), server_of(engine)
    asked = 6_000
    question = wire.encode({"id": 1, "op": "ping", "args": {}})
    with connect_path(where.path, 10.0) as link:
        link.sendall(wire.encode({"hello": {"protocol": wire.PROTOCOL}}))
        writer = threading.Thread(target=link.sendall, args=(question * asked,), daemon=True)
        link.settimeout(60)
        writer.start()
        wait_for(lambda: any(one.waiting > MAX_WAITING for one in server._connections), "the backlog")
        buffer, answers, most = wire.FrameBuffer(wire.MAX_REPLY), 0, 0
        while answers < asked + 1:
            most = max(most, *(one.waiting for one in list(server._connections)))
            buffer.feed(link.recv(1 << 18))
            while buffer.next() is not None:
                answers += 1
        writer.join(10)
    assert MAX_WAITING < most < 2 * MAX_WAITING


def test_the_descriptor_of_an_answer_is_its_own(
    engine: TinyEngine, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that is closed before the answer was sent: the reader gets the ring, never another file of the host."""
    probe = engine.probe
    assert probe is not None
    reading, writing = os.pipe()

    def join(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
        return {"descriptor": reading}

    monkeypatch.setattr(probe.standing, "require", lambda _name: None)
    monkeypatch.setattr(probe, "join", join)
    monkeypatch.setattr(probe, "leave", lambda *_args, **_kwargs: os.close(reading))
    go_on = engine.block()
    open_before = descriptors_open()
    with connect_path(endpoint(runtime).path, 10.0) as link:
        link.sendall(wire.encode({"hello": {"protocol": wire.PROTOCOL}}))
        link.sendall(wire.encode({"id": 1, "op": "join", "args": {}}))
        wait_for(lambda: probe.safe_point.waiting, "the question")
        go_on()
        descriptors: list[int] = []
        link.settimeout(10)
        while not descriptors:
            _, descriptors, _, _ = socket.recv_fds(link, 1 << 16, 4)
    wait_for(lambda: not _is_open(reading), "the reader to have left")
    (received,) = descriptors
    os.write(writing, b"ring")
    assert os.read(received, 4) == b"ring"
    os.close(received)
    os.close(writing)
    wait_for(lambda: descriptors_open() == open_before - 2, "descriptors to be closed")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_an_answer_that_cannot_be_written_is_an_error(
    engine: TinyEngine, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that is no JSON (an infinite number of the engine's) is said at once, not waited for."""
    monkeypatch.setattr(engine, "holders", lambda: {1: float("inf")})
    with Client(endpoint(runtime)) as client:
        with pytest.raises(AgentError, match="failed to answer"):
            client.call("holders", deadline_s=5.0)
        assert client.call("ping")["guard"]["on"]


def test_engines_of_one_process_have_sockets_of_their_own(runtime: Path) -> None:
    """An engine that came after another one ended takes no socket that is in use."""
    first, second = TinyEngine(), TinyEngine()
    for one in (first, second):
        one.start({"KVCTL_RUNTIME_DIR": str(runtime)})
    first.stop()
    with tiny_engine(runtime) as third:
        paths = {server_of(one).path for one in (second, third)}
        assert len(paths) == 2
        live = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
        assert {found.path for found in live if found.state is EndpointState.LIVE} == paths
    assert server_of(second).path.exists()
    second.stop()


def test_a_host_without_threads_keeps_nothing(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the probe may not start its thread there is no socket, the reason is known, and all else goes on."""
    engine = TinyEngine()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "kvctl-probe":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = descriptors_open()
    probe = engine.start({"KVCTL_RUNTIME_DIR": str(runtime)})
    assert probe.guard.on
    assert "can't start new thread" in probe.standing.off["socket"]
    assert not discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    assert descriptors_open() == before
    engine.stop()


@pytest.mark.parametrize("part", [b"[]", b"1"], ids=["lists", "numbers"])
def test_a_frame_that_takes_long_to_parse_is_refused(engine: TinyEngine, runtime: Path, part: bytes) -> None:
    """Parsing never lets go of the interpreter: 6 MB of empty lists would stop the engine for more than a second."""
    body = b'{"id":1,"op":"ping","args":{"x":[' + b",".join([part] * 1_900_000) + b"]}}"
    assert len(body) < wire.MAX_REQUEST
    with connect_path(endpoint(runtime).path, 10.0) as link:
        link.sendall(wire.encode({"hello": {"protocol": wire.PROTOCOL}}))
        link.sendall(len(body).to_bytes(4, "little") + body)
        received = b""
        while data := link.recv(1 << 16):
            received += data
    assert b"too many parts" in received


def test_a_change_that_was_made_is_not_answered_by_an_error(
    engine: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the eviction: an error would say that nothing was changed, and it was."""
    probe = engine.probe
    assert probe is not None
    lines: list[str] = []

    def write(_uid: int, _pid: int, _operation: str, details: dict[str, Any]) -> None:
        if lines:
            raise RefusedError("nothing is changed without an audit log", why="no space left")
        lines.append(details["result"])

    monkeypatch.setattr(probe.audit_log, "write", write)
    monkeypatch.setattr(engine, "evict", lambda _keys, **_options: {0: 3})
    plan = {"engine": [probe.info.pid, probe.info.start_ticks], "entries": []}
    assert probe.changes.apply(plan, uid=0, pid=1, quarantine=True)["removed"] == 3
    assert lines == ["begun"]
    assert "audit log" in str(probe.guard.last_error)
