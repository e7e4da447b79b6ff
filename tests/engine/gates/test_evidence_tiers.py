"""A live engine with a host tier: what the tier holds, what moves, and copies that are not waited for."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.gates.runner import run
from agent.gates.selftest import selftest
from agent.model.evidence import Evidence
from agent.model.finding import Finding
from agent.model.states import State
from agent.session import Session
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support import host_tier
from tests.support.prompts import prompt, sibling


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine with vLLM's offloading connector and a host tier whose copies take their time."""
    from vllm.config import KVTransferConfig

    fields = host_tier.transfer_config()
    fields["kv_connector_extra_config"] |= {
        "spec_name": "SlowHostTier",
        "spec_module_path": "tests.support.host_tier",
    }
    with engine_in_process(
        model("gemma3", seed=1), pages=128, kv_transfer_config=KVTransferConfig(**fields)
    ) as running:
        yield running


def look(session: Session) -> tuple[Evidence, dict[str, int], dict[str, Finding], dict[str, str]]:
    """Run all gates: evidence, what was looked at, what was found, and what abstains. Losses are no faults."""
    session.poll()
    snapshot = session.snapshot(tables=True, free_list=True)
    assert snapshot.evidence is not None
    results = run(replace(snapshot, decisions=()))
    return (
        snapshot.evidence,
        {code: count for result in results for code, count in result.looked.items()},
        {finding.code: finding for result in results for finding in result.findings},
        {code: why for result in results for code, why in result.abstained.items()},
    )


def side(engine: Engine) -> Any:
    """The scheduler's side of the connector."""
    return engine.core.scheduler.connector.connector_scheduler


def settle(engine: Engine) -> None:
    """Let every copy be acknowledged."""
    host_tier.SlowCopyWorker.hold = False
    for _ in range(50):
        if not side(engine)._jobs:
            return
        engine.step()
    raise AssertionError("copies are still running after 50 steps")


def test_clean_while_copies_run(engine: Engine, session: Session) -> None:
    """Pages that are copied out are listed while the copy runs; entries are no hits until it is acknowledged."""
    ids = prompt("stored", 10 * BLOCK + 5)
    host_tier.SlowCopyWorker.hold = True
    engine.add("stored", ids, tokens=4)
    while "stored" not in engine.results:
        engine.step()
    evidence, looked, found, why = look(session)
    assert found == {}
    assert evidence.transfers
    assert all(not item.into for item in evidence.transfers)
    assert evidence.tiers is not None
    (tier,) = evidence.tiers
    assert tier.states == frozenset({State.SWA, State.COMPRESSED})
    assert tier.entries
    assert not any(entry.registered or entry.acknowledged for entry in tier.entries)
    settle(engine)
    evidence, looked, found, why = look(session)
    assert found == {}
    assert evidence.transfers == ()
    assert evidence.tiers is not None
    assert all(entry.registered and entry.acknowledged for entry in evidence.tiers[0].entries)
    assert looked["KV308"] == len(evidence.tiers[0].entries) > 10
    assert looked["KV205"] == 1
    assert "carry no fingerprint" in why["KV206"]
    assert why["KV115"] == "no transfer is in flight"
    assert evidence.tiers[0].name == "OffloadingConnector"


def test_clean_under_load(engine: Engine, session: Session) -> None:
    """A full pool and a tier: stores, loads and pages given away while they are stored, and nothing is found."""
    dice = Random(2)
    moved = 0
    for turn in range(40):
        host_tier.SlowCopyWorker.hold = turn % 3 == 0
        for number in range(2):
            stem = prompt(f"stem {dice.randrange(6)}", 320)
            ids = sibling(stem, dice.randrange(64, 320), f"{turn}/{number}", dice.randrange(1, 160))
            engine.add(f"load {turn} {number}", ids, tokens=6)
        engine.step(4)
        evidence, _, found, _ = look(session)
        assert found == {}
        moved += len(evidence.transfers or ())
    host_tier.SlowCopyWorker.hold = False
    engine.finish()
    settle(engine)
    assert moved > 100


