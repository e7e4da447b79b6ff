"""`kvctl fingerprint` on a real server: contract and weights, pinned, compared, and used by `kvctl validate`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import other_weights
from tests.support.messages import explains
from tests.support.prompts import prompt
from tests.support.server import Server, serve

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "128", "--max-model-len", "1024")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for settings of the user, so that pins of this test are nobody else's."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A read-only Gemma-3-like server with weights."""
    with serve(
        model("gemma3", 1),
        *ARGUMENTS,
        weights=True,
        environment={"VLLM_SERVER_DEV_MODE": "1"},
        plugins={"kvctl_test_weights": (Path(other_weights.__file__), "install")},
    ) as running:
        running.http.complete(prompt("once", 100))
        yield running


def shown(server: Server, *more: str) -> dict[str, Any]:
    """Return what `fingerprint show` says."""
    found = server.kvctl("fingerprint", "show", "-o", "json", *more)
    assert found.code == 0, found.stderr
    data: dict[str, Any] = found.json
    return data


def test_every_field_of_the_contract_is_there(server: Server) -> None:
    """The contract names engine, runner, backend, kernel block, layout, groups and kinds, hash, and ranks."""
    contract = shown(server)["contract"]
    assert not contract["partial"]
    fields = contract["fields"]
    expected = {
        "engine": "vllm",
        "layout": "LBHNC",
        "runner": "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        "hash.algorithm": "sha256",
        "parallel.tensor_parallel_size": "1",
        "parallel.decode_context_parallel_size": "1",
        "speculative.width": "0",
        "cache.prefix_cache_retention_interval": "0",
        "geometry.hash_unit": "32",
        "group.0.backend": "CPU_ATTN",
        "group.0.kernel_block": "32",
        "group.0.kind.0.window": "64",
        "group.2.kind.0.spec": "FullAttentionSpec",
        "group.2.kind.0.block_size": "32",
        "group.2.kind.0.tokens_per_entry": "1",
        "group.2.kind.0.dtype": "bfloat16",
        "group.2.kind.0.page_bytes": "8192",
    }
    assert {name: fields.get(name) for name in expected} == expected
    assert {"version", "hash.seed", "model.config", "model.dtype"} <= fields.keys()


def test_what_a_worker_cannot_read_is_partial(server: Server) -> None:
    """On CPU most matrices are packed away: they are counted and named, the rest is hashed, the result is partial."""
    for more, mode in (((), "sample"), (("--full",), "full")):
        weights = shown(server, *more)["weights"]
        assert weights["read"] == mode
        assert weights["partial"]
        (reason,) = weights["missing"].values()
        assert "24 of 89 tensors could not be read" in reason
        assert "packed" in reason
        assert "memory.rank0" in weights["fields"]
        assert weights["fields"]["engine_version"] == "default"
    text = server.kvctl("fingerprint", "show").stdout
    assert "it can fail a comparison, it cannot pass one" in text


def test_pin_and_check(server: Server, tmp_path: Path) -> None:
    """A partial fingerprint cannot pass: 6; a field that differs is named and fails: 1; a pin is not replaced: 5."""
    file, other = tmp_path / "pin.json", tmp_path / "other.json"
    assert server.kvctl("fingerprint", "pin", "--file", str(file)).code == 0
    explains(server.kvctl("fingerprint", "pin", "--file", str(file)), 5, "--force")
    same = server.kvctl("fingerprint", "check", str(file), "-o", "json")
    assert (same.code, same.json["result"], same.json["differences"]) == (6, "unsure", [])
    plain = json.loads(file.read_text(encoding="utf-8"))
    plain["contract"]["fields"]["layout"] = "BLHNC"
    other.write_text(json.dumps(plain), encoding="utf-8")
    for command in (("check", str(other)), ("diff", str(other), str(file))):
        wrong = server.kvctl("fingerprint", *command, "-o", "json")
        assert wrong.code == 1
        (difference,) = wrong.json["differences"]
        assert difference == {"part": "contract", "field": "layout", "before": "BLHNC", "after": "LBHNC"}


