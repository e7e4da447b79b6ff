"""The probe in an engine that a caller drives: decisions, safe points, the table, and leaving no trace."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.decision import Outcome, Phase, Reason
from agent.model.snapshot import Consistency, Level
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt, sibling
from tests.support.waiting import wait_for

PAGES = {"llama": 72, "gemma3": 160}


@pytest.fixture(scope="module", params=sorted(PAGES))
def engine(request: pytest.FixtureRequest, model: Callable[..., Path]) -> Iterator[Engine]:
    """An engine with one group (Llama-like) and one with window and full groups (Gemma-3-like)."""
    with engine_in_process(model(request.param, seed=1), pages=PAGES[request.param]) as running:
        yield running


def last(engine: Engine, count: int = 1) -> Any:
    """Return the latest decisions, unexplained, from the probe's own ring."""
    with engine.session() as session:
        return session.overview(decisions=count).decisions


def test_capabilities(engine: Engine) -> None:
    """Everything that this version of kvctl offers works on this version of vLLM."""
    with engine.session() as session:
        off = {item.name for item in session.overview().capabilities if not item.on}
    assert off <= {"external", "layout", "weights_digest"}


def test_decisions_equal_the_engines_own_numbers(engine: Engine) -> None:
    """The tokens that a decision says were reused are those that the engine reports with the request."""
    stem = prompt("numbers", 400)
    prompts = [stem, stem, sibling(stem, 200, "numbers2", 90), prompt("numbers3", 17), stem[:-1]]
    for number, ids in enumerate(prompts):
        output = engine.run(f"numbers{number}", ids)
        (decision,) = last(engine)
        assert decision.request.startswith(f"numbers{number}")
        assert decision.engine_usable == output.num_cached_tokens
        assert decision.lookup_tokens == len(ids)
        assert (decision.phase, decision.lookups, decision.external) == (Phase.FIRST, 1, 0)
        assert decision.duration_ns


def test_a_request_that_does_not_read(engine: Engine) -> None:
    """A request that asked not to read the cache is a decision of its own, explained without a table."""
    stem = prompt("skip", 300)
    engine.run("skip0", stem)
    engine.run("skip1", stem, prompt_logprobs=0)
    (decision,) = last(engine)
    assert decision.skipped
    assert (decision.outcome, decision.reason) == (Outcome.RECOMPUTE, Reason.SKIPPED)
    assert decision.engine_usable == 0


def wait_behind_holders(engine: Engine) -> tuple[list[Any], Any]:
    """Admit requests until one has to wait for pages; return the others and the one that waits, looked up once."""
    holders: list[Any] = []
    while True:
        engine.add(f"case15x{len(holders)}", prompt(f"case15x{len(holders)}", 500), 200)
        request = list(engine.core.scheduler.requests.values())[-1]
        engine.step()
        if request.num_computed_tokens == 0:
            return holders, request
        while request.num_computed_tokens < 500:
            engine.step()
        holders.append(request)


def test_waiting_is_looked_up_often_and_counted_once(engine: Engine) -> None:
    """Case 15: four look-ups until there are pages are one first decision; a preempted request adds a resumption."""
    with engine.session() as session:
        before = session.call("counters")["counters"]
        begin = session.call("decisions")["last"]
        holders, waiting = wait_behind_holders(engine)
        engine.step(2)
        engine.llm.abort_request([holders[0].request_id], internal=True)
        engine.finish()
        decisions = session.decisions(since=begin)
        after = session.call("counters")["counters"]
    first = [item for item in decisions if item.phase is Phase.FIRST]
    resumed = [item for item in decisions if item.phase is Phase.RESUMED]
    everybody = [*holders, waiting]
    assert [item.request for item in first] == [request.request_id for request in everybody]
    assert [item.lookups for item in first] == [1] * len(holders) + [4]
    assert waiting.num_preemptions > 0
    named = Counter(item.request for item in resumed)
    assert named == Counter({request.request_id: request.num_preemptions for request in everybody})

    def grown(name: str) -> float:
        return float(after[name] - before[name])

    assert grown('reuse_decisions{phase="first"}') == len(everybody)
    assert grown('reuse_decisions{phase="resumed"}') == len(resumed)
    for phase, items in (("first", first), ("resumed", resumed)):
        assert grown(f'reuse_lookup_tokens{{phase="{phase}"}}') == sum(item.lookup_tokens for item in items)
        assert grown(f'reuse_engine_usable_tokens{{phase="{phase}"}}') == sum(item.engine_usable for item in items)
    assert grown("reuse_lookups") == sum(item.lookups for item in decisions) > len(decisions)
    assert grown("reuse_lookups_not_admitted") == 0


