"""Drafted tokens that are taken back: which groups can, on an engine that drafts and on managers of other models."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.engines.vllm.evidence import Reader
from agent.engines.vllm.groups import geometry_of
from agent.model.states import GroupId, ResumeKind
from tests.support.cache_core import make_core
from tests.support.prompts import prompt
from tests.support.server import serve


def test_an_engine_that_drafts_on_full_attention(model: Callable[..., Path]) -> None:
    """Drafted tokens of attention are overwritten where they stand: no group is asked, and no gate finds anything."""
    drafting = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    small = ("--block-size", "32", "--num-gpu-blocks-override", "96", "--max-model-len", "704")
    with serve(model("llama"), *small, "--speculative-config", json.dumps(drafting)) as server:
        for _ in range(4):
            server.http.complete(prompt("same", 300), tokens=24)
        ran = server.kvctl("validate", "-o", "json")
    assert (ran.code, ran.json["findings"]) == (0, []), ran.stdout
    reasons = {code: why for gate in ran.json["gates"] for code, why in gate["abstained"].items()}
    assert reasons["KV211"] == "no group is sparse"


def read(manager: Any, *, drafts: bool) -> tuple[dict[GroupId, bool] | None, str | None]:
    """Ask the reader about a manager whose engine drafts, or not; what it tells, and the reason where it does not."""
    config = SimpleNamespace(speculative_config=object() if drafts else None)
    adapter: Any = SimpleNamespace(
        core=SimpleNamespace(vllm_config=config),
        scheduler=SimpleNamespace(kv_cache_manager=manager),
        groups=lambda: geometry_of(manager),
    )
    reader = Reader(adapter)
    return reader._rewindable(), reader._missing.get("rewindable")


def test_recurrent_states_need_pages_to_go_back_to() -> None:
    """A recurrent group without pages for drafted tokens cannot go back; with them it can."""
    manager = make_core("mamba_partial", 150).manager
    managers = manager.coordinator.single_type_managers
    recurrent = {group.id for group in geometry_of(manager).groups if group.kind is ResumeKind.RECURRENT}
    assert read(manager, drafts=True) == (dict.fromkeys(recurrent, False), None)
    for group in recurrent:
        object.__setattr__(managers[group].kv_cache_spec, "num_speculative_blocks", 2)
    assert read(manager, drafts=True) == (dict.fromkeys(recurrent, True), None)
    assert read(manager, drafts=False) == (None, "this engine drafts nothing, so nothing is rewound")


def test_what_a_compressor_folded_in_is_not_told() -> None:
    """Of compressed groups vLLM says nothing: the reason names the first of them."""
    manager = make_core("deepseek_v4", 1_500).manager
    told, why = read(manager, drafts=True)
    assert told is None
    assert why is not None
    assert why.startswith("vLLM does not say whether a draft can rewind group ")
