"""``kvctl validate`` on ``vllm serve``: looks at what it names, finds nothing under load, passes its self-test."""

import contextlib
import json
import os
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.collect import MAX_LOOKUPS, collect
from agent.gates.catalogue import CATALOGUE
from agent.gates.runner import run
from agent.gates.selftest import selftest
from agent.model.finding import GateName
from agent.model.snapshot import Consistency, Level
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve

CHECKS = 1_000 if os.environ.get("KVCTL_NIGHTLY") else 150
PAGES = 64
CLIENTS = 8


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A server whose pool is too small for its load."""
    pool = ("--block-size", "32", "--num-gpu-blocks-override", str(PAGES), "--max-model-len", "704")
    with serve(model("llama"), *pool) as running:
        yield running


def _abort(server: Server, ids: list[int]) -> None:
    """Begin a completion and go away after its first line."""
    body = {"model": "m", "prompt": ids, "max_tokens": 64, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 - loopback
        server.http.base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
        answer.readline()


@contextmanager
def load(server: Server) -> Iterator[dict[str, int]]:
    """Keep the server full: shared prefixes, long answers, clients that go away; yields what was done so far."""
    stop, done, lock = threading.Event(), {"completed": 0, "aborted": 0}, threading.Lock()

    def client(number: int) -> None:
        dice = random.Random(number)
        turn = 0
        while not stop.is_set():
            turn += 1
            stem = prompt(f"stem {dice.randrange(12)}", 320)
            ids = sibling(stem, dice.randrange(64, 320), f"{number}/{turn}", dice.randrange(1, 160))
            kind = "aborted" if turn % 4 == 0 else "completed"
            # A request that the server drops on its way out is no failure of the load.
            with contextlib.suppress(OSError):
                if kind == "aborted":
                    _abort(server, ids)
                else:
                    server.http.complete(ids, tokens=64)
                with lock:
                    done[kind] += 1

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


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


def test_clean_under_load(server: Server) -> None:
    """Whatever happens in a full pool, no gate says anything; look-ups of the engine equal the resume rules."""
    compared = full = 0
    with load(server) as done, server.session() as session:
        session.follow(Level.REFERENCES, deadline_s=60.0)
        previous = None
        while full < CHECKS:
            session.poll()
            snapshot = collect(session, session.snapshot(tables=True, free_list=True, lookups=MAX_LOOKUPS))
            assert snapshot.capture.consistency is Consistency.ATOMIC, snapshot.capture.notes
            results = run(snapshot, previous=previous)
            assert [finding.sentence for result in results for finding in result.findings] == []
            assert snapshot.pool is not None
            full += (snapshot.pool.usage_ratio or 0.0) > 0.95
            compared += next(result for result in results if result.gate is GateName.INTERSECTION).looked.get(
                "KV305", 0
            )
            previous = snapshot
        assert done["completed"] > 0
        assert done["aborted"] > 0
    assert compared > CHECKS
    assert server.http.metric("vllm:num_preemptions_total") > 0


def test_self_test_on_a_busy_server(server: Server) -> None:
    """Faults planted into a copy of a live snapshot are found by their own codes."""
    with load(server), server.session() as session:
        session.follow(Level.REFERENCES, deadline_s=60.0)
        results = selftest(session.snapshot(tables=True, free_list=True))
    assert [(result.code, result.also) for result in results if result.broken] == []
    assert sum(result.planted for result in results) > 45


def test_gates_abstain_in_words(server: Server) -> None:
    """Every code of every gate was looked at, or says in words why not."""
    gates = server.kvctl("validate", "-o", "json").json["gates"]
    assert sum(len(gate["looked"]) + len(gate["abstained"]) for gate in gates) == len(CATALOGUE)
    assert all(len(reason) > 10 for gate in gates for reason in gate["abstained"].values())
