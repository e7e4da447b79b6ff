"""Taking the probe out: every attribute of the engine is the very object that was there before."""

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.errors import TargetError
from agent.model.snapshot import Level
from tests.engine.live.engines import Engine, engine_in_process, entry
from tests.support.prompts import prompt
from tests.support.waiting import wait_for


def owners(engine: Engine) -> dict[str, Any]:
    """Return everything that the probe may hook."""
    scheduler = engine.core.scheduler
    manager = scheduler.kv_cache_manager
    groups = {f"group{number}": one for number, one in enumerate(manager.coordinator.single_type_managers)}
    return {
        "core": engine.core,
        "scheduler": scheduler,
        "manager": manager,
        "pool": manager.block_pool,
        "coordinator": manager.coordinator,
        **groups,
        **{type(one).__name__: type(one) for one in (engine.core, scheduler, manager, manager.block_pool)},
    }


def functions(owner: Any) -> dict[str, Any]:
    """Return the functions of an object's own dictionary."""
    return {name: value for name, value in vars(owner).items() if callable(value)}


def test_stop_restores_everything(model: Callable[..., Path]) -> None:
    """After `stop`, in the middle of work and with a reader joined, no hook is left and the engine works on."""
    with engine_in_process(model("llama", seed=1), pages=72, agent=False) as bare:
        expected = {name: set(functions(owner)) for name, owner in owners(bare).items()}
        assert bare.probe is None
        wanted = bare.run("a", prompt("removal", 300), 12).outputs[0].token_ids
    with engine_in_process(model("llama", seed=1), pages=72) as engine:
        session = engine.session()
        session.follow(Level.REFERENCES)
        assert {name: set(functions(owner)) for name, owner in owners(engine).items()} != expected
        engine.add("a", prompt("removal", 300), 12)
        engine.step(3)
        assert session.call("stop") == {"stopped": True}
        engine.finish()
        assert engine.results["a"].outputs[0].token_ids == wanted
        found = {name: set(functions(owner)) for name, owner in owners(engine).items()}
        assert found == expected
        assert engine.probe.adapter._patches.left_alone == []
        wait_for(lambda: not list(engine.runtime.glob("*.sock")), "the socket to go")
        assert [item.request.split("-")[0] for item in session.poll()] == ["a"]
        with pytest.raises(TargetError, match="ended the feed"):
            session.poll()


def test_entry_hooks_can_be_removed(model: Callable[..., Path]) -> None:
    """The class hooks of the plugin are restored exactly, and put back for the other tests."""
    core = sys.modules["vllm.v1.engine.core"]
    client = sys.modules["vllm.v1.engine.core_client"]
    kinds = [core.EngineCore, core.EngineCoreProc, core.DPEngineCoreProc, client.InprocClient]
    hooked = entry()
    assert any(hasattr(value, "__wrapped__") for value in vars(client.InprocClient).values())
    hooked.remove()
    try:
        for kind in kinds:
            ours = [
                name for name, value in functions(kind).items() if getattr(value, "__module__", "").startswith("_kvctl")
            ]
            assert ours == []
            code = [getattr(value, "__code__", None) for value in functions(kind).values()]
            assert not any(one is not None and "_kvctl_agent" in one.co_filename for one in code)
    finally:
        hooked.register()


def test_a_dropped_engine_is_freed(model: Callable[..., Path]) -> None:
    """A caller that drops its engine gets it back from memory although the probe knew it; the socket goes, too."""
    with engine_in_process(model("llama", seed=1), pages=72) as engine:
        core = weakref.ref(engine.core)
        engine.run("a", prompt("dropped", 100))
        runtime = engine.runtime
        engine.llm.engine_core.shutdown()
        wait_for(lambda: not list(runtime.glob("*.sock")), "the socket to go")
        engine.llm.engine_core.engine_core = None
        gc.collect()
        assert core() is None
