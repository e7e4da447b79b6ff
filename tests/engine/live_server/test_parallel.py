"""Several engines on one host: two servers, two data parallel ranks, two tensor parallel workers."""

from collections.abc import Callable
from pathlib import Path

from tests.support.messages import explains
from tests.support.prompts import prompt
from tests.support.server import serve

SMALL = ("--block-size", "32", "--num-gpu-blocks-override", "128", "--max-model-len", "1024")


def test_two_servers(model: Callable[..., Path]) -> None:
    """Two servers are listed apart; a command that does not say which is refused and names both."""
    with (
        serve(model("llama"), *SMALL) as first,
        serve(model("llama"), *SMALL, "--served-model-name", "other", runtime=first.runtime) as second,
    ):
        listed = first.kvctl("ps", "-o", "json").json["engines"]
        pids = {first.engine_pid(), second.engine_pid()}
        assert {engine["pid"] for engine in listed} == pids
        explains(first.kvctl("inspect"), 3, *map(str, pids), "--pid")
        named = first.kvctl("inspect", "--engine", "other", "-o", "json")
        assert named.json["engine"]["pid"] == second.engine_pid()
        explains(first.kvctl("inspect", "--engine", "nobody"), 3, "kvctl ps")


def test_data_parallel(model: Callable[..., Path]) -> None:
    """Each data parallel rank is an engine of its own with its own socket and rank."""
    with serve(model("llama"), *SMALL, "--data-parallel-size", "2") as server:
        for number in range(4):
            server.http.complete(prompt(f"rank {number}", 200))
        listed = server.kvctl("ps", "-o", "json").json["engines"]
        assert sorted(engine["engine"]["data_parallel_rank"] for engine in listed) == [0, 1]
        assert len({engine["pid"] for engine in listed}) == 2
        explains(server.kvctl("inspect"), 3, "--pid")
        explains(server.kvctl("inspect", "--pid", str(server.process.pid)), 3, "2 engine cores")
        decisions = 0
        for engine in listed:
            one = server.kvctl("decisions", "--pid", str(engine["pid"]), "-o", "json")
            assert one.code == 0, one.stderr
            decisions += len(one.json["decisions"])
        assert decisions == 4


def test_tensor_parallel(model: Callable[..., Path]) -> None:
    """Two tensor parallel workers are one engine, listed once with its size."""
    # The CPU build gives each worker a NUMA node of its own; this lets two of them share one.
    simulated = {"VLLM_CPU_SIM_MULTI_NUMA": "1"}
    with serve(model("llama"), *SMALL, "--tensor-parallel-size", "2", environment=simulated) as server:
        server.http.complete(prompt("parallel", 200))
        again = server.http.complete(prompt("parallel", 200))
        (engine,) = server.kvctl("ps", "-o", "json").json["engines"]
        assert engine["engine"]["tensor_parallel_size"] == 2
        decisions = server.kvctl("decisions", "-o", "json").json["decisions"]
        assert [item["usable_tokens"] for item in decisions] == [0, again.cached_tokens]
        assert server.kvctl("inspect", "prefixes").code == 0
