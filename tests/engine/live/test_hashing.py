"""Token ids are hashed as the engine itself hashes a request with them: salt, adapter, and as long as it takes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import UsageError
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt

LONG = 20_000
"""Tokens that take several safe points."""


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Llama-like engine with real weights."""
    with engine_in_process(model("llama", seed=1), pages=96) as running:
        yield running


def own_keys(engine: Engine, ids: list[int], **fields: Any) -> str:
    """Return the keys that vLLM gives to a real request, 16 bytes each."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        request_id="own",
        prompt_token_ids=ids,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=engine.core.request_block_hasher,
        **fields,
    )
    return b"".join(key[:16] for key in request.block_hashes).hex()


def test_keys_are_the_engines_own(engine: Engine) -> None:
    """Plain, salted and adapter requests of any length give exactly the keys that vLLM gives to a real request."""
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("tuned", 1, "/adapters/tuned")
    with engine.session() as session:
        for length in (BLOCK - 1, BLOCK, 100, LONG):
            ids = prompt("hashed", length)
            plain = session.call("hash_tokens", tokens=ids)
            assert plain == {"keys": own_keys(engine, ids), "count": length // BLOCK}
            salted = session.call("hash_tokens", tokens=ids, salt="tenant")
            assert salted["keys"] == own_keys(engine, ids, cache_salt="tenant")
            tuned = session.call("hash_tokens", tokens=ids, lora="tuned", lora_path="/adapters/tuned")
            assert tuned["keys"] == own_keys(engine, ids, lora_request=adapter)
        assert len({plain["keys"], salted["keys"], tuned["keys"]}) == 3
        with pytest.raises(UsageError, match="path of this LoRA adapter"):
            session.call("hash_tokens", tokens=prompt("hashed", 100), lora="unheard of")


def test_keys_find_what_a_request_cached(engine: Engine) -> None:
    """The keys of a prompt that was served are those of its cached pages."""
    ids = prompt("served", 200)
    engine.run("served0", ids)
    with engine.session() as session:
        keys = session.call("hash_tokens", tokens=ids)["keys"]
        chain = [[0, keys[start : start + 32]] for start in range(0, len(keys), 32)]
        plan = session.call("invalidate_plan", keys=chain)
    assert len(plan["entries"]) == 200 // BLOCK
    assert plan["missing"] == []


def test_weights_that_somebody_overwrites_are_noticed(engine: Engine) -> None:
    """Weights changed behind everybody's back are found by the next reading; pages since the last one are doubtful."""
    engine.run("before0", prompt("before", 100))
    with engine.session() as session:
        first = session.call("weights_digest")
        assert session.call("weights_digest")["digest"] == first["digest"]
        assert first["weights"]["changes"] == []
        engine.run("between0", prompt("between", 100))
        worker = engine.core.model_executor.driver_worker.worker
        norm = next(held for name, held in worker.model_runner.get_model().named_parameters() if "layernorm" in name)
        norm.data[-1] += 1.0
        found = session.call("weights_digest")
        assert found["digest"] != first["digest"]
        assert found["weights"]["causes"] == ["digest"]
        assert found["weights"]["last_good"] < found["weights"]["changes"][-1]
        full = session.call("weights_digest", full=True)
        assert full["ranks"][0]["bytes"] > found["ranks"][0]["bytes"]
