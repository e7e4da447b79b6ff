"""A client and a real probe: questions, deadlines, refusals, and readers that behave badly."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.client import Client, connect_path
from agent.discovery import Endpoint, discover
from agent.engines.base import RequestRow
from agent.errors import (
    DeadlineError,
    ProtocolError,
    RefusedError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from agent.probe.server import MAX_READERS
from agent.session import Session
from tests.support.engine_env import ROOT
from tests.support.tiny_engine import TinyEngine, tiny_engine
from tests.support.waiting import wait_for


def endpoint(runtime: Path) -> Endpoint:
    """The only engine there."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    return found


def test_questions_are_answered(engine: TinyEngine, runtime: Path) -> None:
    """Overview, decisions, counters and capabilities come back as values."""
    engine.rows = [
        RequestRow(
            id="r[bold]\x1b",
            status="running",
            tokens=20,
            prompt_tokens=10,
            computed_tokens=19,
            in_flight_tokens=0,
            preemptions=0,
            priority=0,
            tables=([3, 1, 2],),
        )
    ]
    with Session.open(endpoint(runtime)) as session:
        overview = session.overview()
        assert overview.engine == session.info
        assert overview.pool is not None
        assert overview.pool.pages == 4
        assert overview.requests is not None
        assert overview.requests[0].id == "r[bold]\x1b"
        assert overview.requests[0].tables == ((3, 1, 2),)
        assert session.decisions() == ()
        assert session.call("free_list")["free_list_torn"] is False
        off = {item.name: item.reason for item in overview.capabilities if not item.on}
        assert off["feed"] == "this engine has no page table to follow"
    assert "tiny-engine" in engine.threads


def test_tables_are_read_on_the_engines_thread(engine: TinyEngine, runtime: Path) -> None:
    """No table of the engine is touched from the probe's own thread."""
    with Session.open(endpoint(runtime)) as session:
        for _ in range(5):
            session.overview()
    assert engine.threads == {"tiny-engine"}


def test_following_without_a_feed_says_why(engine: TinyEngine, runtime: Path) -> None:
    """A capability that is off is refused with its reason."""
    with Session.open(endpoint(runtime)) as session, pytest.raises(UnsupportedError) as caught:
        session.follow()
    assert caught.value.why == "this engine has no page table to follow"


def test_read_only_unless_allowed(engine: TinyEngine, runtime: Path) -> None:
    """Without permission nothing is changed, and the error says how to get it."""
    with Session.open(endpoint(runtime)) as session:
        with pytest.raises(RefusedError, match="read-only") as caught:
            session.call("options", set={"ghost_keys": 0})
        assert "--allow-changes" in str(caught.value.next_step)
        with pytest.raises(RefusedError):
            session.call("invalidate_apply", plan={})
        assert session.call("options")["ghost_keys"]["value"] > 0


def test_changes_are_written_down(runtime: Path) -> None:
    """An allowed change takes effect and stands in the audit log with who, when and what."""
    with tiny_engine(runtime, KVCTL_ALLOW_CHANGES="1"), Session.open(endpoint(runtime)) as session:
        assert session.call("options", set={"ghost_keys": 5}) == {"ghost_keys": 5}
        with pytest.raises(UsageError, match="takes an integer from"):
            session.call("options", set={"ghost_keys": -1})
        with pytest.raises(UsageError, match="no option"):
            session.call("options", set={"nonsense": 1})
    line = (runtime / "audit.jsonl").read_text(encoding="utf-8")
    assert f'"uid":{os.geteuid()}' in line
    assert '"ghost_keys":5' in line
    assert (runtime / "audit.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("decisions", {"since": -1}),
        ("decisions", {"limit": "many"}),
        ("decisions", {"nonsense": 1}),
        ("engine_hit", {}),
        ("engine_hit", {"hashes": "zz"}),
        ("seen", {"keys": "abc"}),
        ("seen", {"keys": "ab"}),
        ("free_list", {"x": 1}),
        ("bootstrap", {}),
    ],
)
def test_questions_that_make_no_sense(engine: TinyEngine, runtime: Path, op: str, args: dict[str, Any]) -> None:
    """Arguments are judged before anything runs; the connection goes on."""
    with Client(endpoint(runtime)) as client:
        with pytest.raises(UsageError):
            client.call(op, **args)
        assert client.call("ping")["guard"]["on"]


def test_an_unknown_operation(engine: TinyEngine, runtime: Path) -> None:
    """An operation that does not exist is a protocol error; the connection goes on."""
    with Client(endpoint(runtime)) as client:
        with pytest.raises(ProtocolError, match="cannot be understood"):
            client.call("nonsense")
        assert client.call("ping")["guard"]["on"]


