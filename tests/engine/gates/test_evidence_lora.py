"""LoRA adapters of a live engine: their bytes are in the fingerprint, and new bytes under old keys are found."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.fingerprint import read
from agent.gates.runner import run
from agent.model.evidence import Weights
from agent.model.finding import Finding
from agent.model.fingerprint import Fingerprint, differences
from agent.model.snapshot import Level
from agent.session import Session
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.adapters import write_adapter
from tests.support.prompts import prompt


@dataclass(frozen=True, slots=True)
class Served:
    """An engine, a session with it, and where its adapters lie."""

    engine: Engine
    session: Session
    model: Path
    folder: Path

    def adapter(self, name: str, number: int, *, in_place: bool = False) -> Any:
        """Name an adapter as the engine wants it named."""
        from vllm.lora.request import LoRARequest

        path = str(self.folder / name)
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=path, load_inplace=in_place)

    def write(self, name: str, seed: int) -> None:
        """Write an adapter's bytes."""
        write_adapter(self.folder / name, seed=seed, model=self.model)

    def complete(self, name: str, ids: list[int], adapter: Any = None) -> Any:
        """Run one request to its end."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        self.engine.llm.add_request(name, {"prompt_token_ids": ids}, sampling, lora_request=adapter)
        self.engine.finish()
        return self.engine.results[name]

    def look(self) -> tuple[Weights, dict[str, Finding]]:
        """Run all gates."""
        self.session.poll()
        snapshot = self.session.snapshot(tables=True, free_list=True)
        assert snapshot.evidence is not None
        assert snapshot.evidence.weights is not None
        results = run(replace(snapshot, decisions=()))
        return snapshot.evidence.weights, {one.code: one for result in results for one in result.findings}

    def changed(self, before: Fingerprint) -> set[str]:
        """Name the fields of the fingerprint that differ now."""
        return {one.field for one in differences(before, read(self.session))}


@pytest.fixture(scope="module")
def served(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A Llama-like engine that takes two adapters."""
    folder = model("llama", seed=1)
    lora: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "max_cpu_loras": 2}
    with engine_in_process(folder, pages=160, **lora) as engine, engine.session() as session:
        session.follow(Level.REFERENCES, deadline_s=60.0)
        yield Served(engine, session, folder, tmp_path_factory.mktemp("adapters"))


def test_an_adapter_is_in_the_fingerprint(served: Served) -> None:
    """Loading an adapter adds its digest and makes no page stale; nothing of it is missing."""
    before = read(served.session)
    served.complete("plain", prompt("plain", 4 * BLOCK))
    served.write("one", 1)
    served.engine.core.add_lora(served.adapter("one", 1))
    after = read(served.session)
    assert {one.field for one in differences(before, after)} == {"lora", "memory.rank0.lora.1"}
    assert "lora bytes" not in after.weights.missing
    weights, found = served.look()
    assert (weights.changes, found) == ((), {})


def test_an_adapter_loaded_in_place(served: Served) -> None:
    """The engine keeps hitting pages of the old bytes; they are stale, and the cause is named."""
    ids = prompt("in place", 4 * BLOCK + 3)
    served.complete("place0", ids, served.adapter("one", 1))
    before = read(served.session)
    served.write("one", 2)
    served.engine.core.add_lora(served.adapter("one", 1, in_place=True))
    assert served.complete("place1", ids, served.adapter("one", 1)).num_cached_tokens == 4 * BLOCK
    weights, found = served.look()
    assert weights.causes == ("lora",)
    assert found.keys() == {"KV201"}
    assert found["KV201"].values["cause"] == "lora"
    assert served.changed(before) == {"memory.rank0.lora.1"}
    assert served.engine.core.reset_prefix_cache()
    assert served.look()[1] == {}


def test_a_second_adapter_in_place_is_no_change(served: Served) -> None:
    """Told to load in place what was not there yet, the engine loads it: no page was computed with anything else."""
    changes = served.look()[0].changes
    served.write("two", 3)
    served.engine.core.add_lora(served.adapter("two", 2, in_place=True))
    weights, found = served.look()
    assert (weights.changes, found) == (changes, {})


def test_new_bytes_under_an_old_name(served: Served) -> None:
    """Unloaded, changed on disk and loaded again by a request: nobody told the engine core, the digest tells."""
    ids = prompt("reloaded", 4 * BLOCK + 3)
    served.complete("again0", ids, served.adapter("two", 2))
    served.session.call("weights_digest")
    changes = served.look()[0].changes
    served.engine.core.remove_lora(2)
    served.write("two", 4)
    assert served.complete("again1", ids, served.adapter("two", 2)).num_cached_tokens == 4 * BLOCK
    served.complete("between", prompt("between", 4 * BLOCK), served.adapter("two", 2))
    assert served.look()[0].changes == changes
    served.session.call("weights_digest")
    weights, found = served.look()
    assert weights.causes[-1] == "lora"
    assert found.keys() == {"KV201"}
    assert (found["KV201"].values["doubtful"], found["KV201"].values["count"]) == (4, 8)
