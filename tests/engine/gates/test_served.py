"""``kvctl validate`` on ``vllm serve``: clean again and again under load, abstains in words, passes its self-test."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from agent.gates.blind import VLLM
from agent.gates.catalogue import CATALOGUE
from agent.gates.selftest import selftest
from agent.model.finding import GateName
from agent.model.snapshot import Consistency, Level, Snapshot
from agent.session import Session
from tests.support.code_table import Seen
from tests.support.prompts import prompt
from tests.support.server import Server, serve
from tests.support.server_load import ARGUMENTS, ENVIRONMENT, Conditions, fullness, load
from tests.support.validating import validate
from tests.support.waiting import wait_for

CHECKS = 1_000
"""Checks of a pool that is more than 95 % full."""
MOST = 8 * CHECKS
"""Checks after which a load that still has not done what it must will not."""
COMMANDS = 5
"""Checks of them that are a ``kvctl validate`` of its own, spread over the run."""
FULL = 0.95
EVICTIONS_PER_SECOND = 50
PREEMPTIONS = 100
ABORTS = 100


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A server whose pool is too small for its load."""
    with serve(model("llama"), *ARGUMENTS, environment=ENVIRONMENT) as running:
        yield running


def test_validate_on_an_idle_server(server: Server) -> None:
    """One command: block, contract tensors and alignment are looked at on the worker; nothing is found."""
    server.http.complete(prompt("one", 300))
    ran = server.kvctl("validate", "-o", "json")
    assert (ran.code, ran.json["findings"]) == (0, []), ran.stdout
    gates = {gate["gate"]: gate for gate in ran.json["gates"]}
    assert gates["block"]["verdict"] == "pass"
    assert {"KV203", "KV204", "KV210"} <= gates["contract"]["looked"].keys()
    assert "KV404" in gates["alignment"]["looked"]
    assert gates["block"]["looked"]["KV118"] > 0


def check(session: Session, previous: Snapshot | None) -> tuple[Snapshot, int]:
    """Do what ``kvctl validate`` does; return the snapshot and how many look-ups of the engine were compared."""
    snapshot, results = validate(session, previous)
    assert snapshot.capture.consistency is Consistency.ATOMIC, snapshot.capture.notes
    assert [finding.sentence for result in results for finding in result.findings] == []
    intersection = next(result for result in results if result.gate is GateName.INTERSECTION)
    return snapshot, intersection.looked.get("KV305", 0)


def wait_for_full(session: Session) -> None:
    """Wait until the load has filled the pool."""
    wait_for(lambda: fullness(check(session, None)[0]) > FULL, "the load to fill the pool")


def enough(done: Mapping[str, float]) -> bool:
    """Whether a load has evicted, preempted and aborted as much as it must."""
    least = {"evictions_per_second": EVICTIONS_PER_SECOND, "preemptions": PREEMPTIONS, "aborts": ABORTS}
    return all(done[name] > number for name, number in least.items())


def test_clean_under_load(server: Server, record_testsuite_property: Callable[[str, object], None]) -> None:
    """Nothing is found in hundreds of checks of a full pool with evictions, preemptions and aborts all the time."""
    with load(server), server.session() as session:
        session.follow(Level.REFERENCES, deadline_s=60.0)
        wait_for_full(session)
        conditions = Conditions(server)
        previous = None
        checks = full = compared = commands = 0
        fills = []
        while full < CHECKS or not enough(conditions.so_far()):
            previous, looked = check(session, previous)
            fills.append(fullness(previous))
            checks += 1
            full += fills[-1] > FULL
            compared += looked
            if commands < COMMANDS and full * COMMANDS >= (commands + 1) * CHECKS:
                ran = server.kvctl("validate", "-o", "json")
                assert (ran.code, ran.json["findings"]) == (0, []), ran.stdout + ran.stderr
                commands += 1
            assert checks < MOST, f"the pool was full in {full} of {checks} checks: {conditions.so_far()}"
        found = conditions.so_far()
    found |= {"checks": checks, "full": full, "least_fill": min(fills), "compared": compared, "commands": commands}
    record_testsuite_property("clean under load", found)
    assert full > FULL * checks, found
    assert commands == COMMANDS
    assert compared > CHECKS, found


def test_self_test_on_a_busy_server(server: Server) -> None:
    """Faults planted into a copy of a live snapshot are found by their own codes."""
    with load(server), server.session() as session:
        session.follow(Level.REFERENCES, deadline_s=60.0)
        wait_for_full(session)
        results = selftest(session.snapshot(tables=True, free_list=True))
    assert [(result.code, result.also) for result in results if result.broken] == []
    assert sum(result.planted for result in results) > 45


def test_gates_abstain_in_words(server: Server) -> None:
    """Every code of every gate was looked at, or says why not in the words of the table of codes."""
    gates = server.kvctl("validate", "-o", "json").json["gates"]
    assert sum(len(gate["looked"]) + len(gate["abstained"]) for gate in gates) == len(CATALOGUE)
    assert not {code for gate in gates for code in gate["looked"]} & VLLM.keys()
    seen = Seen(why={code: {reason} for gate in gates for code, reason in gate["abstained"].items()})
    assert seen.unlisted(VLLM) == {}