def test_validate_compares_with_the_pin(server: Server, home: Path) -> None:
    """KV202 abstains without a pin, is clean right after pinning, and names the field that is not as pinned."""
    mine = Server(
        runtime=server.runtime,
        environment={"XDG_CONFIG_HOME": str(home)},
        process=server.process,
        port=server.port,
        log=server.log,
    )

    def kv202() -> tuple[list[str], str | None]:
        found = mine.kvctl("validate", "--gate", "2", "-o", "json").json
        reasons = {code: why for gate in found["gates"] for code, why in gate["abstained"].items()}
        return [item["sentence"] for item in found["findings"] if item["code"] == "KV202"], reasons.get("KV202")

    found, reason = kv202()
    assert found == []
    assert reason is not None
    assert "pinned" in reason
    pinned = mine.kvctl("fingerprint", "pin", "-o", "json")
    assert pinned.code == 0, pinned.stderr
    file = Path(pinned.json["file"])
    assert file == home / "kvctl" / "pins" / "m.json"
    assert kv202() == ([], None)
    plain = json.loads(file.read_text(encoding="utf-8"))
    plain["contract"]["fields"]["cache.cache_dtype"] = "fp8"
    file.write_text(json.dumps(plain), encoding="utf-8")
    (sentence,), _ = kv202()
    assert "cache.cache_dtype" in sentence
    assert "fp8" in sentence


def test_a_sleeping_engine_is_not_touched(server: Server) -> None:
    """While the engine sleeps nobody touches its weights: the fingerprint says so and is partial."""
    server.http.request("/sleep?level=1", {}, method="POST")
    asleep = shown(server)
    server.http.request("/wake_up", {}, method="POST")
    assert "sleeps" in asleep["weights"]["missing"]["memory"]
    assert not asleep["contract"]["partial"]
    assert "memory" not in shown(server)["weights"]["missing"]


def test_overwritten_weights_fail_a_check(server: Server, tmp_path: Path) -> None:
    """Weights that were overwritten in the worker fail the check, and the layers that differ are named."""
    file = tmp_path / "pin.json"
    assert server.kvctl("fingerprint", "pin", "--file", str(file)).code == 0
    body = {"method": other_weights.METHOD, "kwargs": {"factor": "2"}}
    server.http.request("/collective_rpc", body, method="POST")
    wrong = server.kvctl("fingerprint", "check", str(file), "-o", "json")
    assert wrong.code == 1
    fields = {item["field"] for item in wrong.json["differences"]}
    assert {"memory.rank0", "memory.rank0.model.layers.0", "memory.rank0.model.layers.5"} <= fields
    assert "memory.rank0.model.embed_tokens" not in fields


def test_two_workers(model: Callable[..., Path]) -> None:
    """Each tensor parallel worker reads its own part of the weights; what they agree on is one field."""
    # The CPU build gives each worker a NUMA node of its own; this lets two of them share one.
    simulated = {"VLLM_CPU_SIM_MULTI_NUMA": "1"}
    arguments = (*ARGUMENTS, "--tensor-parallel-size", "2")
    with serve(model("llama", 1), *arguments, weights=True, environment=simulated) as parallel:
        parallel.http.complete(prompt("parallel", 100))
        found = shown(parallel)
    assert found["contract"]["fields"]["parallel.tensor_parallel_size"] == "2"
    assert found["contract"]["fields"]["layout"] == "LBHNC"
    fields = found["weights"]["fields"]
    assert {"memory.rank0", "memory.rank1"} <= fields.keys()
    assert fields["memory.rank0.model.embed_tokens"] != fields["memory.rank1.model.embed_tokens"]
    assert fields["memory.rank0.model.norm"] == fields["memory.rank1.model.norm"]