def test_following_while_the_engine_idles(engine: Engine) -> None:
    """A reader joins, and sees a snapshot at one epoch, while nobody steps the engine."""
    with engine.session() as session:
        shares: list[float] = []
        session.follow(Level.REFERENCES, progress=shares.append, deadline_s=60)
        snapshot = session.snapshot(free_list=True)
    assert shares[-1] == 1.0
    assert snapshot.capture.consistency is Consistency.ATOMIC
    assert snapshot.pages is not None
    assert snapshot.pool is not None
    assert snapshot.free_list is not None
    assert snapshot.pages.free is not None
    free = {page for page, is_free in enumerate(memoryview(snapshot.pages.free).cast("B")) if is_free}
    assert free == set(snapshot.free_list)
    assert len(snapshot.free_list) == snapshot.pool.free


def test_snapshot_between_two_steps(engine: Engine) -> None:
    """With requests running the tables of requests and the page table agree: every page of a table is referenced."""
    with engine.session() as session:
        session.follow(Level.REFERENCES)
        for number in range(4):
            engine.add(f"snap{number}", prompt(f"snap{number}", 150 + 40 * number), 30)
        engine.step(6)
        snapshot = session.snapshot(free_list=True)
        assert snapshot.capture.consistency is Consistency.ATOMIC
        assert snapshot.pages is not None
        assert snapshot.pages.references is not None
        assert snapshot.requests
        assert snapshot.holders == {}
        counts = memoryview(snapshot.pages.references).cast("B").cast("i")
        held: dict[int, int] = {}
        for request in snapshot.requests:
            assert request.tables is not None
            for table in request.tables:
                for page in table:
                    held[page] = held.get(page, 0) + (page != 0)
        assert {page: counts[page] for page in held if page} == {page: held[page] for page in held if page}
        session.call("audit")
        session.poll()
        engine.finish()


def test_explained_decisions_agree_with_the_engine(engine: Engine) -> None:
    """With a reader following, our rules give the engine's own number for every look-up under load."""
    with engine.session() as session:
        session.follow()
        stem = prompt("agree", 600)
        seen: list[Any] = []
        for number in range(24):
            engine.add(f"agree{number}", sibling(stem, 64 * (number % 9), f"agree{number}", 50 + 3 * number), 8)
            engine.step(2)
            seen += session.poll()
        engine.finish()
        seen += session.poll()
    assert len(seen) >= 24
    assert all(item.usable is not None for item in seen)
    assert [(item.request, item.usable) for item in seen] == [(item.request, item.engine_usable) for item in seen]


def test_decisions_of_one_step_are_told_apart(engine: Engine) -> None:
    """Requests admitted in one step are each compared with the table that their own look-up saw, to the token."""
    stem = prompt("together", 300)
    engine.run("together", stem)
    seen: list[Any] = []
    with engine.session() as session:
        session.follow()
        for turn in range(6):
            for number in range(4):
                ids = sibling(stem, 48 * (number + 1), f"together{turn}.{number}", 40 + 30 * (number % 2))
                engine.add(f"together{turn}.{number}", ids, 3)
            engine.finish()
            seen += session.poll()
    assert len(seen) == 24
    assert len({item.step for item in seen}) <= 12, "several were admitted in one step"
    assert all(item.logical is not None for item in seen), "each was compared"
    assert [item.usable for item in seen] == [item.engine_usable for item in seen]
    assert any(item.engine_usable > 0 for item in seen)


def test_the_finder_answers_without_effect(engine: Engine) -> None:
    """Asking the engine's own finder at a safe point gives what the next look-up gives, and moves nothing."""
    stem = prompt("finder", 300)
    engine.run("finder0", stem)
    engine.add("finder1", [*stem, 5, 6, 7], 20)
    engine.step(2)
    with engine.session() as session:
        session.follow()
        session.snapshot()
        name = next(iter(engine.core.scheduler.requests))
        first = session.call("engine_hit", request=name)
        again = session.call("engine_hit", request=name)
    assert first == again
    assert first["tokens"] >= BLOCK
    engine.finish()


def test_questions_while_another_thread_steps(engine: Engine) -> None:
    """Questions are answered between steps of a busy engine, one after the other."""
    for number in range(6):
        engine.add(f"busy{number}", prompt(f"busy{number}", 200), 80)
    worker = threading.Thread(target=engine.finish)
    worker.start()
    asked = 0
    with engine.session() as session:
        session.follow()
        while worker.is_alive():
            snapshot = session.snapshot()
            assert snapshot.capture.consistency is Consistency.ATOMIC
            asked += 1
    worker.join()
    assert asked > 3
    assert engine.probe.guard.errors == 0


def test_leaving_takes_the_joined_hooks_away(engine: Engine) -> None:
    """After the last reader has gone, also one that just closed, the pool has its always-on hooks only."""
    pool = engine.core.scheduler.kv_cache_manager.block_pool
    feed = engine.probe.feed
    assert feed is not None
    # Readers of earlier tests leave at the next safe point after their connection has closed.
    wait_for(lambda: not any(feed.status()["readers"].values()), "earlier readers to leave")
    always = set(vars(pool))
    with engine.session() as session:
        session.follow(Level.REFERENCES)
        assert set(vars(pool)) > always
    wait_for(lambda: set(vars(pool)) == always, "the reader's hooks to leave")
    assert engine.probe.recorder.explaining == 0
