"""Taking prefixes out of a real cache: exactly as planned or not at all, and not brought back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import RefusedError, UsageError
from agent.session import Session
from inspector.invalidation import apply_plan, make_plan
from inspector.selection import select
from inspector.selector import parse
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt, sibling


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine: window groups and a full one."""
    with engine_in_process(model("gemma3", seed=1), pages=256) as running:
        yield running


def keys_of(session: Session, engine: Engine, ids: list[int]) -> list[list[Any]]:
    """Return every cached (group, key) of a prompt, found by asking the engine for the chain of a live request."""
    engine.add("keys", ids, 2)
    engine.step()
    name = next(name for name in engine.core.scheduler.requests if name.startswith("keys"))
    joined = bytes.fromhex(session.call("chain", request=name)["keys"])
    engine.finish()
    chain = [joined[start : start + 16] for start in range(0, len(joined), 16)][: len(ids) // BLOCK]
    groups = range(len(session.geometry.groups))
    return [[group, key.hex()] for group in groups for key in chain]


def test_the_plan_is_done_exactly(engine: Engine) -> None:
    """The plan names every page; after apply this prefix is computed anew and all others still hit."""
    mine, other = prompt("mine", 400), prompt("other", 400)
    engine.run("mine0", mine)
    engine.run("other0", other)
    with engine.session() as session:
        plan = session.call("invalidate_plan", keys=keys_of(session, engine, mine))
        pages = {page for entry in plan["entries"] for page in entry["pages"]}
        assert len(pages) >= 400 // BLOCK
        assert all(stamp > 0 for entry in plan["entries"] for stamp in entry["stamps"])
        done = session.call("invalidate_apply", plan=plan)
        assert done["removed"] == len(pages)
        pool = engine.core.scheduler.kv_cache_manager.block_pool
        assert all(pool.blocks[page].block_hash is None for page in pages)
        session.follow()
        session.call("audit")
        session.poll()
    assert engine.run("mine1", mine).num_cached_tokens == 0
    assert engine.run("other1", other).num_cached_tokens == 384
    assert engine.run("mine2", mine).num_cached_tokens == 384


def test_an_outdated_plan_changes_nothing(engine: Engine) -> None:
    """Case 14: pages that were registered anew since the plan was made are named, and nothing is evicted."""
    ids = prompt("outdated", 300)
    engine.run("outdated0", ids)
    with engine.session() as session:
        keys = keys_of(session, engine, ids)
        plan = session.call("invalidate_plan", keys=keys)
        session.call("invalidate_apply", plan=plan)
        engine.run("outdated1", ids)
        with pytest.raises(RefusedError, match="outdated") as caught:
            session.call("invalidate_apply", plan=plan)
        moved = {page for entry in plan["entries"] for page in entry["pages"]}
        assert all(str(page) in str(caught.value.why) for page in sorted(moved)[:3])
        with pytest.raises(UsageError, match="cannot be read"):
            session.call("invalidate_apply", plan={**plan, "groups": []})
        other = {**plan, "engine": [1, 1]}
        with pytest.raises(RefusedError, match="another engine"):
            session.call("invalidate_apply", plan=other)
    assert engine.run("outdated2", ids).num_cached_tokens == 288
    lines = [json.loads(line) for line in (engine.runtime / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    refused = [line for line in lines if line.get("result") == "refused"]
    assert refused
    assert refused[-1]["moved"]


def test_duplicates_go_too(engine: Engine) -> None:
    """Case 23: a key held by two pages is planned with both, and both are evicted."""
    ids = prompt("twice", 200)
    engine.run("twice0", ids)
    engine.run("twice1", ids, prompt_logprobs=0)
    with engine.session() as session:
        plan = session.call("invalidate_plan", keys=keys_of(session, engine, ids))
        double = [entry for entry in plan["entries"] if len(entry["pages"]) > 1]
        assert double, "the second request was meant to compute the same pages again"
        session.call("invalidate_apply", plan=plan)
        again = session.call("invalidate_plan", keys=[[entry["group"], entry["key"]] for entry in plan["entries"]])
        assert again["entries"] == []
    assert engine.run("twice2", ids).num_cached_tokens == 0


def test_a_running_request_does_not_bring_it_back(engine: Engine) -> None:
    """A request that was computed on evicted pages registers nothing usable beyond them until it is computed anew."""
    ids = prompt("runs on", 200)
    engine.add("runs0", ids, 120)
    engine.step(8)
    with engine.session() as session:
        request = next(name for name in engine.core.scheduler.requests if name.startswith("runs0"))
        joined = bytes.fromhex(session.call("chain", request=request)["keys"])
        keys = [[group, joined[:16].hex()] for group in range(len(session.geometry.groups))]
        keys += [
            [group, joined[start : start + 16].hex()] for group in range(3) for start in range(16, len(joined), 16)
        ]
        session.call("invalidate_apply", plan=session.call("invalidate_plan", keys=keys))
        engine.step(70)
        tokens = engine.core.scheduler.requests[request].all_token_ids
        longer = [*tokens[: len(tokens) // BLOCK * BLOCK], 1, 2, 3]
        engine.run_beside("runs1", longer)
        assert engine.results["runs1"].num_cached_tokens == 0
        engine.run_beside("runs2", longer)
        assert engine.results["runs2"].num_cached_tokens == len(longer) // BLOCK * BLOCK
    engine.finish()


def test_pages_can_be_named_instead_of_keys(engine: Engine) -> None:
    """A plan made from page ids covers every key of these pages, and every page of those keys."""
    ids = prompt("pages", 100)
    engine.run("pages0", ids)
    engine.run("pages1", sibling(ids, 96, "pages1", 40))
    with engine.session() as session:
        whole = session.call("invalidate_plan", keys=keys_of(session, engine, ids))
        page = whole["entries"][0]["pages"][0]
        plan = session.call("invalidate_plan", pages=[page])
        assert [entry["pages"] for entry in plan["entries"]] == [whole["entries"][0]["pages"]]


def test_a_request_that_ends_leaves_nothing_behind(engine: Engine) -> None:
    """What it registered between the last look-up and its end was computed on evicted pages, and goes, too.

    Nobody looks anything up meanwhile. Once the prefix were computed anew, the rest would be hit again.
    """
    assert engine.llm.reset_prefix_cache()
    engine.add("ends0", prompt("ends", 200), 120)
    engine.step(4)
    with engine.session() as session:
        request = next(name for name in engine.core.scheduler.requests if name.startswith("ends0"))
        joined = bytes.fromhex(session.call("chain", request=request)["keys"])
        chain = [joined[start : start + 16].hex() for start in range(0, len(joined), 16)]
        keys = [[group, key] for group in range(len(session.geometry.groups)) for key in chain]
        session.call("invalidate_apply", plan=session.call("invalidate_plan", keys=keys))
    engine.finish()
    blocks = engine.core.scheduler.kv_cache_manager.block_pool.blocks
    assert [block.block_hash_num_tokens for block in blocks if block.block_hash is not None] == []


def registered(engine: Engine) -> dict[int, tuple[int, bytes]]:
    """Return group and key of every cached page."""
    blocks = engine.core.scheduler.kv_cache_manager.block_pool.blocks
    return {
        block.block_id: (int.from_bytes(block.block_hash[-4:], "big"), block.block_hash)
        for block in blocks
        if block.block_hash is not None
    }


def take(session: Session, selector: str) -> set[int]:
    """Invalidate as the command does; return the pages of the plan."""
    session.poll()
    snapshot = session.snapshot()
    plan = make_plan(session, snapshot, select(snapshot, parse(selector)), deadline_s=30.0)
    apply_plan(session, plan, quarantine=True, deadline_s=30.0)
    return set(plan.pages)


@pytest.mark.parametrize("selector", ["group:0", "state:swa"])
def test_whole_groups_are_taken_alone(engine: Engine, selector: str) -> None:
    """A request that runs on keeps what it has in other groups and registers nothing in these; nobody can resume."""
    assert engine.llm.reset_prefix_cache()
    ids = prompt(f"alone {selector}", 200)
    engine.add("alone0", ids, 200)
    engine.step(8)
    (request,) = engine.core.scheduler.requests.values()
    taken = {0} if selector == "group:0" else {0, 1}
    with engine.session() as session:
        session.follow()
        before = registered(engine)
        planned = take(session, selector)
    assert planned == {page for page, (group, _) in before.items() if group in taken}
    left = {page: held for page, held in before.items() if page not in planned}
    engine.step()
    assert registered(engine) == left
    engine.step(70)
    after = registered(engine)
    assert {group for page, (group, _) in after.items() if page not in left} == {2}
    assert after.items() > left.items()
    longer = [*request.all_token_ids[: request.num_tokens // BLOCK * BLOCK], 1, 2, 3]
    engine.run_beside("alone1", longer)
    assert engine.results["alone1"].num_cached_tokens == 0
    engine.run_beside("alone2", longer)
    assert engine.results["alone2"].num_cached_tokens == len(longer) // BLOCK * BLOCK
    assert not request.is_finished(), "all of this happened while it ran"
    engine.finish()


def test_a_second_look_at_a_request_takes_only_what_is_new(engine: Engine) -> None:
    """Sweeping goes on where it stopped: a long request under quarantine costs little a step."""
    ids = prompt("long", 600)
    engine.add("long0", ids, 100)
    engine.step(8)
    with engine.session() as session:
        request = next(name for name in engine.core.scheduler.requests if name.startswith("long0"))
        key = session.call("chain", request=request)["keys"][:32]
        session.call("invalidate_apply", plan=session.call("invalidate_plan", keys=[[0, key], [1, key], [2, key]]))
    engine.step(40)
    quarantine = engine.probe.adapter.quarantine
    managers = engine.core.scheduler.kv_cache_manager.coordinator.single_type_managers
    assert quarantine
    for group, manager in enumerate(managers):
        assert quarantine._swept[request, group] == manager.num_cached_block[request]
        assert not any(block.block_hash for block in manager.req_to_blocks[request] if not block.is_null)
    engine.finish()
    engine.run("other", prompt("other", 40))
    assert not quarantine
    assert not quarantine._swept
