"""Fingerprints of saved snapshots: what a file keeps of the contract, and what it says that it does not know."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.codec import to_plain
from agent.engines.vllm.weights import CHANGING
from agent.errors import RefusedError
from agent.fingerprint import of_snapshot
from agent.model.evidence import Contract, Evidence, Weights
from agent.model.fingerprint import differences
from inspector.store import load, save
from inspector.views.weight_changes import CAUSES
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.snapshots import gemma

NAME = gemma().engine.name


class Engine(FakeSession):
    """A fake engine that tells its contract."""

    block = "16"

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer the operations of a fingerprint."""
        if op == "fingerprint":
            workers = [{"rank": 0, "fields": {"layout": "LBHNC"}, "loras": [], "error": None}]
            return {"contract": {"engine": "vllm", "cache.block_size": self.block}, "weights": {}, "workers": workers}
        if op == "read" and self.full.evidence is not None:
            return {"evidence": to_plain(self.full.evidence)}
        raise RefusedError(f"{op} is not asked here")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Let every command find the fake engine."""
    found = Engine(gemma())
    monkeypatch.setattr("agent.session.open_target", lambda **_: found)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Runner(capsys)


def test_a_saved_snapshot_keeps_the_contract(run: Runner, engine: Engine, tmp_path: Path) -> None:
    """`fingerprint show --snapshot` shows the contract that was in force; what the file lacks is unknown, by name."""
    file, whole = tmp_path / "s.kvsnap", tmp_path / "whole.kvsnap"
    assert run("snapshot", "save", file).code == 0
    assert run("snapshot", "save", whole, "--reveal").code == 0
    live = run("fingerprint", "show", "-o", "json").json["contract"]["fields"]
    data = run("fingerprint", "show", "--snapshot", file, "-o", "json").json
    check_schema(data)
    assert live.items() <= data["contract"]["fields"].items()
    assert data["file"] == str(file)
    assert data["partial"]
    assert data["weights"]["fields"] == {"model": engine.info.model}
    assert all(why.startswith("unknown: ") for why in data["weights"]["missing"].values())
    table = run("fingerprint", "show", "--snapshot", file)
    assert "memory: unknown: no digest" in table.out
    full = run("fingerprint", "show", "--full", "--snapshot", file)
    assert (full.code, full.err.splitlines()[0]) == (2, "kvctl: --full needs a live engine")


def test_a_snapshot_without_a_contract_says_so(run: Runner, tmp_path: Path) -> None:
    """A file from before contracts were kept shows its groups, and that the rest is unknown."""
    file = tmp_path / "old.kvsnap"
    save(gemma(), file)
    found = run("fingerprint", "show", "--snapshot", file, "-o", "json").json
    assert found["contract"]["missing"]["contract"].startswith("unknown: ")
    assert found["contract"]["fields"]["geometry.group.0"]


def test_a_file_is_compared_with_the_pin(run: Runner, engine: Engine, tmp_path: Path) -> None:
    """KV202 of a file compares its contract with the pin of this host; where it cannot it says which of them lacks."""

    def kv202(file: Path) -> tuple[list[str], str | None]:
        found = run("validate", "--gate", "2", "--snapshot", file, "-o", "json").json
        (gate,) = found["gates"]
        return [item["sentence"] for item in found["findings"] if item["code"] == "KV202"], gate["abstained"].get(
            "KV202"
        )

    old, file, other = tmp_path / "old.kvsnap", tmp_path / "s.kvsnap", tmp_path / "other.kvsnap"
    save(gemma(), old)
    run("snapshot", "save", file)
    assert kv202(old) == ([], "the file holds no contract")
    assert kv202(file) == ([], f"the file holds a contract; none is pinned here for an engine named {NAME!r}")
    pin = Path(run("fingerprint", "pin", "-o", "json").json["file"])
    assert kv202(file) == ([], None)
    engine.block = "32"
    run("snapshot", "save", other, "--force", "--evidence")
    assert load(other).evidence.contract.pinned is None  # type: ignore[union-attr]
    (sentence,), _ = kv202(other)
    assert "cache.block_size" in sentence
    pin.write_text("{", encoding="utf-8")
    _, reason = kv202(file)
    assert reason is not None
    assert reason.startswith("the pinned contract could not be compared: ")


def test_a_file_to_hand_on_confirms_no_seed(tmp_path: Path) -> None:
    """The digest of the hash seed, which may be a secret, stays out of a file unless everything is revealed."""
    fields = {"hash.algorithm": "sha256", "hash.seed": "0badc0de"}
    snapshot = replace(gemma(), evidence=Evidence(contract=Contract(fields=fields)))
    save(snapshot, tmp_path / "a")
    save(snapshot, tmp_path / "b", reveal=True)
    handed, whole = of_snapshot(load(tmp_path / "a")), of_snapshot(load(tmp_path / "b"))
    assert "hash.seed" not in handed.contract.fields
    assert "hash.seed" in handed.contract.missing
    assert whole.contract.fields["hash.seed"] == "0badc0de"
    assert [item.field for item in differences(handed, whole)] == []


def test_the_changes_of_the_weights_are_named(run: Runner, engine: Engine, tmp_path: Path) -> None:
    """`fingerprint show`, live and of a file, lists each change that was seen and explains the word of its cause."""
    seen = Weights(changes=(3 << 20, 7 << 20), causes=("update", "lora"), adapters=(None, 2), watched=False)
    engine.full = replace(engine.full, evidence=Evidence(weights=seen))
    file = tmp_path / "s.kvsnap"
    save(engine.full, file)
    for where in ((), ("--snapshot", file)):
        data = run("fingerprint", "show", *where, "-o", "json").json
        check_schema(data)
        assert data["weight_changes"] == [
            {"step": 3, "cause": "update", "adapter": None},
            {"step": 7, "cause": "lora", "adapter": 2},
        ]
        text = run("fingerprint", "show", *where).out
        assert "before step 7: lora, adapter 2 only" in text
        assert "update: new weights were written into the running engine" in text
        assert "there may be more" in text
    save(replace(engine.full, evidence=Evidence(weights=Weights(changes=()))), file)
    assert "none seen" in run("fingerprint", "show", "--snapshot", file).out
    save(gemma(), file)
    assert "unknown: changes of the weights are not watched" in run("fingerprint", "show", "--snapshot", file).out


def test_every_cause_is_explained() -> None:
    """Each word that the agent writes for a cause has its sentence."""
    assert {*CHANGING.values(), "lora", "digest"} == set(CAUSES)
