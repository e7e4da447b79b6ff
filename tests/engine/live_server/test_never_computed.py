"""Case 21 on the live engine: never-computed pages are named before anybody hits them, and can be taken out alone."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.discovery import discover
from agent.session import Session
from tests.support import engine_env
from tests.support.priority_run import COMPUTED
from tests.support.server import Host

SEED = 7


class Lockstep:
    """The running load, one stage at a time."""

    def __init__(self, process: subprocess.Popen[str], host: Host) -> None:
        self.process = process
        self.host = host

    def stage(self, name: str) -> dict[str, Any]:
        """Return the next stage's report."""
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "")
        line = next((line for line in lines if line.startswith("{")), None)  # vLLM logs to stdout as well
        assert line is not None, f"the load ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        assert answer["stage"] == name
        return answer

    def go_on(self) -> None:
        """Let the load run to its next stage."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def load(model: Callable[..., Path], tmp_path: Path) -> Iterator[Lockstep]:
    """Start the load with the agent in it."""
    folder = model("llama", SEED)
    with engine_env.short_folder() as runtime, (tmp_path / "err.txt").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.priority_run", str(folder)],
            cwd=engine_env.ROOT,
            env=engine_env.engine_environment(runtime, KVCTL_ALLOW_CHANGES="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Lockstep(process, Host(runtime=runtime))
        finally:
            process.kill()
            process.wait()


def named(host: Host) -> dict[str, set[int]]:
    """Return the pages that ``kvctl validate`` names, by code."""
    checked = host.kvctl("validate", "--gate", "1", "-o", "json")
    assert checked.code in {0, 1}, checked.stderr
    pages: dict[str, set[int]] = {}
    for item in checked.json["findings"]:
        pages.setdefault(item["code"], set()).update(item["pages"])
    return pages


def cached(host: Host) -> dict[int, bytes]:
    """Return the key of every cached page."""
    (endpoint,) = discover({"KVCTL_RUNTIME_DIR": str(host.runtime)})
    with Session.open(endpoint, deadline_s=30.0) as session:
        pages = session.snapshot().pages
    assert pages is not None
    tokens, keys = memoryview(pages.tokens).cast("B").cast("I"), bytes(pages.key)
    return {page: keys[16 * page : 16 * page + 16] for page in range(pages.count) if tokens[page]}


def take_out(host: Host, selector: str, pages: set[int]) -> None:
    """Invalidate, and see that exactly these pages lose their keys."""
    before = cached(host)
    taken = host.kvctl("invalidate", selector, "--yes", "-o", "json")
    assert taken.code == 0, taken.stderr
    assert set(taken.json["pages"]) == pages
    assert taken.json["applied"]["pages"] == len(pages)
    assert cached(host) == {page: key for page, key in before.items() if page not in pages}
    assert named(host) == {}


def test_taken_out_the_next_answer_is_right(load: Lockstep) -> None:
    """KV118 and KV119 name the pages; with them an answer is wrong, without them it is right, and all others hit."""
    preempted = load.stage("preempted")
    never = set(preempted["never_written"])
    assert len(never) == 2
    assert named(load.host) == {"KV118": never}
    load.go_on()
    served = load.stage("served")
    assert served["cached"] > 640
    found = named(load.host)
    assert found["KV118"] == never
    assert found.keys() == {"KV118", "KV119"}, "the answer was meant to fill a page on top of them"
    take_out(load.host, "stale", never | found["KV119"])
    load.go_on()
    again = load.stage("again")
    load.go_on()
    apart = load.stage("apart")
    assert served["tokens"] != apart["tokens"]
    assert again["tokens"] == apart["tokens"]
    assert again["cached"] == COMPUTED, "everything that was computed is still hit"
    load.go_on()
    second = load.stage("preempted")
    never = set(second["never_written"])
    assert named(load.host) == {"KV118": never}
    take_out(load.host, "page:" + ",".join(map(str, sorted(never))), never)
    load.go_on()
    again = load.stage("again")
    load.go_on()
    assert again["tokens"] == load.stage("apart")["tokens"]
    assert again["cached"] > 640, "whoever was preempted computed its own pages anew"