def test_a_busy_engine_is_a_deadline(engine: TinyEngine, runtime: Path) -> None:
    """An engine that passes no safe point leads to a clear error in time; what needs none is answered meanwhile."""
    with Client(endpoint(runtime)) as client:
        go_on = engine.block()
        with pytest.raises(DeadlineError, match=r"passed no safe point in time|did not answer"):
            client.call("overview", deadline_s=0.1)
        assert client.call("ping")["guard"]["on"]
        go_on()
        assert client.call("overview", deadline_s=30)["pool"]["pages"] == 4


def test_switching_off(engine: TinyEngine, runtime: Path) -> None:
    """`stop` answers, then the socket is gone; the engine is not."""
    where = endpoint(runtime)
    with Client(where) as client:
        assert client.call("stop") == {"stopped": True}
    wait_for(lambda: not where.path.exists(), "the socket to go")
    assert engine.probe is not None
    assert engine.probe.guard.reason == f"stopped by uid {os.geteuid()}"


def test_the_kill_file_switches_off(engine: TinyEngine, runtime: Path) -> None:
    """A file named off in the runtime folder takes the probe out."""
    where = endpoint(runtime)
    (runtime / "off").touch()
    wait_for(lambda: not where.path.exists(), "the socket to go")
    assert engine.probe is not None
    assert not engine.probe.guard.on


def test_sixteen_readers_and_a_clear_refusal(engine: TinyEngine, runtime: Path) -> None:
    """Sixteen readers are served, the next one is told why not, and its place is free again afterwards."""
    where = endpoint(runtime)
    clients = [Client(where) for _ in range(MAX_READERS)]
    assert all(client.call("ping")["guard"]["on"] for client in clients)
    with pytest.raises(RefusedError, match=f"{MAX_READERS} readers"):
        Client(where)
    clients.pop().close()

    def room() -> bool:
        try:
            Client(where).close()
        except RefusedError:
            return False
        return True

    wait_for(room, "the place of a reader that left")
    for client in clients:
        client.close()


GARBAGE = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f" + b"x" * 5000,
    struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
    struct.pack("<I", 2) + b"[]",
    struct.pack("<I", 2) + b"{}",
    struct.pack("<I", 4096) + b"{",
    wire.encode({"hello": {"protocol": 99}}),
    wire.encode({"hello": 1}),
    wire.encode({"hello": {"protocol": 1}}) + b"\xff\xff\xff\xff",
    wire.encode({"hello": {"protocol": 1}}) + wire.encode({"op": 1}),
    wire.encode({"hello": {"protocol": 1}}) + wire.encode({"id": 1, "op": "ping", "args": [1]}),
    wire.encode({"hello": {"protocol": 1}}) + wire.encode({"id": {"a": 1}, "op": "__init__"}),
    wire.encode({"hello": {"protocol": 1}}) + os.urandom(4000),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_hurts_nobody(engine: TinyEngine, runtime: Path, data: bytes) -> None:
    """Whatever arrives on the socket, the next reader is served and no error is counted against the engine."""
    where = endpoint(runtime)
    with connect_path(where.path, 10.0) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        while link.recv(65536):
            pass
    with Client(where) as client:
        assert client.call("overview")["pool"]["pages"] == 4
    assert engine.probe is not None
    assert engine.probe.guard.errors == 0


def test_another_protocol_is_named(engine: TinyEngine, runtime: Path) -> None:
    """A greeting in another version is answered with the version that is spoken here."""
    with connect_path(endpoint(runtime).path, 10.0) as link:
        link.sendall(wire.encode({"hello": {"protocol": 99}}))
        buffer = wire.FrameBuffer(wire.MAX_REPLY)
        buffer.feed(link.recv(65536))
    answer = buffer.next()
    assert answer is not None
    assert "protocol 1" in answer["error"]["why"]


def test_a_reader_that_does_not_read(engine: TinyEngine, runtime: Path) -> None:
    """A reader that asks and takes no answers holds up nobody."""
    where = endpoint(runtime)
    lazy = connect_path(where.path, 10.0)
    lazy.sendall(wire.encode({"hello": {"protocol": 1}}))
    lazy.settimeout(0.2)
    question = wire.encode({"id": 1, "op": "overview", "args": {}}) * 50
    try:
        for _ in range(200):
            lazy.sendall(question)
    except TimeoutError:
        pass
    with Client(where) as client:
        begin = time.monotonic()
        assert client.call("ping")["guard"]["on"]
        assert time.monotonic() - begin < 60
    lazy.close()


