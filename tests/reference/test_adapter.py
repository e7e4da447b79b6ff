"""The agent on the reference engine: the same feed, socket and gates as on any other, and nothing left behind."""

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.engines.reference.adapter import ReferenceAdapter
from agent.gates.runner import run
from agent.model.decision import Decision, Outcome, Phase, Reason
from agent.model.finding import GateName, Verdict
from agent.model.snapshot import Consistency, Level
from agent.model.states import State
from agent.probe.lifecycle import Probe
from agent.reference.config import EngineConfig
from agent.reference.engine import Engine
from agent.session import Session, open_target
from tests.support.reference import MODEL, NIGHTLY, Recorder, Truth, check_pages
from tests.support.waiting import wait_for

ROOTS = [random.Random(seed).choices(range(MODEL.vocabulary), k=100) for seed in range(3)]


class Host:
    """An engine with a probe in it, driven by a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.probe = engine, Probe(ReferenceAdapter(engine))
        self.stop = threading.Event()
        self.traffic = True
        self.thread = threading.Thread(target=self._drive)

    def _drive(self) -> None:
        dice, number = random.Random(1), 0
        while not self.stop.is_set():
            if self.traffic and len(self.engine.requests) < 4:
                prompt = dice.choice(ROOTS)[: dice.randint(20, 100)]
                self.engine.submit(f"r{number}", [*prompt, *dice.choices(range(MODEL.vocabulary), k=4)], 4)
                number += 1
            if self.engine.idle:
                self.engine.pause(0.05)
            else:
                self.engine.step()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A serving engine whose agent listens in a folder of this test."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("KVCTL_ALLOW_CHANGES", "1")
    config = EngineConfig(host_pages=60, disk_folder=str(tmp_path / "disk"), retention_interval=0, poison=True)
    host = Host(Engine(MODEL, config))
    assert host.probe.start()
    host.thread.start()
    yield host
    host.stop.set()
    host.thread.join()
    host.probe.stop()
    host.engine.close()


def _follow(session: Session, count: int) -> list[Decision]:
    """Follow until so many decisions were explained."""
    found: list[Decision] = []

    def enough() -> bool:
        found.extend(session.poll())
        return len(found) >= count

    wait_for(enough, f"{count} decisions", deadline_s=float(count))
    return found


def test_decisions_agree_with_the_agent(host: Host) -> None:
    """What the engine reused is what the agent's rules say from the table at that look-up, each time."""
    with open_target(os.getpid()) as session:
        session.follow(Level.CONTENT)
        decisions = _follow(session, 1_000 if NIGHTLY else 120)
    told = [item for item in decisions if item.usable is not None]
    assert len(told) > len(decisions) * 0.9
    assert [(item.request, item.engine_usable) for item in told] == [(item.request, item.usable) for item in told]
    assert any(item.logical is not None and item.usable < item.logical for item in told if item.usable is not None)


def test_what_another_tier_brings_is_decided_once(host: Host) -> None:
    """A request that waits for a load is decided with what is on its way, and not again when it is admitted."""
    with open_target(os.getpid()) as session:
        session.follow(Level.CONTENT)
        decisions: list[Decision] = []

        def fetched() -> list[Decision]:
            decisions.extend(session.poll())
            return [item for item in decisions if item.outcome is Outcome.PREFETCHING]

        wait_for(lambda: len(fetched()) >= 5, "five decisions that wait for a load")
        host.traffic = False
        wait_for(lambda: host.engine.idle, "an idle engine")
        found = fetched()
        counters = session.call("counters")["counters"]
    assert all(item.external > 0 and item.reason is Reason.NOT_READY for item in found)
    assert [item.usable for item in found] == [item.engine_usable for item in found]
    names = Counter(item.request for item in decisions if item.phase is Phase.FIRST)
    assert set(names.values()) == {1}
    assert 0 < sum(item.external for item in decisions) <= counters["reuse_external_tokens"]


