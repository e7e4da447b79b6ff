"""Every way in which weights change on a real engine, once with what the operator gets and once with ``invalidate``.

Invariant: answers are compared with those of an engine that was started with the weights in question and has no agent.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.snapshot import Level
from tests.engine.live.engines import BLOCK, engine_in_process
from tests.engine.live.weighed import PROMPT, WHOLE, Weighed
from tests.support import file_transfer, other_weights
from tests.support.adapters import write_adapter
from tests.support.models import write_model
from tests.support.prompts import prompt
from tests.support.waiting import wait_for

FACTOR = "3"
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "max_cpu_loras": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three sets of weights: one, others, and the first with its norms overwritten.

    Embeddings are not tied: vLLM's CPU worker packs a tied output layer once and never again when weights are loaded.
    """
    from safetensors.torch import load_file, save_file

    home = tmp_path_factory.mktemp("weights")
    made = {
        name: write_model(home / name, "llama", seed=seed, tie_word_embeddings=False)
        for name, seed in (("first", 1), ("other", 2), ("overwritten", 1))
    }
    file = made["overwritten"] / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if "layernorm" in name:
            tensor.add_(1.0).mul_(float(FACTOR)).sub_(1.0)
    save_file(tensors, file, metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> dict[str, Path]:
    """Folders of adapters; ``old`` and ``new`` hold the bytes that ``changed`` has before and after."""
    home = tmp_path_factory.mktemp("adapters")
    names = {"changed": 1, "old": 1, "new": 2, "kept": 3}
    return {name: write_adapter(home / name, seed=seed, model=folders["first"]) for name, seed in names.items()}


@pytest.fixture(scope="module")
def fresh(folders: dict[str, Path], adapters: dict[str, Path]) -> dict[str, list[int]]:
    """What engines answer that have never had other weights, by name of the weights or of the adapter."""
    from vllm.lora.request import LoRARequest

    found: dict[str, list[int]] = {}
    for name, folder in folders.items():
        with engine_in_process(folder, pages=64, agent=False, **LORA) as engine:
            found[name] = list(engine.run("asked", PROMPT).outputs[0].token_ids)
            if name == "first":
                for number, adapter in enumerate(("old", "new", "kept"), start=1):
                    one = Weighed(engine, None, {}, invalidates=False, count=100 * number)  # type: ignore[arg-type]
                    asked = one.ask(adapter=LoRARequest(adapter, number, str(adapters[adapter])))
                    found[adapter] = list(asked.outputs[0].token_ids)
    assert len({tuple(answer) for answer in found.values()}) == len(found), "all weights were meant to differ"
    return found


@pytest.fixture(scope="module", params=["report", "invalidate"])
def started(request: pytest.FixtureRequest, folders: dict[str, Path], fresh: dict[str, list[int]]) -> Iterator[Weighed]:
    """An engine with the first weights; those that it is compared with have ended."""
    file_transfer.register()
    other_weights.install()
    more: dict[str, Any] = {**LORA, "weight_transfer_config": {"backend": file_transfer.BACKEND}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCTL_ON_WEIGHTS_CHANGE", request.param)
        with engine_in_process(folders["first"], pages=160, **more) as engine, engine.session() as session:
            session.follow(Level.REFERENCES, deadline_s=60.0)
            yield Weighed(engine, session, folders, invalidates=request.param == "invalidate")


@pytest.fixture
def weighed(started: Weighed, fresh: dict[str, list[int]]) -> Weighed:
    """The engine with the first weights again, an empty cache, and then the prompt in it."""
    started.engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(started.folders["first"])})
    assert started.engine.core.reset_prefix_cache()
    started.settle()
    assert list(started.ask().outputs[0].token_ids) == fresh["first"]
    assert started.ask().num_cached_tokens == WHOLE
    assert started.look()[1] == {}
    return started


def reload(weighed: Weighed) -> None:
    """Load a checkpoint over the weights in memory."""
    weighed.engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(weighed.folders["other"])})


def update(weighed: Weighed) -> None:
    """Go through the weight-update API, as a trainer does."""
    call = weighed.engine.llm.collective_rpc
    call("init_weight_transfer_engine", kwargs={"init_info": {}})
    call("start_weight_update")
    call("update_weights", kwargs={"update_info": {"path": str(weighed.folders["other"] / "model.safetensors")}})
    call("finish_weight_update")