def test_self_test_beside_a_tier(session: Session) -> None:
    """Faults planted into a copy of what was read are found by their own codes, copies and entries among it."""
    results = selftest(session.snapshot(tables=True, free_list=True))
    assert [(result.code, result.also) for result in results if result.broken] == []
    planted = {result.code for result in results if result.planted}
    assert {"KV113", "KV115", "KV205", "KV207", "KV308", "KV502", "KV503", "KV522"} <= planted


def test_clean_while_a_prefix_comes_back(engine: Engine, session: Session) -> None:
    """Pages that are loaded are listed as written until the load is acknowledged; their request does not run."""
    ids = prompt("comes back", 10 * BLOCK + 5)
    engine.run("back0", ids)
    settle(engine)
    assert engine.core.reset_prefix_cache()
    host_tier.SlowCopyWorker.hold = True
    engine.add("back1", ids)
    engine.step(3)
    evidence, looked, found, _ = look(session)
    assert found == {}
    assert evidence.transfers
    assert all(item.into for item in evidence.transfers)
    assert looked["KV115"] == len(evidence.transfers) > 10
    request = next(item for item in engine.core.scheduler.requests.values() if item.request_id.startswith("back1"))
    before = request.status
    request.status = type(before).RUNNING
    _, _, found, _ = look(session)
    request.status = before
    assert found.keys() == {"KV115"}
    assert found["KV115"].values["direction"] == "into it"
    host_tier.SlowCopyWorker.hold = False
    engine.finish()
    assert engine.results["back1"].num_cached_tokens >= 9 * BLOCK
    assert look(session)[2] == {}


class Forgetful(dict[int, set[int]]):
    """Pages that a connector still reads, of which it remembers none when pages are given away."""

    def keys(self) -> Any:
        """Name no page."""
        return set[int]()


def test_a_page_is_given_away_while_it_is_stored(engine: Engine, session: Session) -> None:
    """The connector forgets which pages it still reads, and others fill them under its copy, and KV115 says so."""
    host_tier.SlowCopyWorker.hold = True
    engine.add("read", prompt("read", 10 * BLOCK + 5), tokens=4)
    while "read" not in engine.results:
        engine.step()
    forgotten = side(engine)._block_id_to_pending_jobs
    side(engine)._block_id_to_pending_jobs = Forgetful(forgotten)
    for number in range(6):
        engine.add(f"fills {number}", prompt(f"fills {number}", 20 * BLOCK), tokens=2)
    for _ in range(200):
        if not any(name.startswith("fills") for name in map(str, engine.core.scheduler.requests)):
            break
        engine.step()
    _, _, found, _ = look(session)
    assert found.keys() == {"KV115"}
    assert found["KV115"].values["direction"] == "out of it"
    side(engine)._block_id_to_pending_jobs = dict(side(engine)._block_id_to_pending_jobs)
    settle(engine)
    assert look(session)[2] == {}


def test_an_entry_is_offered_before_it_is_there(engine: Engine, session: Session) -> None:
    """The index says ready while the copy into the entry runs."""
    settle(engine)
    host_tier.SlowCopyWorker.hold = True
    engine.add("early", prompt("early", 10 * BLOCK + 5), tokens=4)
    while "early" not in engine.results:
        engine.step()
    assert look(session)[2] == {}
    chunks = side(engine).manager._policy.chunks
    key = next(reversed(chunks))
    chunks[key].ref_cnt = 0
    _, _, found, _ = look(session)
    chunks[key].ref_cnt = -1
    assert found.keys() == {"KV308"}
    settle(engine)
    assert look(session)[2] == {}


def test_a_tier_without_one_of_the_states(engine: Engine, session: Session) -> None:
    """The connector does not take the group of full attention: what it holds can never be resumed from."""
    connector = side(engine)
    whole = connector.config
    connector.config = whole._replace(
        kv_group_configs=tuple(one for one in whole.kv_group_configs if one.sliding_window_size_in_chunks is not None)
    )
    _, _, found, _ = look(session)
    connector.config = whole
    assert found.keys() == {"KV205"}
    assert found["KV205"].values["state"] == State.COMPRESSED
    assert look(session)[2] == {}
