"""Admission as a live engine decides it: needs, headroom, and the two ways in which a request waits for ever."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.gates.redlines import MAX_RETURNS
from agent.gates.runner import run
from agent.model.evidence import Admission
from agent.model.finding import Finding
from agent.model.snapshot import Snapshot
from agent.session import Session
from exporters.readings import of_snapshot
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt

LONGEST = 1_024
WINDOW_CAP = 11
"""Pages of a window group that the engine counts for one request: window, tokens in flight, one for the offset."""
PAGES = LONGEST // BLOCK + 2 * WINDOW_CAP + 1
"""The smallest pool that the engine accepts for one request of the largest length; one page is the null page."""


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine whose pool holds one request of the largest length and no page more."""
    with engine_in_process(model("gemma3", seed=1), pages=PAGES, max_model_len=LONGEST) as running:
        yield running


def look(session: Session) -> tuple[Snapshot, Admission, dict[str, Finding]]:
    """Read the engine and run all gates."""
    session.poll()
    snapshot = session.snapshot(tables=True, free_list=True)
    assert snapshot.evidence is not None
    assert snapshot.evidence.admission is not None, snapshot.evidence.missing
    found = {finding.code: finding for result in run(snapshot) for finding in result.findings}
    return snapshot, snapshot.evidence.admission, found


def managers(engine: Engine) -> Any:
    """The managers of the groups."""
    return engine.core.scheduler.kv_cache_manager.coordinator.single_type_managers


def test_the_largest_request_fits_exactly(engine: Engine, session: Session) -> None:
    """What it needs is what the pool has: it waits behind another one, nothing is found, and it is admitted."""
    engine.add("first", prompt("first", 200), tokens=8)
    engine.step(2)
    engine.add("largest", prompt("largest", LONGEST - 4), tokens=2)
    engine.step()
    snapshot, admission, found = look(session)
    assert found == {}
    assert list(admission.needs.values()) == [PAGES - 1]
    assert admission.caps == {0: WINDOW_CAP, 1: WINDOW_CAP}
    assert snapshot.pool is not None
    assert (admission.free, admission.headroom) == (snapshot.pool.free, snapshot.pool.free)
    engine.finish()
    assert {"first", "largest"} <= engine.results.keys()
    assert look(session)[2] == {}


def test_headroom_leaves_what_is_spoken_for(engine: Engine, session: Session) -> None:
    """While a long prompt is computed in chunks its later pages are no headroom, free as they are."""
    engine.add("chunks", prompt("chunks", 900), tokens=2)
    engine.step()
    snapshot, admission, found = look(session)
    assert found == {}
    # 256 of 900 tokens have their pages: the windows will recycle theirs, full attention needs 21 more.
    assert admission.reserved == 900 // BLOCK + 1 - 256 // BLOCK + 2 * (WINDOW_CAP - 256 // BLOCK)
    assert admission.free is not None
    assert admission.headroom == admission.free - admission.reserved
    shown = [item for item in of_snapshot(snapshot) if item.metric.name == "admission_headroom_pages"]
    assert [item.value for item in shown] == [admission.headroom] * 3
    engine.finish()


def test_asking_leaves_nothing_behind(engine: Engine, session: Session) -> None:
    """Reading what a waiting request needs makes no table for it and moves no page."""
    engine.add("runs", prompt("runs", 900), tokens=2)
    engine.step()
    engine.add("waits", prompt("waits", 900), tokens=2)
    before = [{name: list(table) for name, table in manager.req_to_blocks.items()} for manager in managers(engine)]
    _, admission, _ = look(session)
    after = [{name: list(table) for name, table in manager.req_to_blocks.items()} for manager in managers(engine)]
    assert len(admission.needs) == 1
    assert [{name: len(table) for name, table in group.items()} for group in before] == [
        {name: len(table) for name, table in group.items()} for group in after
    ]
    assert all(name.startswith("runs") for group in after for name in group)
    engine.finish()


def test_windows_charged_whole(engine: Engine, session: Session) -> None:
    """Admission forgets that windows recycle pages (as engines did): the request waits for ever, and KV502 says so."""
    caps = [manager.max_admission_blocks_per_request for manager in managers(engine)]
    for manager in managers(engine):
        manager.max_admission_blocks_per_request = None
    engine.add("forever", prompt("forever", LONGEST - 4), tokens=2)
    engine.step(12)
    _, _, found = look(session)
    for manager, cap in zip(managers(engine), caps, strict=True):
        manager.max_admission_blocks_per_request = cap
    assert "forever" not in engine.results
    assert found.keys() == {"KV502"}
    assert (found["KV502"].values["value"], found["KV502"].values["size"]) == (3 * LONGEST // BLOCK, PAGES - 1)
    engine.finish()
    assert "forever" in engine.results
    assert look(session)[2] == {}


def test_admitted_and_returned(engine: Engine, session: Session) -> None:
    """A request that is preempted again and again is found once it was so often enough."""
    engine.add("loop", prompt("loop", 300), tokens=40)
    for times in range(MAX_RETURNS):
        assert look(session)[2] == {}, times
        engine.step(2)
        engine.core.reset_prefix_cache(reset_running_requests=True)
    _, admission, found = look(session)
    assert list(admission.returned.values()) == [MAX_RETURNS]
    assert found.keys() == {"KV503"}
    assert found["KV503"].values["value"] == MAX_RETURNS
    engine.finish()
    assert look(session)[2] == {}