def overwrite(weighed: Weighed) -> None:
    """Have a worker method that nobody knows write into the parameters."""
    weighed.engine.llm.collective_rpc(other_weights.METHOD, kwargs={"factor": FACTOR})


WAYS = [
    pytest.param(reload, "other", "reload", id="reload"),
    pytest.param(update, "other", "update", id="update"),
    pytest.param(overwrite, "overwritten", "digest", id="in place"),
]


@pytest.mark.parametrize(("change", "name", "cause"), WAYS)
def test_weights_change(
    weighed: Weighed, fresh: dict[str, list[int]], change: Callable[[Weighed], None], name: str, cause: str
) -> None:
    """The epoch rises and all pages from before are stale, or gone; then the answer is that of a fresh engine."""
    before, epochs = weighed.cached(), weighed.epochs()
    change(weighed)
    if weighed.invalidates:
        wait_for(lambda: not weighed.cached(), "the pages of the older weights to go")
    else:
        assert weighed.ask().num_cached_tokens == WHOLE, "vLLM keeps its cache over a change of weights"
        weights, found = weighed.look()
        assert weights.causes[-1] == cause
        assert set(found["KV201"].pages) == before
        assert (found["KV201"].values["count"], found["KV201"].values["cause"]) == (len(before), cause)
        assert weighed.engine.core.reset_prefix_cache()
    assert weighed.epochs() > epochs
    right = weighed.ask()
    assert right.num_cached_tokens == 0
    assert list(right.outputs[0].token_ids) == fresh[name]
    assert weighed.ask().num_cached_tokens == WHOLE
    weighed.settle()
    assert weighed.look()[1] == {}


def test_an_update_that_fails_half_way_counts(weighed: Weighed) -> None:
    """Nobody knows how far it came: what was cached before is stale all the same."""
    before, epochs = weighed.cached(), weighed.epochs()
    call = weighed.engine.llm.collective_rpc
    call("start_weight_update")
    with pytest.raises(FileNotFoundError):
        call("update_weights", kwargs={"update_info": {"path": "/nowhere"}})
    assert weighed.epochs() == epochs + 1
    if weighed.invalidates:
        wait_for(lambda: not weighed.cached(), "the pages of the older weights to go")
    else:
        assert set(weighed.look()[1]["KV201"].pages) == before


