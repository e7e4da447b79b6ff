"""``kvctl validate --watch`` on ``vllm serve``: clean readings, a fault once as new, and the exit code at the end."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_env, planting
from tests.support.prompts import prompt
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

BLOCK = 32
ARGUMENTS = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", "256", "--max-model-len", "1024")
READINGS = 3
"""Readings that are awaited before and after a fault."""


@pytest.fixture
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A server into which faults can be planted."""
    with serve(
        model("llama"),
        *ARGUMENTS,
        environment={"VLLM_SERVER_DEV_MODE": "1"},
        plugins={"kvctl_test_planting": (Path(planting.__file__), "install")},
    ) as running:
        yield running


class Watching:
    """A running ``kvctl validate --watch``, and the file that it writes to."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.process = process
        self._out = out
        self._found: list[dict[str, Any]] = []
        self._rest = ""
        self._read = 0

    @property
    def readings(self) -> list[dict[str, Any]]:
        """Everything that it has said so far."""
        with self._out.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        self._read += len(fresh)
        self._rest += fresh.decode("ascii")
        *whole, self._rest = self._rest.split("\n}\n")
        self._found += [json.loads(text + "}") for text in whole]
        return self._found

    def more(self, count: int) -> list[dict[str, Any]]:
        """Wait for readings that begin from now on, and return them."""
        begun = len(self.readings) + 1
        wait_for(lambda: self.process.poll() is not None or len(self.readings) >= begun + count, "more readings")
        assert self.process.poll() is None, "the watch ended by itself"
        return self._found[begun : begun + count]

    def interrupt(self) -> int:
        """Do what Ctrl-C does; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)


@contextmanager
def watch(server: Server, folder: Path, *arguments: str) -> Iterator[Watching]:
    """Watch a server until the context is left."""
    out = folder / "out.json"
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    listening = ("env", "--default-signal=INT")
    command = [*listening, *engine_env.kvctl_command(), "validate", "--watch", "-i", "0.2", "-o", "json", *arguments]
    with out.open("wb") as file:
        environment = {**engine_env.clean_environment(), "KVCTL_RUNTIME_DIR": str(server.runtime)}
        process = subprocess.Popen(command, env=environment, cwd=engine_env.ROOT, stdout=file, stderr=file)
    try:
        yield Watching(process, out)
    finally:
        process.kill()
        process.wait()


def codes(reading: dict[str, Any], *, new: bool | None = None) -> list[str]:
    """Return the codes that one reading found: all, or those that are new or not."""
    return [item["code"] for item in reading["findings"] if new is None or item["new"] is new]


def plant(server: Server) -> None:
    """Plant the fault."""
    server.http.request(planting.PATH, {}, method="POST")


def test_a_watch_finds_a_fault_once(server: Server, tmp_path: Path) -> None:
    """Clean readings while requests come; a fault is new in one reading; a decision is compared in one; Ctrl-C: 1."""
    ids = prompt("watched", 4 * BLOCK + 5)
    server.http.complete(ids)
    with watch(server, tmp_path) as watching:
        clean = watching.more(READINGS)
        server.http.complete(ids)
        clean += watching.more(READINGS)
        assert [codes(reading) for reading in clean] == [[]] * len(clean)
        assert {reading["verdict"] for reading in watching.readings} <= {"pass", "abstain"}

        plant(server)
        before = len(watching.readings)
        wait_for(lambda: any(codes(one) for one in watching.readings[before:]), "the fault to be found")
        watching.more(READINGS)
        assert server.http.complete(ids).cached_tokens, "it was meant to reuse the foreign page"
        wait_for(lambda: any("KV305" in codes(one) for one in watching.readings), "the wrong reuse to be found")
        watching.more(READINGS)
        code = watching.interrupt()
        found = watching.readings

    assert code == 1
    assert [codes(one, new=True) for one in found if codes(one, new=True)] == [["KV101"], ["KV113", "KV305"]]
    first = next(number for number, one in enumerate(found) if codes(one))
    assert all("KV101" in codes(one) for one in found[first:]), "the table still names the page"
    assert sum("KV305" in codes(one) for one in found) == 1, "one decision, compared once"
    assert found[-1]["earlier"] == ["KV305"]


def test_exit_codes_of_a_watch(server: Server, tmp_path: Path) -> None:
    """Interrupted without a finding: 130; what a gate could not tell is 6 where it counts; a finding may not count."""
    server.http.complete(prompt("codes", 4 * BLOCK + 5))
    with watch(server, tmp_path) as watching:
        watching.more(READINGS)
        assert watching.interrupt() == 130
    with watch(server, tmp_path, "--fail-on", "abstain") as watching:
        watching.more(READINGS)
        assert watching.interrupt() == 6
    with watch(server, tmp_path, "--gate", "1", "--fail-on", "abstain") as watching:
        assert {reading["verdict"] for reading in watching.more(READINGS)} == {"pass"}
        assert watching.interrupt() == 130
    plant(server)
    for level, code in (("error", 0), ("warning", 1)):
        ended = server.kvctl("validate", "--watch", "-n", "3", "-i", "0.1", "--fail-on", level, "-o", "json")
        assert ended.code == code, ended.stderr
