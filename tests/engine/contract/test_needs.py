"""What the adapter needs of an engine is there, in this version, with the names and parameters it relies on."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm import capabilities
from agent.engines.vllm.completeness import ALLOWED, Completeness
from agent.engines.vllm.entry import CALLER_ENTRIES, Entry
from tests.support.bare_engine import bare_core
from tests.support.cache_core import KINDS, make_core
from tests.support.step_engine import Setting, make_scheduler

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=[False, True], ids=["scheduler", "async_scheduler"])
def scheduler(request: pytest.FixtureRequest, model: Callable[..., Path]) -> Any:
    """Each of the two schedulers, over one full group."""
    setting = Setting(policy="fcfs", asynchronous=request.param, in_flight=0)
    return make_scheduler(model("llama"), setting)


def test_the_version_under_test_is_the_one_that_was_meant() -> None:
    """The imported engine has the version, and comes from the folder, that the caller of this suite named."""
    import vllm

    version = os.environ.get("KVCTL_TEST_ENGINE_VERSION")
    folder = os.environ.get("KVCTL_TEST_ENGINE_FOLDER")
    if version is not None:
        assert vllm.__version__.split("+")[0] == version
    if folder is not None:
        assert Path(folder).resolve() in Path(vllm.__file__).resolve().parents


@pytest.mark.parametrize("served", [True, False])
def test_probing_finds_every_capability(scheduler: Any, *, served: bool) -> None:
    """Nothing is off except the hook of a connector, which this engine does not have."""
    reasons = capabilities.look(bare_core(scheduler), served=served)
    assert {name: reason for name, reason in reasons.items() if reason is not None} == {
        "external": "this engine has no KV connector"
    }


def test_connectors_tell_what_they_bring() -> None:
    """The function of a connector through which loads from other tiers are counted has the parameters we rely on."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    need = capabilities.Need("update_state_after_alloc", ("self", "request", "blocks", "num_external_tokens"))
    assert capabilities.fault(KVConnectorBase_V1, need) is None


def test_the_look_up_takes_the_request_first() -> None:
    """The look-up's first parameter is the request; whatever follows is passed on, and may be left out."""
    core = make_core("gemma3", 64)
    request = core.request("one", range(1, 100))
    blocks, hit, boundary = core.manager.get_computed_blocks(request)
    assert (hit, boundary) == (0, 0)
    assert core.manager.allocate_slots(request, 50, hit, blocks) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_core_is_known_completely(kind: str) -> None:
    """Every place that changes a page, in the types of this group mix, is one that the feed knows."""
    core = make_core(kind, 64)
    found = Completeness.of(core.pool, (*core.managers, core.manager, core.manager.coordinator))
    assert found.reason is None
    assert {"BlockPool.get_new_blocks", "BlockPool.touch", "BlockHashToBlockMap.insert"} <= set(found.sites)
    assert all(what <= ALLOWED[name] for name, what in found.sites.items())


def test_the_schedulers_are_known_completely(scheduler: Any) -> None:
    """Neither scheduler changes a page behind the pool's back."""
    manager = scheduler.kv_cache_manager
    owners = (*manager.coordinator.single_type_managers, manager, manager.coordinator, scheduler)
    assert Completeness.of(manager.block_pool, owners).reason is None


def test_the_entry_hooks_find_their_classes_and_leave_no_trace() -> None:
    """Registering hooks engine core, client and worker of this version; removing restores every class exactly."""
    from vllm.v1.engine import core, core_client
    from vllm.v1.worker import worker_base

    classes = (core.EngineCore, core.EngineCoreProc, core_client.InprocClient, worker_base.WorkerBase)
    before = [dict(vars(each)) for each in classes]
    entry = Entry()
    entry.register()
    hooked = [
        {name for name, value in vars(each).items() if value is not old.get(name)}
        for each, old in zip(classes, before, strict=True)
    ]
    entry.remove()
    assert hooked[0] >= {"__init__", "shutdown"}
    assert hooked[1] >= {"run_busy_loop"}
    assert hooked[2] >= {"get_output", "add_request", "abort_requests", "reset_prefix_cache"}
    assert hooked[2] <= set(CALLER_ENTRIES)
    assert hooked[3] >= {"kvctl_runtime"}
    assert entry.guard.on
    assert entry.guard.errors == 0
    assert [dict(vars(each)) for each in classes] == before