def test_a_request_without_a_full_page_carries_old_weights_on(weighed: Weighed) -> None:
    """What runs while the weights change is found by itself, not by a page: its first one is half old when full."""
    ids = prompt("short", BLOCK // 2)
    weighed.add("short", ids, tokens=2 * BLOCK)
    weighed.engine.step(4)
    before = weighed.cached()
    reload(weighed)
    weighed.engine.finish()
    half = weighed.cached() - before
    if weighed.invalidates:
        assert not half, "it was kept out of the cache"
    else:
        assert set(weighed.look()[1]["KV119"].pages) == half
        assert half


def test_an_adapter_loaded_in_place(weighed: Weighed, adapters: dict[str, Path], fresh: dict[str, list[int]]) -> None:
    """Pages of that adapter are stale, or gone; those of the base model and of another adapter stay good."""
    from vllm.lora.request import LoRARequest

    write_adapter(adapters["changed"], seed=1, model=weighed.folders["first"])
    changed = LoRARequest("changed", 1, str(adapters["changed"]))
    kept = LoRARequest("kept", 2, str(adapters["kept"]))
    weighed.engine.llm.add_lora(changed)
    others = weighed.cached()
    assert list(weighed.ask(adapter=changed).outputs[0].token_ids) == fresh["old"]
    own = weighed.cached() - others
    assert len(own) == WHOLE // BLOCK
    assert list(weighed.ask(adapter=kept).outputs[0].token_ids) == fresh["kept"]
    others = weighed.cached() - own
    weighed.add("runs", prompt("runs", 10), changed, tokens=2 * BLOCK)
    weighed.add("beside", prompt("beside", 10), tokens=2 * BLOCK)
    weighed.engine.step(4)
    epochs = weighed.epochs()

    write_adapter(adapters["changed"], seed=2, model=weighed.folders["first"])
    weighed.engine.llm.add_lora(LoRARequest("changed", 1, str(adapters["changed"]), load_inplace=True))
    assert weighed.epochs() == epochs + 1
    if weighed.invalidates:
        wait_for(lambda: not weighed.cached() & own, "the pages of the old adapter to go")
        assert weighed.cached() == others
        weighed.engine.finish()
    else:
        assert weighed.ask(adapter=changed).num_cached_tokens == WHOLE, "vLLM keeps its cache over a change of weights"
        weights, found = weighed.look()
        assert (weights.causes[-1], weights.adapters[-1]) == ("lora", 1)
        assert set(found["KV201"].pages) == own
        assert found["KV201"].values["cause"] == "lora"
        assert len(found["KV119"].pages) == 2, "what the running request of that adapter registered, not the other"
        weighed.engine.core.scheduler.kv_cache_manager.block_pool.evict_blocks(own | set(found["KV119"].pages))
    right = weighed.ask(adapter=changed)
    assert (right.num_cached_tokens, list(right.outputs[0].token_ids)) == (0, fresh["new"])
    for adapter, name in ((None, "first"), (kept, "kept")):
        again = weighed.ask(adapter=adapter)
        assert (again.num_cached_tokens, list(again.outputs[0].token_ids)) == (WHOLE, fresh[name])
    weighed.settle()
    assert weighed.look()[1] == {}
    weighed.engine.llm.remove_lora(1)
    weighed.engine.llm.remove_lora(2)


def test_an_adapter_under_another_number_may_be_other_bytes(weighed: Weighed, adapters: dict[str, Path]) -> None:
    """Unloaded and loaded again it has a new number and the same keys: a digest tells that its pages are stale."""
    from vllm.lora.request import LoRARequest

    write_adapter(adapters["changed"], seed=1, model=weighed.folders["first"])
    others = weighed.cached()
    weighed.engine.llm.add_lora(LoRARequest("changed", 3, str(adapters["changed"])))
    weighed.ask(adapter=LoRARequest("changed", 3, str(adapters["changed"])))
    own = weighed.cached() - others
    weighed.session.call("weights_digest")
    weighed.engine.llm.remove_lora(3)
    write_adapter(adapters["changed"], seed=2, model=weighed.folders["first"])
    again = LoRARequest("changed", 4, str(adapters["changed"]))
    weighed.engine.llm.add_lora(again)
    if weighed.invalidates:
        wait_for(lambda: weighed.cached() == others, "the pages of the old adapter to go")
        assert weighed.ask(adapter=again).num_cached_tokens == 0
    else:
        assert weighed.ask(adapter=again).num_cached_tokens == WHOLE, "its keys are the same"
        assert set(weighed.look()[1]["KV201"].pages) == own
    weighed.engine.llm.remove_lora(4)


def test_an_adapter_from_another_path_under_the_same_number(weighed: Weighed, adapters: dict[str, Path]) -> None:
    """Its keys are others, so pages stay good; a request that runs goes on with other bytes, and that is named."""
    from vllm.lora.request import LoRARequest

    before = LoRARequest("moved", 7, str(adapters["old"]))
    weighed.engine.llm.add_lora(before)
    weighed.ask(adapter=before)
    good = weighed.cached()
    weighed.add("runs", prompt("moved", 10), before, tokens=2 * BLOCK)
    weighed.engine.step(4)
    weighed.engine.llm.add_lora(LoRARequest("moved", 7, str(adapters["new"]), load_inplace=True))
    weighed.engine.finish()
    if weighed.invalidates:
        assert weighed.cached() == good
    else:
        found = weighed.look()[1]
        assert found.keys() == {"KV119"}
        assert set(found["KV119"].pages) == weighed.cached() - good
    weighed.engine.llm.remove_lora(7)


def test_an_adapter_that_every_request_loads_is_not_watched(weighed: Weighed, adapters: dict[str, Path]) -> None:
    """Such a request has the workers load it in each step: what lies there may change at any time, unseen."""
    from vllm.lora.request import LoRARequest

    watch = weighed.engine.probe.adapter._weights
    watch.doubt.end()  # of the tests before
    assert weighed.engine.probe.adapter.weights_seen().watched
    weighed.ask(adapter=LoRARequest("loads", 8, str(adapters["kept"]), load_inplace=True))
    assert not weighed.engine.probe.adapter.weights_seen().watched
    watch.doubt.end()
    assert weighed.engine.probe.adapter.weights_seen().watched
    weighed.engine.llm.remove_lora(8)
    seen = weighed.engine.probe.adapter.weights_seen()
    assert not seen.watched, "the workers load an adapter that was removed again by themselves"


@pytest.mark.parametrize("cleared", [False, True], ids=["kept", "cleared"])
def test_a_pause_is_no_change(weighed: Weighed, fresh: dict[str, list[int]], *, cleared: bool) -> None:
    """Paused and resumed: no epoch, no stale page; what was cached is hit unless vLLM was told to clear it."""
    epochs = weighed.epochs()
    weighed.engine.core.pause_scheduler(mode="keep", clear_cache=cleared)
    assert weighed.engine.core.is_scheduler_paused()
    weighed.engine.core.resume_scheduler()
    weighed.settle()
    assert weighed.epochs() == epochs
    again = weighed.ask()
    assert again.num_cached_tokens == (0 if cleared else WHOLE)
    assert list(again.outputs[0].token_ids) == fresh["first"]
    assert weighed.look()[1] == {}


def test_a_sleep_that_only_stops_scheduling_is_no_change(weighed: Weighed, fresh: dict[str, list[int]]) -> None:
    """Level 0 leaves memory and cache alone, and so do the probe and the pages."""
    epochs = weighed.epochs()
    weighed.engine.llm.sleep(level=0)
    assert weighed.engine.core.is_sleeping()
    weighed.engine.llm.wake_up()
    weighed.settle()
    assert weighed.epochs() == epochs
    again = weighed.ask()
    assert (again.num_cached_tokens, list(again.outputs[0].token_ids)) == (WHOLE, fresh["first"])


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_raises_the_epoch_when_the_weights_wake(
    weighed: Weighed, fresh: dict[str, list[int]], level: int
) -> None:
    """The cache is emptied by vLLM before it sleeps; the epoch rises once, when the weights are back in memory.

    On CPU the worker's own sleep moves nothing, so the answer is the same at both levels.
    """
    epochs = weighed.epochs()
    weighed.engine.llm.sleep(level=level)
    assert weighed.engine.core.model_executor.is_sleeping
    assert not weighed.cached()
    weighed.engine.llm.wake_up(tags=["kv_cache"])
    assert weighed.epochs() == epochs
    weighed.engine.llm.wake_up(tags=["weights"])
    assert weighed.epochs() == epochs + 1
    assert not weighed.engine.core.is_sleeping()
    weighed.settle()
    again = weighed.ask()
    assert (again.num_cached_tokens, list(again.outputs[0].token_ids)) == (0, fresh["first"])
    weights, found = weighed.look()
    assert (weights.causes[-1], found) == ("wake", {})


@pytest.mark.parametrize("through", ["workers", "executor"])
def test_a_sleep_beside_the_engine_core_makes_pages_stale(
    weighed: Weighed, fresh: dict[str, list[int]], through: str
) -> None:
    """Nobody empties the cache then: pages that were stamped before are stale, or gone, and new ones are good."""
    before, epochs = weighed.cached(), weighed.epochs()
    if through == "workers":
        weighed.engine.llm.collective_rpc("sleep", kwargs={"level": 1})
        weighed.engine.llm.collective_rpc("wake_up")
    else:
        weighed.engine.core.model_executor.sleep(1)
        weighed.engine.core.model_executor.wake_up()
    assert weighed.epochs() > epochs
    if weighed.invalidates:
        wait_for(lambda: not weighed.cached(), "the pages from before the sleep to go")
    else:
        found = weighed.look()[1]
        assert set(found["KV201"].pages) == before
        assert found["KV201"].values["cause"] == "wake"
        assert weighed.engine.core.reset_prefix_cache()
    again = weighed.ask()
    assert (again.num_cached_tokens, list(again.outputs[0].token_ids)) == (0, fresh["first"])
    weighed.settle()
    assert weighed.look()[1] == {}
