"""Nothing outside harms the engine: readers killed, garbage on the socket, many readers; and a dying engine."""

import os
import random
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support import engine_env
from tests.support.messages import explains
from tests.support.prompts import prompt
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "400", "--max-model-len", "2048")


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve a small model."""
    with serve(model("gemma3"), *ARGUMENTS) as running:
        yield running


def sound(server: Server) -> bool:
    """Tell whether the engine serves, and the agent answers with every error counter at 0 and its breaker closed."""
    server.http.complete(prompt("sound", 70))
    overview = server.kvctl("inspect", "-o", "json")
    assert overview.code == 0, overview.stderr
    counters = overview.json["counters"]
    return bool(counters["probe_errors"] == 0 and counters["probe_breaker_open"] == 0)


def readers(server: Server) -> int:
    """Return how many readers the feed counts, the one that asks not among them."""
    with server.session() as session:
        return sum(session.call("capabilities")["feed"]["readers"].values())


def joined_or_done(server: Server, process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a command follows the feed by now, or has already ended."""
    return readers(server) > 0 or process.poll() is not None


def test_commands_killed_in_the_middle(server: Server) -> None:
    """Commands killed -9 at any moment leave no reader behind, and the engine serves on."""
    environment = engine_env.clean_environment() | {"KVCTL_RUNTIME_DIR": str(server.runtime)}
    draw = random.Random(9)
    for arguments in (("decisions", "-f"), ("inspect", "prefixes"), ("inspect", "pages", "-w", "-i", "0.05")) * 2:
        process = subprocess.Popen(
            [*engine_env.kvctl_command(), *arguments],
            env=environment,
            cwd=engine_env.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        if draw.random() < 0.5 or arguments[0] == "decisions":
            wait_for(partial(joined_or_done, server, process), "the command to join")
        else:
            process.stdout.read(1)
        process.kill()
        process.wait()
        process.stdout.close()
        wait_for(lambda: readers(server) == 0, "the dead reader to be counted out")
    assert sound(server)


def garbage() -> list[bytes]:
    """Return what a port scanner, a lost client or an attacker may send."""
    draw = random.Random(21)
    frames = [b"", b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 4096, b"\xff" * 64]
    frames += [struct.pack("<I", size) for size in (0, 1, 1 << 20, 0xFFFFFFFF)]
    bodies = [b"{", b"[]", b"null", b'{"hello": 1}', b'{"hello": {"protocol": 99}}', b"\xc3\x28", b'{"a":' * 2000]
    frames += [struct.pack("<I", len(body)) + body for body in bodies]
    return frames + [draw.randbytes(draw.randrange(1, 3000)) for _ in range(50)]


def test_garbage_on_the_socket(server: Server) -> None:
    """Whatever bytes arrive, the connection ends or stays quiet; the engine serves and the agent answers."""
    (path,) = server.runtime.glob("engine-*.sock")
    for data in garbage():
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5.0)
            client.connect(str(path))
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                continue
    assert sound(server)


def test_sixteen_readers(server: Server) -> None:
    """Sixteen readers follow at once while requests run; all see the same table in the end."""
    sessions = [server.session() for _ in range(16)]
    try:
        with ThreadPoolExecutor(17) as pool:
            work = pool.submit(lambda: [server.http.complete(prompt(f"r {n}", 200)).cached_tokens for n in range(12)])
            list(pool.map(lambda session: session.follow(deadline_s=120.0), sessions))
            work.result(timeout=300)
        tables = []
        for session in sessions:
            session.poll()
            pages = session.snapshot().pages
            assert pages is not None
            tables.append((bytes(pages.key), bytes(pages.group), bytes(pages.tokens)))
        assert len(set(tables)) == 1
        assert sum(sessions[0].call("capabilities")["feed"]["readers"].values()) == 16
        refused = server.kvctl("inspect")
        assert (refused.code, refused.stdout) == (5, ""), refused.stderr
        assert "16 readers" in refused.stderr
    finally:
        for session in sessions:
            session.close()
    wait_for(lambda: readers(server) == 0, "all readers to be counted out")
    assert sound(server)


def test_engine_dies_in_the_middle(model: Callable[..., Path]) -> None:
    """A command whose engine dies ends by itself, at once, with one sentence and exit code 3."""
    with serve(model("gemma3"), *ARGUMENTS) as dying:
        environment = engine_env.clean_environment() | {"KVCTL_RUNTIME_DIR": str(dying.runtime)}
        commands = [("decisions", "-f"), ("inspect", "pages", "-w", "-i", "0.2")]
        processes = [
            subprocess.Popen(
                [*engine_env.kvctl_command(), *arguments],
                env=environment,
                cwd=engine_env.ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments in commands
        ]
        wait_for(lambda: readers(dying) == len(commands), "the commands to join")
        os.kill(dying.engine_pid(), signal.SIGKILL)
        for process in processes:
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 3, errors
            assert "Traceback" not in errors
            assert "next:" in errors
        explains(dying.kvctl("inspect"), 3, "no engine")
