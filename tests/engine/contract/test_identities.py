"""Case 16 on this version: a LoRA adapter that is named like another tenant's salt, over the same tokens.

Versions before 0.31 put both names into the key as they are, so the second tenant is served the first one's first page
(only that one: a salt is in the first key alone, an adapter in each), and KV207 says so before anybody is. Later
versions say what a name is, and KV207 is silent. The test sees which of the two an engine does by running the requests,
and holds what kvctl says against that.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.gates.runner import run
from agent.gates.view import View
from agent.model.finding import GateName
from agent.model.states import KEY_BYTES
from inspector.views.prefixes import prefixes
from tests.support.bare_engine import BareEngine
from tests.support.engine_env import short_folder
from tests.support.prompts import prompt

pytestmark = pytest.mark.engine

TENANT = "acme"
TOKENS = 100
WHOLE = 96
UNIT = 16


@pytest.fixture
def engine(model: Callable[..., Path]) -> Iterator[BareEngine]:
    """An engine core with its probe in it."""
    with short_folder() as runtime:
        host = BareEngine(model("llama"), runtime)
        assert host.probe.start()
        yield host
        host.probe.stop()
        assert host.probe.guard.errors == 0


def serve(engine: BareEngine, name: str, ids: Sequence[int], **identity: Any) -> int:
    """Run a request of somebody to its end; return the tokens that the engine reused for it."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    hasher = engine.core.request_block_hasher
    engine.scheduler.add_request(Request(name, list(ids), sampling, None, block_hasher=hasher, **identity))
    while engine.busy():
        engine.step()
    return engine.hits[name]


def test_case_16_an_adapter_named_like_a_salt(engine: BareEngine) -> None:
    """KV207 is found exactly where the engine confuses the two; where it does not, the tree has two prefixes apart."""
    from vllm.lora.request import LoRARequest

    ids = prompt("case 16", TOKENS)
    adapter = LoRARequest(TENANT, 1, "/adapters/tuned")
    with engine.session() as session:
        session.follow()
        before = session.snapshot()
        (contract,) = run(before, [GateName.CONTRACT])
        assert contract.looked["KV207"] > 0
        confused = [finding for finding in contract.findings if finding.code == "KV207"]
        assert serve(engine, "salted", ids, cache_salt=TENANT) == 0
        hit = serve(engine, "tuned", ids, lora_request=adapter)
        session.poll()
        after = session.snapshot()
        identities: dict[str, dict[str, Any]] = {
            "salted": {"salt": TENANT},
            "tuned": {"lora": TENANT, "lora_path": "/adapters/tuned"},
        }
        keys = {name: session.call("hash_tokens", tokens=ids, **who)["keys"] for name, who in identities.items()}
    assert hit in {0, UNIT}
    assert bool(hit) == ("lora named like the salt" in {finding.values["name"] for finding in confused})
    listed = [row for row in prefixes(after).data["prefixes"] if row["tokens"] == WHOLE]
    assert sorted(row["shared_tokens"] for row in listed) == [0, hit]
    size = 2 * KEY_BYTES
    salted, tuned = (
        {text[at : at + size] for at in range(0, len(text), size)} for text in (keys["salted"], keys["tuned"])
    )
    assert len(salted & tuned) == hit // UNIT
    held = sum(bool(tokens) for tokens in View(after).tokens.tolist())
    assert held == len(salted | tuned) == (2 * WHOLE - hit) // UNIT
