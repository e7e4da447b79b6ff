"""Cases 2-4, 6, 7, 10 and 19 where the gates have to say them: on vLLM's own cache manager and on a real worker.

Invariant: nothing is planted into a snapshot; what is evicted is evicted by vLLM, and what is too short is vLLM's spec.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.layout import layout
from agent.gates.runner import run
from agent.gates.workers import worker_tensors
from agent.model.decision import Decision, Reason
from agent.model.evidence import Evidence
from agent.model.finding import Finding, GateName, GateResult
from agent.session import Session
from inspector.invalidation import Plan, apply_plan, make_plan
from inspector.selection import select
from inspector.selector import parse
from tests.engine.live.engines import Engine, engine_in_process
from tests.engine.resume.test_cases import C4, C128, SWA, A, Straight, Watched, evict, watched
from tests.support import vllm_groups as make
from tests.support.compat import install
from tests.support.direct_reader import read
from tests.support.prompts import prompt
from tests.support.validating import findings as validated
from tests.support.vllm_worlds import World, drop
from tests.support.waiting import wait_for

REAL_PAGE, PADDED_PAGE, KERNEL_UNIT = 37_376, 37_440, 576
"""A window page of DeepSeek-V4, as its kernel wants it, and in what units."""


def findings(cache: Watched, decisions: Sequence[Decision]) -> dict[str, Finding]:
    """Run gates 2 and 3 over the manager as it is and these decisions; no code may be found twice."""
    numbered = tuple(replace(decision, id=number) for number, decision in enumerate(decisions, start=1))
    snapshot = replace(read(cache.world.manager), decisions=numbered)
    results = run(snapshot, [GateName.CONTRACT, GateName.INTERSECTION])
    found = [finding for result in results for finding in result.findings]
    assert len({finding.code for finding in found}) == len(found)
    return {finding.code: finding for finding in found}


@pytest.mark.parametrize(
    ("group", "code", "tokens"),
    [(SWA, "KV301", (1_728, 1_792)), (C4, "KV302", (1_788, 1_792))],
    ids=["case 2", "case 3"],
)
def test_cases_2_and_3_name_the_page(group: int, code: str, tokens: tuple[int, int]) -> None:
    """One page is evicted, and the finding names its group, its tokens and what is stranded; before, nothing is."""
    cache = watched(make.deepseek_v4())
    longer = [*A, *range(50)]
    assert findings(cache, [cache.decide(longer)]) == {}
    evict(cache, group, 1_792)
    found = findings(cache, [cache.decide(longer)])
    assert found.keys() == {code}
    assert (found[code].group, found[code].tokens) == (group, tokens)
    assert (found[code].values["stranded"], found[code].values["pages_short"]) == (1_792, 1)


def test_case_4_is_no_hole() -> None:
    """What was never kept is reported as a reason of the decision, never as a page that was lost."""
    cache = watched(make.deepseek_v4())
    decision = cache.decide([*A[:1_500], *range(50)])
    assert (decision.logical, decision.usable, decision.reason) == (1_280, 0, Reason.NOT_RETAINED)
    assert findings(cache, [decision]) == {}


def test_case_6_names_the_group() -> None:
    """One group answers 0 for a thousand requests, and KV309 names it; while it holds its pages nobody is named."""
    cache = watched(make.deepseek_v4(None))
    asked = [A[:tokens] for tokens in range(520, 2_000, 74)]
    whole = findings(cache, [cache.decide(tokens) for tokens in asked])
    assert "KV309" not in whole
    for end in range(8, 2_000, 8):
        drop(cache.world.manager, C128, cache.traffic.request(A).block_hashes[end // 4 - 1])
    some = [cache.decide(tokens) for tokens in asked]
    found = findings(cache, some * 50)
    assert found.keys() == {"KV302", "KV309"}
    assert (found["KV309"].group, found["KV309"].values["count"]) == (C128, 1_000)


def test_case_7_explains_the_unit() -> None:
    """Prompts of 500 tokens on a cache whose unit of hits is 4,096: KV209 says both numbers and the blocks."""
    blocks = ((128, 2), (4_096, 4), (32, 8), (2, 16), (8, 32))
    groups = tuple(make.full(block, heads) for block, heads in blocks)
    cache = Watched(World(make.Setup(name="coarse", groups=groups, unit=2), Straight(1)))
    cache.run(A[:500])
    found = findings(cache, [cache.decide(A[:500]) for _ in range(40)])
    assert found.keys() == {"KV209"}
    values = found["KV209"].values
    assert (values["value"], values["median"], values["blocks"]) == (4_096, 500, "128, 4096, 32, 2, 8")


def cached(engine: Engine) -> set[int]:
    """Return the pages that carry a key."""
    blocks = engine.core.scheduler.kv_cache_manager.block_pool.blocks
    return {block.block_id for block in blocks if block.block_hash is not None}


def stale_plan(session: Session) -> Plan:
    """Return what ``kvctl invalidate stale`` would take."""
    session.poll()
    snapshot = session.snapshot()
    return make_plan(session, snapshot, select(snapshot, parse("stale")), deadline_s=30.0)


def test_case_10_weights_are_loaded_again(model: Callable[..., Path]) -> None:
    """The engine keeps its cache over a reload: KV201 counts all pages from before, and `stale` takes exactly these."""
    old, new = prompt("old", 200), prompt("new", 100)
    with engine_in_process(model("llama", seed=1), pages=96) as engine, engine.session() as session:
        engine.run("old0", old)
        before = cached(engine)
        assert validated(session) == {}
        engine.core.collective_rpc("reload_weights")
        assert engine.run("old1", old).num_cached_tokens == 192, "the engine was meant to reuse them"
        engine.run("new0", new)
        found = validated(session)
        assert found.keys() == {"KV201"}
        assert (found["KV201"].values["cause"], found["KV201"].values["count"]) == ("reload", len(before))
        assert set(found["KV201"].pages) == before
        plan = stale_plan(session)
        assert set(plan.pages) == before
        kept = cached(engine) - before
        apply_plan(session, plan, quarantine=True, deadline_s=30.0)
        assert cached(engine) == kept
        assert validated(session) == {}
        assert engine.run("old2", old).num_cached_tokens == 0
        assert engine.run("new1", new).num_cached_tokens == 96


def test_case_24_what_goes_on_from_old_weights_is_bad_too(model: Callable[..., Path]) -> None:
    """KV119 names what was computed on pages of the old weights: by who reused them, and by who ran meanwhile."""
    old, running, apart = prompt("old", 200), prompt("running", 100), prompt("apart", 100)
    with engine_in_process(model("llama", seed=1), pages=96) as engine, engine.session() as session:
        engine.run("old0", old)
        engine.add("running", running, 150)
        engine.step(4)
        assert validated(session) == {}
        before = cached(engine)
        engine.core.collective_rpc("reload_weights")
        assert engine.run("old1", old, 100).num_cached_tokens == 192, "the engine was meant to reuse them"
        engine.finish()
        on_top = cached(engine) - before
        engine.run("apart", apart)
        found = validated(session)
        assert found.keys() == {"KV201", "KV119"}
        assert set(found["KV201"].pages) == before
        assert set(found["KV119"].pages) == on_top
        assert len(on_top) == 3 + 4, "what old1 and running registered after the change"
        plan = stale_plan(session)
        assert set(plan.pages) == before | on_top
        apply_plan(session, plan, quarantine=True, deadline_s=30.0)
        assert validated(session) == {}
        assert engine.run("apart2", apart).num_cached_tokens == 96
        engine.core.scheduler.reset_prefix_cache()
        engine.run("old2", old, 100)
        engine.run("old3", old, 100)
        assert validated(session) == {}, "an emptied cache has nothing old"


def test_case_24_old_pages_are_taken_out_at_once(model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--on-weights-change invalidate`` no page of older weights is left to hit, nor what runs on from one."""
    monkeypatch.setenv("KVCTL_ON_WEIGHTS_CHANGE", "invalidate")
    old, running, apart = prompt("old", 200), prompt("running", 100), prompt("apart", 100)
    with engine_in_process(model("llama", seed=1), pages=96) as engine, engine.session() as session:
        engine.run("old0", old)
        engine.add("running", running, 150)
        engine.step(4)
        before = cached(engine)
        assert before
        engine.core.collective_rpc("reload_weights")
        wait_for(lambda: not cached(engine), "the pages of the older weights to go")
        assert engine.run("old1", old).num_cached_tokens == 0
        engine.finish()
        engine.run("apart", apart)
        assert validated(session) == {}
        assert engine.run("running1", running).num_cached_tokens == 0, "it ran on from pages of the older weights"
        assert engine.run("old2", old).num_cached_tokens == 192
        assert engine.run("apart1", apart).num_cached_tokens == 96
        (log,) = engine.runtime.glob("*audit*")
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        assert [line["result"] for line in lines if line["operation"] == "weights change"] == ["begun", "done"]
        assert lines[-1]["removed"] == len(before)


