"""Cases 11, 13 and 22 on the reference engine's disk tier: what the gates say before any request, what a request gets.

Invariant: files are written by an engine and read by another; what is wrong with them is done to the files or by the
second engine's configuration, never to what is read of them.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.engines.reference.adapter import ReferenceAdapter
from agent.gates.runner import run
from agent.model.decision import Outcome
from agent.model.finding import Finding
from agent.model.snapshot import Level
from agent.probe.lifecycle import Probe
from agent.reference.config import EngineConfig, ModelConfig
from agent.reference.disk import PageName
from agent.reference.engine import Engine
from agent.reference.faults import Fault
from agent.reference.geometry import GroupName
from agent.reference.keys import Chain, Identity
from agent.session import Session
from tests.support.bare_reference import open_own
from tests.support.engine_env import short_folder
from tests.support.reference import MODEL, Recorder, Truth, check_pages, swap_out

PROMPT = random.Random(9).choices(range(MODEL.vocabulary), k=100)
WHOLE = 96


def engine_on(folder: Path, truth: Truth, **changes: Any) -> Engine:
    """Start an engine whose only other tier is a folder."""
    settings: dict[str, Any] = {"disk_folder": str(folder), "host_pages": 0, "poison": True, "degrade": False}
    return Engine(MODEL, EngineConfig(**{**settings, **changes}), weights=truth.weights)


def fill(folder: Path, truth: Truth) -> set[str]:
    """Have an engine compute the prompt, write everything to the folder and end; return the names of the files."""
    engine = engine_on(folder, truth)
    engine.submit("first", PROMPT, 4)
    engine.run()
    swap_out(engine)
    engine.close()
    names = {path.name for path in folder.iterdir() if PageName.parse(path.name) is not None}
    assert len(names) > WHOLE // 16
    return names


@contextmanager
def followed(engine: Engine) -> Iterator[Session]:
    """Put the agent into an engine and open a session with it."""
    with short_folder() as runtime:
        probe = Probe(ReferenceAdapter(engine), turn=threading.RLock(), environ={"KVCTL_RUNTIME_DIR": str(runtime)})
        assert probe.start()
        with open_own(runtime) as session:
            session.follow(Level.REFERENCES)
            yield session
        probe.stop()
        assert probe.guard.errors == 0


def findings(session: Session) -> dict[str, Finding]:
    """Run all gates on the engine as it is now."""
    session.poll()
    return {item.code: item for result in run(session.snapshot(free_list=True)) for item in result.findings}


def group_of(name: str) -> int:
    """Return the group of the page in a file."""
    page = PageName.parse(name)
    assert page is not None
    return page.group


def served(engine: Engine, session: Session, truth: Truth) -> list[tuple[Outcome, int]]:
    """Send the prompt, see that the answer is right, and return each decision: outcome and reused tokens."""
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 5], 4)
    engine.run()
    assert recorder.worst(truth) < 1e-9
    check_pages(engine)
    return [(item.outcome, item.engine_usable + item.external) for item in session.poll()]


def test_the_control_reads_what_it_wrote(tmp_path: Path) -> None:
    """The same engine started again: nothing is foreign, and the first request gets its prefix from the folder."""
    truth = Truth()
    fill(tmp_path, truth)
    engine = engine_on(tmp_path, truth)
    with followed(engine) as session:
        assert findings(session) == {}
        assert served(engine, session, truth) == [(Outcome.PREFETCHING, WHOLE)]
    engine.close()


@pytest.mark.parametrize("other", ["configuration", "weights"])
def test_case_22_another_engine_at_the_same_path(other: str, tmp_path: Path) -> None:
    """KV206 counts every file before the first request, which then uses none of them and is answered rightly."""
    names = fill(tmp_path, Truth())
    truth = Truth(ModelConfig(seed=2)) if other == "weights" else Truth()
    changes = {"page_alignment": 576} if other == "configuration" else {}
    engine = engine_on(tmp_path, truth, **changes)
    with followed(engine) as session:
        found = findings(session)
        assert found.keys() == {"KV206"}
        assert (found["KV206"].values["tier"], found["KV206"].values["count"]) == ("disk", len(names))
        assert found["KV206"].values["name"] in names
        assert served(engine, session, truth) == [(Outcome.RECOMPUTE, 0)]
    engine.close()


def test_case_13_a_file_that_is_too_short(tmp_path: Path) -> None:
    """A file of half its length behind an index that offers it: KV408 before the request, quarantined by it."""
    truth = Truth()
    names = fill(tmp_path, truth)
    engine = engine_on(tmp_path, truth)
    victim = next(name for name in sorted(names) if group_of(name) == engine.pools.by_name[GroupName.COMPRESSED].id)
    size = (tmp_path / victim).stat().st_size
    os.truncate(tmp_path / victim, size // 2)
    with followed(engine) as session:
        found = findings(session)
        assert found.keys() == {"KV408"}
        values = found["KV408"].values
        assert (values["name"], values["value"], values["expected"]) == (victim, size // 2, size)
        outcomes = served(engine, session, truth)
        assert findings(session).keys() <= {"KV301", "KV302", "KV303", "KV304"}, "a loss, no fault"
    disk = engine.tiers.disk
    assert disk is not None
    assert disk.unusable == {"truncated": 1}
    reused = engine.scheduler.records[-1].reused
    assert reused < WHOLE, "computed where it did not come"
    assert [tokens for _, tokens in outcomes] == [reused], "and only what came is in the decision"
    assert [path.name for path in disk.quarantine.iterdir()] == [f"truncated-{victim}"]
    engine.close()


@pytest.mark.parametrize("fate", ["arrives", "fails", "is lost"])
def test_only_what_a_load_brought_is_counted(fate: str, tmp_path: Path) -> None:
    """A load that fails, or is never acknowledged, counts no token as brought: the decision is a recomputation."""
    truth = Truth()
    names = fill(tmp_path, truth)
    engine = engine_on(tmp_path, truth)
    if fate == "fails":
        for name in names:
            os.truncate(tmp_path / name, 9)
    if fate == "is lost":
        engine.faults.switch(Fault.LOSE_ACKNOWLEDGEMENT)
    with followed(engine) as session:
        outcomes = served(engine, session, truth)
        counters = session.call("counters")["counters"]
    came = WHOLE if fate == "arrives" else 0
    assert outcomes == [(Outcome.PREFETCHING if came else Outcome.RECOMPUTE, came)]
    assert (counters["reuse_external_tokens"], counters["reuse_engine_usable_tokens"]) == (came, 0)
    won = {name: value for name, value in counters.items() if name.startswith("recovered_tokens{")}
    assert won == ({'recovered_tokens{route="transfer"}': came} if came else {})
    assert counters["reuse_decisions"] == 1
    assert bool(engine.prefetcher.failed) == (fate == "fails")
    assert engine.prefetcher.given_up == (fate == "is lost")
    result = {"arrives": "arrived", "fails": "failed", "is lost": "expired"}[fate]
    ended = {name: value for name, value in counters.items() if name.startswith("prefetch{") and value}
    assert ended.keys() == {f'prefetch{{result="{result}"}}'}
    assert counters["prefetch_wait_seconds_count"] == sum(ended.values())
    engine.close()


def test_case_11_the_indexer_ends_earlier(tmp_path: Path) -> None:
    """Complete history and an indexer that ends at 64 tokens: a request is brought 64 tokens and reuses no more."""
    truth = Truth()
    names = fill(tmp_path, truth)
    engine = engine_on(tmp_path, truth)
    indexer, chain = engine.pools.by_name[GroupName.INDEXER], Chain(engine.describe().hash_unit, Identity())
    chain.extend(PROMPT)
    engine.close()
    lost = {PageName(group=indexer.id, key=chain.at(end)).file for end in range(64 + indexer.block, 97, indexer.block)}
    assert len(lost) == 2
    assert lost < names
    for name in lost:
        (tmp_path / name).unlink()
    engine = engine_on(tmp_path, truth)
    with followed(engine) as session:
        assert served(engine, session, truth) == [(Outcome.PREFETCHING, 64)]
    assert engine.scheduler.records[-1].reused == 64
    engine.close()
