"""`vllm serve` with the agent in it: engine core and worker as processes of their own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import wire
from agent.client import Client, connect_path
from agent.discovery import EndpointState, discover
from agent.errors import KvctlError, RefusedError, TargetError
from agent.model.decision import Decision, Outcome, Phase, Reason
from agent.model.snapshot import Consistency, Level
from agent.probe.server import MAX_READERS
from agent.session import Session
from tests.support.engine_env import ROOT
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "256", "--max-model-len", "2048")


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A Gemma-3-like server."""
    with serve(model("gemma3"), *ARGUMENTS) as running:
        yield running


def decisions(session: Session, count: int) -> list[Decision]:
    """Wait for decisions in a session that follows."""
    seen: list[Decision] = []

    def enough() -> bool:
        seen.extend(session.poll())
        return len(seen) >= count

    wait_for(enough, f"{count} decisions")
    return seen


def healthy(server: Server) -> None:
    """Check that the engine serves and the probe counted no error."""
    assert server.http.complete(prompt("healthy", 40)).prompt_tokens == 40
    with server.session() as session:
        guard = session.call("ping")["guard"]
    assert (guard["on"], guard["errors"]) == (True, 0)


def test_only_the_engine_core_listens(server: Server) -> None:
    """API server, engine core and worker all load the plugin; one socket is there, of the engine core, mode 0600."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(server.runtime)})
    assert found.state is EndpointState.LIVE
    assert found.pid == server.engine_pid() != server.process.pid
    assert found.path.stat().st_mode & 0o777 == 0o600
    assert len(server.children()) >= 3


def test_an_idle_engine_answers(server: Server) -> None:
    """An engine that waits for requests is woken for a question, whole table included."""
    with server.session() as session:
        overview = session.overview()
        assert overview.pool is not None
        assert overview.pool.pages == 256
        assert overview.engine.name == "m"
        assert overview.engine.details["processes"] == "engine core and workers"
        assert [group.block_size for group in overview.geometry.groups] == [32, 32, 32]
        session.follow(Level.REFERENCES, deadline_s=30)
        snapshot = session.snapshot(free_list=True)
        assert snapshot.capture.consistency is Consistency.ATOMIC


def test_decisions_equal_what_the_server_reports(server: Server) -> None:
    """Every decision carries the cached tokens that the server reports to its client, and explains the rest."""
    stem = prompt("served", 1000)
    with server.session() as session:
        session.follow()
        prompts = [stem, stem, sibling(stem, 600, "served2", 100)]
        reported = [server.http.complete(ids) for ids in prompts]
        seen = decisions(session, 3)
    assert [item.engine_usable for item in seen] == [one.cached_tokens for one in reported] == [0, 992, 0]
    assert [item.usable for item in seen] == [0, 992, 0]
    assert all(item.request.startswith(one.id) for item, one in zip(seen, reported, strict=True))
    assert [item.phase for item in seen] == [Phase.FIRST] * 3
    assert seen[0].reason is Reason.COLD
    assert (seen[1].outcome, seen[1].reason) == (Outcome.REUSE, None)
    assert (seen[2].reason, seen[2].logical) == (Reason.NOT_RETAINED, 576)


def test_questions_during_work(server: Server) -> None:
    """Snapshots of a busy engine are of one moment each, and the requests are served."""
    answers: list[int] = []
    worker = threading.Thread(
        target=lambda: answers.extend(
            len(server.http.complete(prompt(f"work{number}", 500), tokens=40).token_ids) for number in range(3)
        )
    )
    with server.session() as session:
        session.follow()
        worker.start()
        count = 0
        while worker.is_alive():
            assert session.snapshot().capture.consistency is Consistency.ATOMIC
            count += 1
    worker.join()
    assert answers == [40, 40, 40]
    assert count > 3


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 4096,
        wire.encode({"hello": {"protocol": 1}}) + os.urandom(4096),
        wire.encode({"hello": {"protocol": 1}})[:7],
        wire.encode({"hello": {"protocol": 1}}) + wire.encode({"id": 1, "op": "read", "args": {}})[:9],
    ],
    ids=["http", "ones", "random", "half-greeting", "half-question"],
)
def test_garbage_on_the_socket(server: Server, data: bytes) -> None:
    """Garbage and half frames, left open while the engine works, hurt nobody."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(server.runtime)})
    with connect_path(found.path, 10.0) as link:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            link.sendall(data)
        healthy(server)
        link.shutdown(socket.SHUT_RDWR)


def test_sixteen_joined_readers(server: Server) -> None:
    """Sixteen readers follow the table at once, each sees every decision; one more is refused with a clear sentence."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(server.runtime)})
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(server.session()) for _ in range(MAX_READERS)]
        for session in sessions:
            session.follow(deadline_s=60)
        with pytest.raises(RefusedError, match="16 readers"):
            Client(found)
        done = server.http.complete(prompt("sixteen", 300))
        for session in sessions:
            assert decisions(session, 1)[0].request.startswith(done.id)
    with server.session() as session:
        wait_for(lambda: sum(session.call("capabilities")["feed"]["readers"].values()) == 0, "the readers to leave")
    healthy(server)


def test_readers_killed_in_the_middle(server: Server) -> None:
    """A reader that is killed -9 in the middle of reading is forgotten, its hooks leave with it."""
    code = (
        "from agent.session import open_target\n"
        "from agent.model.snapshot import Level\n"
        "s = open_target(); s.follow(Level.REFERENCES); print('on', flush=True)\n"
        "while True: s.snapshot(free_list=True)\n"
    )
    environment = {**os.environ, "KVCTL_RUNTIME_DIR": str(server.runtime)}
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        server.http.complete(prompt("killed", 200))
        child.kill()
        child.communicate()
    with server.session() as session:
        wait_for(lambda: sum(session.call("capabilities")["feed"]["readers"].values()) == 0, "the readers to leave")
    healthy(server)


def test_an_engine_that_dies_under_a_question(model: Callable[..., Path]) -> None:
    """When the engine core is killed while it is asked the command says so, and what is left behind is recognised."""
    with serve(model("llama"), *ARGUMENTS) as server:
        pid = server.engine_pid()
        session = server.session()
        session.follow()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(TargetError, match=f"engine {pid} ended during `overview`"):
            session.overview(deadline_s=60)
        with pytest.raises(KvctlError):
            session.poll()
        session.close()
        dead = (EndpointState.DEAD, f"process {pid} is gone")

        def left() -> list[tuple[EndpointState, str | None]]:
            return [(end.state, end.reason) for end in discover({"KVCTL_RUNTIME_DIR": str(server.runtime)})]

        # The front end reaps its child when it gets round to it; until then the process is there, as a zombie.
        wait_for(lambda: left() == [dead], "the engine's parent to notice its end")
