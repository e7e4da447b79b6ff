"""What the agent says of look-ups and what the gates say of the cache, against the engine's own decisions.

The whole path runs, feed, ring, socket and gates among it; only the model does not: requests leave after they were
admitted, and the pages in the pools are whatever a dice put there. Reasons are printed and not compared: the engine and
the agent name the same loss from two sides.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from agent.engines.reference.adapter import ReferenceAdapter
from agent.gates.runner import run as run_gates
from agent.model.decision import Decision, Outcome, Reason
from agent.model.finding import GateName
from agent.model.snapshot import Level
from agent.probe.guard import Limits
from agent.probe.lifecycle import Probe
from agent.reference.config import EngineConfig, LayerKind, ModelConfig, Recovery
from agent.reference.engine import Engine
from agent.reference.keys import Chain, Identity
from agent.reference.request import Request
from agent.reference.reuse import Answer, ReuseRecord
from agent.session import Session
from tests.support.bare_reference import open_own
from tests.support.bruteforce import BruteForce
from tests.support.engine_env import short_folder
from tests.support.reference import NIGHTLY

LOOKUPS = 100_000 if NIGHTLY else 1_600
BATCH = 20
"""Look-ups of one state of the pools; the gates run once for each state."""

MODELS: Mapping[str, ModelConfig] = {
    "all": ModelConfig(),
    "csa_window": ModelConfig(window=17, layers=(LayerKind.CSA, LayerKind.WINDOW)),
    "hca_recurrent": ModelConfig(layers=(LayerKind.HCA, LayerKind.RECURRENT)),
    "full": ModelConfig(layers=(LayerKind.FULL,)),
}
CONFIG = EngineConfig(
    compressed_pages=700,
    tail_pages=1200,
    window_pages=500,
    indexer_pages=250,
    max_batch=BATCH,
    chunk=4,
    step_tokens=4 * BATCH,
    routes=frozenset({Recovery.MAP}),
    degrade=False,
    cached_share=1.0,
)
LOSSES = {"KV301", "KV302", "KV303", "KV304"}
STRANDED, SHORT_PROMPTS = "KV310", "KV209"
"""True here: prefixes with holes, and many a prompt below the unit of hits."""


@dataclass(slots=True)
class Tally:
    """What was compared."""

    lookups: int = 0
    states: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


class World:
    """An engine without its model, a reader on it, and a brute force beside every look-up.

    Args:
        model: Its layers.
        seed: Fixes everything.
    """

    def __init__(self, model: ModelConfig, seed: int) -> None:
        self.engine = Engine(model, CONFIG)
        self.geometry = self.engine.describe()
        self.dice = random.Random(seed)
        self.tally = Tally()
        self.lock = threading.RLock()
        self._number = 0
        self._brute: dict[str, BruteForce] = {}
        look_up = self.engine.reuser.look_up

        def watched(request: Request, step: int, *, tier: bool = True) -> Answer:
            chain = tuple(request.keys().keys)
            held = {name for name, found in self.engine.pages.index.items() if found}
            self._brute[request.id] = BruteForce(self.geometry, chain, held, request.limit)
            return look_up(request, step, tier=tier)

        self.engine.reuser.look_up = watched  # type: ignore[method-assign]

    def _register(self, tokens: list[int]) -> None:
        pages, chain = self.engine.pages, Chain(self.geometry.hash_unit, Identity())
        chain.extend(tokens)
        for spec in self.engine.pools.specs:
            density = self.dice.choice([0.0, 0.6, 0.9, 0.97, *[1.0] * 12])
            for block in range(len(tokens) // spec.block):
                if self.dice.random() < density:
                    end = (block + 1) * spec.block
                    page = pages.take(spec.id, spec.state, 1)[0]
                    pages.fill(page)
                    pages.register(page, chain.at(end), end)
                    pages.release(page)

    def state(self, session: Session) -> None:
        """Fill the pools at random, have a batch of requests admitted, compare, and run the gates."""
        with self.lock:
            names = self._admit()
        engine = self.engine
        records = {record.request: record for record in list(engine.scheduler.records)[-BATCH:]}
        assert set(records) == set(names), "a look-up was not admitted"
        decisions = session.poll()
        assert [item.request for item in decisions] == names
        for item in decisions:
            self._compare(item, records[item.request], self._brute.pop(item.request))
        self._gates(session, decisions, records)
        with self.lock:
            for name in names:
                engine.cancel(name)
            engine.pages.invalidate_all()
        self.tally.states += 1

    def _admit(self) -> list[str]:
        dice, engine = self.dice, self.engine
        roots = [dice.choices(range(97), k=dice.randint(30, 160)) for _ in range(4)]
        for root in roots:
            self._register(root)
        names = []
        for _ in range(BATCH):
            root = dice.choice(roots)
            tokens = root[: dice.randint(1, len(root))] + dice.choices(range(97), k=dice.choice([0, 0, 1, 5, 30]))
            names.append(f"r{self._number}")
            self._number += 1
            engine.submit(names[-1], tokens, 1)
        engine.counters.steps += 1
        engine.scheduler.schedule(engine.counters.steps)
        return names

    def _compare(self, item: Decision, record: ReuseRecord, brute: BruteForce) -> None:
        assert item.usable == item.engine_usable == record.usable == record.reused == brute.usable()
        if item.per_group is None:  # no boundary of so short a request can be hit at all
            assert item.reason in {Reason.BELOW_GRANULARITY, Reason.LAST_TOKEN}
            assert record.usable == 0
        else:
            assert item.logical == record.logical == brute.logical()
            assert item.per_group == record.per_group == tuple(brute.own(group) for group in self.geometry.groups)
        assert (item.outcome is Outcome.RECOMPUTE) == (record.outcome is Outcome.RECOMPUTE)
        if record.outcome is Outcome.PARTIAL:
            assert item.outcome is Outcome.PARTIAL
        self.tally.lookups += 1
        self.tally.reasons[f"{record.reason} / {item.reason}"] += 1
        shape = "usable = 0 < logical" if not record.usable else "0 < usable < logical"
        self.tally.shapes[shape if record.usable < record.logical else "usable = logical"] += 1

    def _gates(self, session: Session, decisions: tuple[Decision, ...], records: Mapping[str, ReuseRecord]) -> None:
        snapshot = replace(session.snapshot(free_list=True, lookups=BATCH, deadline_s=120.0), decisions=decisions)
        results = {result.gate: result for result in run_gates(snapshot)}
        for gate in (GateName.BLOCK, GateName.CONTRACT, GateName.ALIGNMENT, GateName.REDLINES):
            assert not [finding for finding in results[gate].findings if finding.code != SHORT_PROMPTS]
            assert results[gate].checked > 0
        found = {finding.code for finding in results[GateName.INTERSECTION].findings} - {STRANDED}
        assert found <= LOSSES
        whole = all(record.usable == record.logical // 16 * 16 for record in records.values())
        assert not (found and whole), "a loss that the engine did not have"
        assert results[GateName.INTERSECTION].looked["KV305"] >= BATCH


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[tuple[World, Session]]:
    """One model's world, followed."""
    name = str(request.param)
    world = World(MODELS[name], list(MODELS).index(name))
    with short_folder() as runtime:
        environ = {"KVCTL_RUNTIME_DIR": str(runtime)}
        # One step here is another content of all pools and twenty look-ups: more than a step of any engine.
        limits = Limits(step_budget_ns=10**10)
        probe = Probe(ReferenceAdapter(world.engine), turn=world.lock, limits=limits, environ=environ)
        assert probe.start()
        with open_own(runtime) as session:
            session.follow(Level.REFERENCES)
            yield world, session
        probe.stop()
        assert probe.guard.errors == 0


@pytest.mark.parametrize("world", list(MODELS), indirect=True)
def test_decisions_and_gates_agree_with_the_engine(world: tuple[World, Session]) -> None:
    """Usable, logical, each group's hit and the outcome are the engine's and a brute force's; no gate disagrees."""
    own, session = world
    for _ in range(LOOKUPS // len(MODELS) // BATCH):
        own.state(session)
    tally = own.tally
    print(f"{tally.lookups} look-ups, {tally.states} states with all gates, {dict(tally.shapes)}")
    print(f"reasons, engine / agent: {dict(tally.reasons.most_common())}")
    assert tally.lookups >= LOOKUPS // len(MODELS)
    if len(own.geometry.groups) > 1:
        assert min(tally.shapes[name] for name in ("usable = 0 < logical", "0 < usable < logical")) > 0