def test_the_table_outside_is_the_table_inside(host: Host) -> None:
    """Snapshots under traffic are of one moment, and name every page as the allocator has it."""
    with open_target(os.getpid()) as session:
        session.follow(Level.REFERENCES)
        _follow(session, 20)
        host.traffic = False
        wait_for(lambda: host.engine.idle, "an idle engine")
        snapshot = session.snapshot(free_list=True)
    assert snapshot.capture.consistency is Consistency.ATOMIC
    table, pages = snapshot.pages, host.engine.pages
    assert table is not None
    assert table.references is not None
    for page in range(1, pages.count):
        key = pages.key[page]
        assert table.tokens.cast("B").cast("I")[page] == (0 if key is None else pages.tokens[page])
        assert table.references.cast("B").cast("i")[page] == pages.references[page]
        if key is not None:
            assert bytes(table.key[16 * page : 16 * page + 16]) == key
            assert table.group[page] == pages.group[page]
    check_pages(host.engine)


def test_a_healthy_engine_passes_the_gates(host: Host) -> None:
    """Block, contract, alignment and red lines pass; the intersection finds losses only, no error."""
    with open_target(os.getpid()) as session:
        session.follow(Level.REFERENCES)
        _follow(session, 40)
        results = {result.gate: result for result in run(session.snapshot(free_list=True))}
    for gate in (GateName.BLOCK, GateName.CONTRACT, GateName.ALIGNMENT, GateName.REDLINES):
        assert results[gate].verdict is Verdict.PASS, results[gate].findings
        assert results[gate].checked > 0
    dangerous = {"KV305", "KV306", "KV307", "KV310", "KV311"}
    assert not {finding.code for finding in results[GateName.INTERSECTION].findings} & dangerous


def test_an_invalidated_prefix_is_computed_again(host: Host) -> None:
    """A plan is applied in the engine, takes the pages out of every tier, and the engine's own finder agrees."""
    with open_target(os.getpid()) as session:
        session.follow(Level.CONTENT)
        _follow(session, 20)
        host.traffic = False
        wait_for(lambda: host.engine.idle, "an idle engine")
        group = next(g for g in host.engine.describe().groups if g.state is State.SWA).id
        keys = [[group, key.hex()] for (owner, key) in host.engine.pages.index if owner == group]
        plan = session.call("invalidate_plan", keys=keys)
        done = session.call("invalidate_apply", plan=plan)
    assert done
    assert not [owner for owner, _ in host.engine.pages.index if owner == group]
    assert not [
        name
        for name, slot in host.engine.tiers.host.items()
        if name.group == group and slot.ready and name.key.hex() in {key for _, key in keys}
    ]
    check_pages(host.engine)


def test_removal_restores_every_attribute() -> None:
    """After the probe is out, engine, scheduler and allocator have exactly the attributes they had before."""
    truth = Truth()
    engine = Engine(MODEL, EngineConfig(), weights=truth.weights)
    owners = (engine, engine.scheduler, engine.pages, engine.reuser, engine.committer)
    before = [dict(vars(owner)) for owner in owners]
    names = [set(vars(owner)) for owner in owners]
    adapter = ReferenceAdapter(engine)
    port = adapter.pool_port()
    probe = Probe(adapter, environ={})
    adapter.install(probe)
    port.install(lambda _: None, lambda *_: None)
    assert [set(vars(owner)) for owner in owners] != names
    port.uninstall()
    adapter.uninstall()
    assert [set(vars(owner)) for owner in owners] == names
    for owner, then in zip(owners, before, strict=True):
        assert all(vars(owner)[name] is value for name, value in then.items())


def test_answers_do_not_depend_on_the_agent(host: Host) -> None:
    """With the agent in it and a reader on it the engine computes what a full recomputation gives."""
    truth, recorder = Truth(), Recorder(host.engine)
    with open_target(os.getpid()) as session:
        session.follow(Level.REFERENCES)
        _follow(session, 30)
    host.traffic = False
    wait_for(lambda: host.engine.idle, "an idle engine")
    assert recorder.worst(truth) < 1e-9
