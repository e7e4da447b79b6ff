"""The whole probe on this version's engine core and scheduler: decisions, invalidation, removal, commit fence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.decision import Outcome, Phase
from agent.model.snapshot import Level
from tests.support.bare_engine import BareEngine, distinct_keys
from tests.support.engine_env import short_folder
from tests.support.prompts import prompt, sibling
from tests.support.step_engine import BLOCK, Setting, StepEngine

pytestmark = pytest.mark.engine

PREEMPTIONS = 40
STEP_LIMIT = 20_000


@pytest.fixture
def engine(model: Callable[..., Path]) -> Iterator[BareEngine]:
    """An engine with its probe."""
    with short_folder() as runtime:
        bare = BareEngine(model("llama"), runtime)
        assert bare.probe.start()
        yield bare
        bare.probe.stop()
        assert bare.probe.guard.errors == 0


def functions(owner: Any) -> dict[str, Any]:
    """Return the functions of an object's or a class's own dictionary."""
    return {name: value for name, value in vars(owner).items() if callable(value)}


def test_decisions_are_the_engines_own_numbers(engine: BareEngine) -> None:
    """A look-up becomes a decision when its request is admitted, once, with the tokens that the engine reused."""
    stem = prompt("contract", 300)
    prompts = [stem, stem, sibling(stem, 200, "other", 90), prompt("short", 9)]
    with engine.session() as session:
        session.follow()
        hits = [engine.run(f"r{number}", ids) for number, ids in enumerate(prompts)]
        assert hits == [0, 288, 192, 0]
        decisions = session.poll()
        assert [item.request for item in decisions] == [f"r{number}" for number in range(len(prompts))]
        assert [item.engine_usable for item in decisions] == hits
        assert [item.usable for item in decisions] == hits
        assert [item.lookup_tokens for item in decisions] == [len(ids) for ids in prompts]
        assert {(item.phase, item.lookups, item.external) for item in decisions} == {(Phase.FIRST, 1, 0)}
        assert [item.outcome for item in decisions] == [
            Outcome.RECOMPUTE,
            Outcome.REUSE,
            Outcome.REUSE,
            Outcome.RECOMPUTE,
        ]


def test_a_waiting_request_is_looked_up_often_and_decided_once(engine: BareEngine) -> None:
    """Requests that wait for pages, and those that are preempted, give one decision for each admission."""
    names = [f"w{number}" for number in range(6)]
    for number, name in enumerate(names):
        engine.add(name, prompt(name, 380 - number), 120)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    with engine.session() as session:
        decisions = session.decisions()
        counters = session.call("counters")["counters"]
    assert sorted(item.request for item in decisions if item.phase is Phase.FIRST) == names
    assert any(item.phase is Phase.RESUMED for item in decisions), "the load was meant to preempt"
    assert counters["reuse_lookups"] == sum(item.lookups for item in decisions)


def test_a_prefix_is_taken_out_by_key(engine: BareEngine) -> None:
    """The planned pages lose their keys, the next request computes the prefix anew, another one still hits."""
    mine, other = prompt("mine", 200), prompt("other", 200)
    engine.run("mine0", mine)
    engine.run("other0", other)
    engine.add("mine1", mine)
    engine.step()
    with engine.session() as session:
        joined = bytes.fromhex(session.call("chain", request="mine1")["keys"])
        while engine.scheduler.has_unfinished_requests():
            engine.step()
        chain = [joined[start : start + 16] for start in range(0, len(joined), 16)][: len(mine) // BLOCK]
        plan = session.call("invalidate_plan", keys=[[0, key.hex()] for key in chain])
        pages = {page for entry in plan["entries"] for page in entry["pages"]}
        assert len(pages) >= len(chain)
        assert session.call("invalidate_apply", plan=plan)["removed"] == len(pages)
    assert all(engine.pool.blocks[page].block_hash is None for page in pages)
    assert engine.run("mine2", mine) == 0
    assert engine.run("other1", other) == 192
    assert engine.run("mine3", mine) == 192


def test_following_and_stopping_leave_no_trace(model: Callable[..., Path]) -> None:
    """The table of a joined reader is exact; after `stop` every object and class is as it was, and the engine works."""
    with short_folder() as runtime:
        engine = BareEngine(model("llama"), runtime)
        before = {name: functions(owner) for name, owner in engine.hooked().items()}
        assert engine.probe.start()
        session = engine.session()
        session.follow(Level.REFERENCES)
        assert {name: functions(owner) for name, owner in engine.hooked().items()} != before
        engine.run("a", prompt("a", 300))
        session.call("audit")
        snapshot = session.snapshot(free_list=True)
        assert snapshot.pages is not None
        assert snapshot.pool is not None
        assert 0 < distinct_keys(snapshot.pages) == snapshot.pool.keys
        assert session.call("stop") == {"stopped": True}
        session.close()
        engine.run("b", prompt("a", 300))
        assert {name: functions(owner) for name, owner in engine.hooked().items()} == before
        engine.probe.stop()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_commit_fence(model: Callable[..., Path], *, asynchronous: bool) -> None:
    """Through preemptions no page that was computed is called never-computed, and none is missed."""
    setting = Setting(
        policy="fcfs",
        asynchronous=asynchronous,
        in_flight=2 if asynchronous else 0,
        pages=90,
        requests=16,
        outputs=(60, 200),
        patient=0,
    )
    engine = StepEngine(model("llama"), setting)
    assert engine.feed.reason is None
    for step in range(STEP_LIMIT):
        if engine.preemptions >= PREEMPTIONS:
            break
        engine.add_requests()
        engine.step()
        if step % 25 == 0:
            engine.judge()
    assert engine.preemptions >= PREEMPTIONS
    verdicts = engine.verdicts
    assert verdicts.committed
    assert not verdicts.never | verdicts.missed | verdicts.tainted
