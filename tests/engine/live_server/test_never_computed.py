"""Case 21 on the live engine: pages that carry a key and were never computed are named before anybody hits them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_env
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
            env=engine_env.engine_environment(runtime),
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


def test_named_before_anybody_hits_them(load: Lockstep) -> None:
    """KV118 names exactly the pages whose bytes were never written; afterwards the engine serves them, and wrongly."""
    preempted = load.stage("preempted")
    assert len(preempted["never_written"]) == 2
    checked = load.host.kvctl("validate", "--gate", "1", "-o", "json")
    assert checked.code == 1, checked.stderr
    found = [item for item in checked.json["findings"] if item["code"] == "KV118"]
    assert sorted(page for item in found for page in item["pages"]) == preempted["never_written"]
    load.go_on()
    served = load.stage("served")
    load.go_on()
    apart = load.stage("apart")
    assert served["cached"] > 640
    assert served["tokens"] != apart["tokens"]