@pytest.fixture(scope="module")
def core(model: Callable[..., Path]) -> Iterator[Any]:
    """An engine core with a worker that has DeepSeek-V4's tensors."""
    from vllm import LLM

    install()
    llm = LLM(
        model=str(model("deepseek_v4")),
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        num_gpu_blocks_override=1_024,
    )
    yield llm.llm_engine.engine_core.engine_core
    llm.llm_engine.engine_core.shutdown()


def alignment(core: Any) -> GateResult:
    """Run gate 4 over what the worker says, passed through JSON as on the socket."""
    tensors, reason = worker_tensors([json.loads(json.dumps(layout(core.model_executor.driver_worker.worker)))])
    assert reason is None
    manager = core.scheduler.kv_cache_manager
    snapshot = replace(read(manager), geometry=geometry_of(manager), evidence=Evidence(tensors=tensors))
    (result,) = run(snapshot, [GateName.ALIGNMENT])
    return result


def test_case_19_a_page_without_its_padding(core: Any) -> None:
    """A page of 37,376 bytes is padded to 37,440, which passes; were it not, KV403 would say so."""
    healthy = alignment(core)
    assert healthy.findings == ()
    assert healthy.looked["KV403"] > 0
    groups = core.model_executor.driver_worker.worker.model_runner.kv_cache_config.kv_cache_groups
    specs = {
        id(spec): spec
        for group in groups
        for spec in getattr(group.kv_cache_spec, "kv_cache_specs", {"": group.kv_cache_spec}).values()
    }
    windows = [spec for spec in specs.values() if spec.page_size_bytes == PADDED_PAGE]
    assert windows, sorted(spec.page_size_bytes for spec in specs.values())
    assert {spec.real_page_size_bytes for spec in windows} == {REAL_PAGE}
    for spec in windows:
        object.__setattr__(spec, "page_size_padded", None)
    try:
        found = {finding.code: finding for finding in alignment(core).findings}
    finally:
        for spec in windows:
            object.__setattr__(spec, "page_size_padded", PADDED_PAGE)
    assert found.keys() == {"KV403"}
    assert (found["KV403"].values["value"], found["KV403"].values["required"]) == (REAL_PAGE, KERNEL_UNIT)
    assert alignment(core).findings == ()
