"""Gates 2 and 4 on the tensors of real workers: right as they are, and wrong when one is bound differently."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.layout import layout
from agent.gates.runner import run
from agent.gates.workers import worker_tensors
from agent.model.evidence import Evidence
from agent.model.finding import GateName, GateResult
from tests.support.compat import install
from tests.support.direct_reader import read

PAGES = {"gemma3": 64, "qwen3next": 64, "deepseek_v4": 1_024}


@pytest.fixture(scope="module", params=PAGES)
def core(request: pytest.FixtureRequest, model: Callable[..., Path]) -> Iterator[Any]:
    """Give the engine core of a real in-process engine."""
    from vllm import LLM

    if request.param == "deepseek_v4":
        install()
    llm = LLM(
        model=str(model(request.param)),
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        num_gpu_blocks_override=PAGES[request.param],
        **({} if request.param == "deepseek_v4" else {"block_size": 32}),
    )
    yield llm.llm_engine.engine_core.engine_core
    llm.llm_engine.engine_core.shutdown()


def worker_of(core: Any) -> Any:
    """The only worker of an in-process engine."""
    return core.model_executor.driver_worker.worker


def judged(core: Any) -> dict[GateName, GateResult]:
    """Run gates 2 and 4 over what the worker says, passed through JSON as on the socket."""
    tensors, reason = worker_tensors([json.loads(json.dumps(layout(worker_of(core))))])
    assert reason is None
    manager = core.scheduler.kv_cache_manager
    snapshot = replace(read(manager), geometry=geometry_of(manager), evidence=Evidence(tensors=tensors))
    return {result.gate: result for result in run(snapshot, [GateName.CONTRACT, GateName.ALIGNMENT])}


def codes(results: dict[GateName, GateResult]) -> set[str]:
    """Codes of all findings."""
    return {finding.code for result in results.values() for finding in result.findings}


@contextmanager
def bound(core: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """Bind one attention layer to another view of the cache for a moment."""
    context = worker_of(core).model_runner.compilation_config.static_forward_context
    layer = next(layer for name, layer in context.items() if name.endswith((".self_attn.attn", ".swa_cache")))
    before = layer.kv_cache
    layer.kv_cache = change(before)
    try:
        yield
    finally:
        layer.kv_cache = before


def test_a_real_worker_is_as_planned(core: Any) -> None:
    """Every tensor has the dtype, shape and strides of its spec; every layer is registered; nothing overlaps."""
    results = judged(core)
    assert codes(results) == set()
    looked = results[GateName.CONTRACT].looked.keys() | results[GateName.ALIGNMENT].looked.keys()
    assert {"KV203", "KV204", "KV210", "KV404"} <= looked


def test_another_order_of_axes_is_found(core: Any) -> None:
    """Two axes swapped: the same bytes, other strides."""
    with bound(core, lambda tensor: tensor.transpose(-1, -2)):
        assert "KV203" in codes(judged(core))


def test_another_precision_is_found(core: Any) -> None:
    """The same bytes read as another type."""
    import torch

    with bound(core, lambda tensor: tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int8)):
        assert "KV203" in codes(judged(core))


def test_two_layers_on_the_same_bytes_are_found(core: Any) -> None:
    """Two layers of one group share a page; where each group has one layer there is no such pair."""
    runner = worker_of(core).model_runner
    context = runner.compilation_config.static_forward_context
    pair = next(
        (group.layer_names[:2] for group in runner.kv_cache_config.kv_cache_groups if group.layer_names[1:]), None
    )
    if pair is None:
        assert "KV405" not in judged(core)[GateName.ALIGNMENT].looked
        return
    first, second = (context[name] for name in pair)
    before = second.kv_cache
    second.kv_cache = first.kv_cache
    found = codes(judged(core))
    second.kv_cache = before
    assert "KV405" in found


@pytest.mark.parametrize(("device", "said"), [("cpu", "model_runner"), ("cuda", "never checked")])
def test_a_worker_that_cannot_answer_says_why(device: str, said: str) -> None:
    """Without a runner, or on a device where this was never seen to be right: no rows, the reason, no exception."""
    answer = layout(SimpleNamespace(rank=0, device=SimpleNamespace(type=device)))
    assert answer["tensors"] == []
    assert said in answer["error"]
    assert worker_tensors([answer]) == (None, f"a worker could not describe its tensors: {answer['error']}")