def test_another_process_behind_the_socket_is_refused(runtime: Path) -> None:
    """A socket whose name claims another process is not talked to."""
    with tiny_engine(runtime):
        real = endpoint(runtime)
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        from agent import paths

        ticks = paths.start_ticks(child.pid)
        assert ticks is not None
        stolen = real.path.with_name(paths.SocketName(pid=child.pid, start_ticks=ticks).text())
        os.link(real.path, stolen)
        fake = next(item for item in discover({"KVCTL_RUNTIME_DIR": str(runtime)}) if item.pid == child.pid)
        with pytest.raises(TargetError, match="another process answers"):
            Client(fake)
        child.communicate()


ENGINE_ALONE = """
import sys
from pathlib import Path
from typing import Any
from tests.support.tiny_engine import TinyEngine
engine = TinyEngine()
engine.start({"KVCTL_RUNTIME_DIR": sys.argv[1]})
print("ready", flush=True)
sys.stdin.readline()
engine.block()
print("blocked", flush=True)
sys.stdin.read()
"""


def test_an_engine_that_dies_during_a_question(runtime: Path) -> None:
    """When the engine's process ends under a question the error says so, at once."""
    child = subprocess.Popen(
        [sys.executable, "-c", ENGINE_ALONE, str(runtime)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    with Client(endpoint(runtime)) as client:
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"blocked\n"
        os.kill(child.pid, signal.SIGSTOP)
        killer = subprocess.Popen([sys.executable, "-c", f"import os; os.kill({child.pid}, 9)"])
        with pytest.raises(TargetError, match=rf"engine {child.pid} ended during `overview`|does not answer"):
            client.call("overview", deadline_s=60)
        killer.wait()
        assert not client.alive()
    child.communicate()
    with pytest.raises(TargetError, match="cannot be used"):
        Client(endpoint(runtime))


def test_a_client_killed_in_the_middle(engine: TinyEngine, runtime: Path) -> None:
    """Readers that are killed -9 while they read leave nothing behind."""
    code = "import sys; from agent.discovery import discover; from agent.client import Client\n"
    code += "c = Client(discover()[0]); print('on', flush=True)\nwhile True: c.call('overview')\n"
    environment = {**os.environ, "KVCTL_RUNTIME_DIR": str(runtime)}
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        child.kill()
        child.communicate()
    assert engine.probe is not None
    probe = engine.probe
    wait_for(lambda: probe.readers() == 0, "the killed readers to be forgotten")
    assert probe.guard.errors == 0


def test_a_forked_child_has_no_probe(engine: TinyEngine, runtime: Path) -> None:
    """In a child that the engine's process forks the probe is off, and the parent's socket lives on."""
    probe = engine.probe
    assert probe is not None
    child = os.fork()
    if child == 0:
        fine = not probe.guard.on and probe.server is None and probe.guard.call(lambda: 1) is None
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with Client(endpoint(runtime)) as client:
        assert client.call("ping")["guard"]["on"]


def test_jobs_of_an_engine_that_stands_still_do_not_pile_up(engine: TinyEngine, runtime: Path) -> None:
    """Questions to an engine that passes no safe point are given up in time, and a kill file still works."""
    assert engine.probe is not None
    safe_point = engine.probe.safe_point
    go_on = engine.block()
    for _ in range(3):
        with Client(endpoint(runtime)) as client, pytest.raises(DeadlineError):
            client.call("overview", deadline_s=0.05)
    wait_for(lambda: not safe_point.waiting, "the questions to be given up")
    go_on()


def test_an_open_breaker_is_reported(engine: TinyEngine, runtime: Path) -> None:
    """After the breaker has opened the socket still says why; questions that need the engine are refused at once."""
    assert engine.probe is not None
    with Client(endpoint(runtime)) as client:
        go_on = engine.block()
        waiting = Client(endpoint(runtime))
        waiting._send({"id": 1, "op": "overview", "args": {}}, "overview")
        wait_for(lambda: engine.probe is not None and engine.probe.safe_point.waiting, "the question to wait")
        engine.probe.guard.open("8 errors, the last in x")
        answer = waiting._receive("overview")
        assert (answer["ok"], answer["error"]["why"]) == (False, "8 errors, the last in x")
        with pytest.raises(TargetError, match="probe of this engine is off") as caught:
            client.call("overview")
        assert caught.value.why == "8 errors, the last in x"
        assert client.call("ping")["guard"]["on"] is False
        assert client.call("counters")["counters"]["probe_breaker_open"] == 1.0
        off = {item["name"]: item["reason"] for item in client.call("capabilities")["capabilities"] if not item["on"]}
        assert off["probe"] == "8 errors, the last in x"
        go_on()
        waiting.close()
