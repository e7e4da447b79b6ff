"""Targets that are not there, not ours, or not what they seem: one sentence, the next step, the exit code."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import engine_env
from tests.support.as_nobody import NOBODY
from tests.support.messages import explains
from tests.support.server import Host, Server, serve
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve a small model."""
    arguments = ("--block-size", "32", "--num-gpu-blocks-override", "256", "--max-model-len", "2048")
    with serve(model("llama"), *arguments) as running:
        yield running


@pytest.fixture
def host() -> Iterator[Host]:
    """A host without engines."""
    with engine_env.short_folder() as folder:
        folder.chmod(0o700)
        yield Host(runtime=folder)


def test_no_engine(host: Host) -> None:
    """Without an engine the command says how to start one."""
    explains(host.kvctl("inspect"), 3, "no engine", "kvctl run")
    listed = host.kvctl("ps", "-o", "json")
    assert (listed.code, listed.json["engines"]) == (0, [])


def test_unknown_pid(server: Server) -> None:
    """A pid that does not exist is said to not exist."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    explains(server.kvctl("inspect", "--pid", str(gone.pid)), 3, str(gone.pid), "no such process")


def test_foreign_pid(server: Server) -> None:
    """The pid of a program that is no engine is told apart from an engine."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        explains(server.kvctl("inspect", "--pid", str(other.pid)), 3, str(other.pid), "no agent")
    finally:
        other.kill()
        other.wait()


def test_pid_of_the_front_end(server: Server) -> None:
    """The pid that an operator sees, the API server's, finds the engine core below it."""
    overview = server.kvctl("inspect", "overview", "--pid", str(server.process.pid), "-o", "json")
    assert overview.code == 0, overview.stderr
    assert overview.json["engine"]["pid"] == server.engine_pid()


def test_socket_without_listener(host: Host) -> None:
    """A socket file with nobody behind it is refused at once."""
    path = host.runtime / f"engine-{os.getpid()}-{_ticks(os.getpid())}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    explains(host.kvctl("inspect", "--socket", str(path)), 3, str(os.getpid()), "refused")


def test_silent_socket(host: Host) -> None:
    """A listener that never answers costs the time-out, not the operator's evening."""
    path = host.runtime / f"engine-{os.getpid()}-{_ticks(os.getpid())}.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        path.chmod(0o600)
        silent.listen(8)
        explains(host.kvctl("inspect", "--socket", str(path), "--timeout", "1"), 124)


def _ticks(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]


def test_as_another_user(server: Server) -> None:
    """Another user sees no engine of ours, gets no traceback, and cannot use the socket by its name either."""
    (socket_file,) = server.runtime.glob("engine-*.sock")
    command = [sys.executable, "-m", "tests.support.as_nobody"]
    explains(server.kvctl("inspect", command=command), 3, "no engine")
    explains(server.kvctl("inspect", "--socket", str(socket_file), command=command), 3)


def test_of_another_user(host: Host) -> None:
    """Root does not silently trust a socket that belongs to somebody else: it says whose it is."""
    path = host.runtime / f"engine-{os.getpid()}-{_ticks(os.getpid())}.sock"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        os.chown(path, NOBODY, NOBODY)
        explains(host.kvctl("inspect", "--socket", str(path)), 3, f"uid {NOBODY}")
        explains(host.kvctl("inspect"), 3, f"uid {NOBODY}")


def test_leftovers_of_a_dead_engine(host: Host) -> None:
    """Case 20: sockets of a dead engine and of a pid that is another program now: not listed, named by doctor."""
    process = subprocess.Popen(["sleep", "600"])
    living = host.runtime / f"engine-{process.pid}-1.sock"
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = host.runtime / f"engine-{gone.pid}-12345.sock"
    try:
        for path in (living, dead):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path))
        listed = host.kvctl("ps", "-o", "json")
        assert (listed.code, listed.json["engines"]) == (0, [])
        explains(host.kvctl("inspect"), 3, "no engine")
        report = host.kvctl("doctor")
        assert living.name in report.stdout
        assert dead.name in report.stdout
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_nothing_is_left_after_the_server(model: Callable[..., Path]) -> None:
    """A server that ends takes its socket along; ps is empty and nothing hangs."""
    with engine_env.short_folder() as folder:
        folder.chmod(0o700)
        with serve(
            model("llama"), "--num-gpu-blocks-override", "64", "--max-model-len", "512", runtime=folder
        ) as server:
            assert len(server.kvctl("ps", "-o", "json").json["engines"]) == 1
            core = server.engine_pid()
        host = Host(runtime=folder)
        wait_for(lambda: not Path(f"/proc/{core}").exists(), "the engine core to end")
        assert host.kvctl("ps", "-o", "json").json["engines"] == []
