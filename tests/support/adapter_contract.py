"""The contract of an adapter, as one suite of tests that every engine runs: subclass it and give it a host.

Invariant: nothing here knows an engine; what an engine says of itself comes through :class:`Host`, and the numbers of
the tests hold for every prefix cache with a unit of 16 tokens. Used by ``tests/engine/contract`` and
``tests/reference``.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

from agent.gates.presence import KeyPresence
from agent.gates.runner import run as run_gates
from agent.gates.view import View
from agent.model.decision import Outcome, Phase, Reason
from agent.model.finding import GateName
from agent.model.snapshot import Consistency, Level, Snapshot
from agent.model.states import KEY_BYTES
from agent.probe.lifecycle import Probe
from agent.resume import evaluate
from agent.session import Session
from tests.support.prompts import prompt, sibling

TRUE_HERE = {"KV207", "KV301", "KV302", "KV310"}
"""What a healthy engine may be told: losses of reuse, and that its version does not separate an adapter from a salt."""

UNIT = 16
"""Tokens in one unit of reuse of every host."""


class Host(Protocol):
    """An engine with a probe that is not started yet, stepped by hand."""

    probe: Probe

    def session(self) -> Session:
        """Open a session with it."""

    def add(self, name: str, tokens: Sequence[int], outputs: int = 4) -> None:
        """Add a request."""

    def step(self) -> None:
        """Run one step."""

    def busy(self) -> bool:
        """Whether a request is left."""

    def run(self, name: str, tokens: Sequence[int], outputs: int = 4) -> int:
        """Run a request to its end; return the tokens that the engine says it reused for it."""

    def hooked(self) -> Mapping[str, Any]:
        """Return everything that the probe may hook: objects, and their classes where it hooks those."""

    def registered(self) -> Mapping[int, tuple[int, bytes]]:
        """Return group and key (16 bytes) of every page that carries one, as the engine has it."""

    def references(self) -> Mapping[int, int]:
        """Return the engine's own count of every page, the null page left out."""

    def free(self) -> set[int]:
        """Return the pages that nobody holds."""


Maker = Callable[[], AbstractContextManager[Host]]
"""Makes a host in a runtime folder of its own."""


def functions(owner: Any) -> dict[str, Any]:
    """Return the functions of an object's or a class's own dictionary."""
    return {name: value for name, value in vars(owner).items() if callable(value)}


def keys_of(session: Session, name: str, tokens: int) -> list[list[Any]]:
    """Return (group, key) of every page that a prefix of a running request has in any group."""
    joined = bytes.fromhex(session.call("chain", request=name)["keys"])
    chain = [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]
    geometry, found = session.geometry, list[list[Any]]()
    for group in geometry.groups:
        ends = range(group.block_size, tokens + 1, group.block_size)
        found += [[int(group.id), chain[end // geometry.hash_unit - 1].hex()] for end in ends]
    return found


def drain(host: Host) -> None:
    """Run steps until no request is left."""
    while host.busy():
        host.step()


def table_of(snapshot: Snapshot) -> dict[int, tuple[int, bytes]]:
    """Return group and key of every page that carries one, as the feed has it."""
    pages = snapshot.pages
    assert pages is not None
    return {
        page: (pages.group[page], bytes(pages.key[page * KEY_BYTES : (page + 1) * KEY_BYTES]))
        for page, tokens in enumerate(View(snapshot).tokens.tolist())
        if tokens
    }


class AdapterContract:
    """What holds for every adapter. A subclass provides the fixture ``make``."""

    @pytest.fixture
    def make(self) -> Maker:
        """Return a maker of hosts."""
        raise NotImplementedError

    @pytest.fixture
    def host(self, make: Maker) -> Iterator[Host]:
        """An engine with its probe in it."""
        with make() as host:
            assert host.probe.start()
            yield host
            host.probe.stop()
            assert host.probe.guard.errors == 0

    def test_decisions_are_the_engines_own_numbers(self, host: Host) -> None:
        """A look-up becomes a decision when its request is admitted, once, with the tokens that the engine reused."""
        stem = prompt("contract", 300)
        prompts = [stem, stem, sibling(stem, 200, "other", 90), prompt("short", 9)]
        with host.session() as session:
            session.follow()
            hits = [host.run(f"r{number}", ids) for number, ids in enumerate(prompts)]
            assert hits == [0, 288, 192, 0]
            decisions = session.poll()
        assert [item.request for item in decisions] == [f"r{number}" for number in range(len(prompts))]
        assert [item.engine_usable for item in decisions] == hits
        assert [item.usable for item in decisions] == hits
        assert [item.lookup_tokens for item in decisions] == [len(ids) for ids in prompts]
        assert {(item.phase, item.lookups, item.external) for item in decisions} == {(Phase.FIRST, 1, 0)}
        outcomes = [Outcome.RECOMPUTE, Outcome.REUSE, Outcome.REUSE, Outcome.RECOMPUTE]
        assert [item.outcome for item in decisions] == outcomes

    def test_decisions_are_explained(self, host: Host) -> None:
        """A new prefix is cold, a repeated one loses nothing, a short one is below the unit; all losses add up."""
        stem = prompt("explained", 200)
        with host.session() as session:
            session.follow()
            for number, ids in enumerate((stem, stem, prompt("short", 9))):
                host.run(f"e{number}", ids)
            cold, warm, short = session.poll()
        assert (cold.reason, warm.reason, short.reason) == (Reason.COLD, None, Reason.BELOW_GRANULARITY)
        assert (warm.usable, warm.limiting_group) == (192, None)
        for item in (cold, warm, short):
            lost = sum(tokens for _, _, tokens in item.lost)
            assert lost == item.lookup_tokens - item.engine_usable

    def test_a_waiting_request_is_looked_up_often_and_decided_once(self, host: Host) -> None:
        """Requests that wait for pages, and those that are preempted, give one decision for each admission."""
        names = [f"w{number}" for number in range(6)]
        for number, name in enumerate(names):
            host.add(name, prompt(name, 380 - number), 120)
        drain(host)
        with host.session() as session:
            decisions = session.decisions()
            counters = session.call("counters")["counters"]
        assert sorted(item.request for item in decisions if item.phase is Phase.FIRST) == names
        assert any(item.phase is Phase.RESUMED for item in decisions), "the load was meant to preempt"
        assert counters["reuse_lookups"] == sum(item.lookups for item in decisions)

    @pytest.mark.parametrize("level", list(Level))
    def test_the_table_outside_is_the_table_inside(self, host: Host, level: Level) -> None:
        """Joined before, between and after requests, a reader has every key and count that the engine has."""
        host.run("early", prompt("early", 200))
        with host.session() as session:
            session.follow(level)
            host.run("late", sibling(prompt("early", 200), 100, "late", 80))
            for name in ("one", "two"):
                host.add(name, prompt(name, 150), 40)
            for _ in range(6):
                host.step()
            session.call("audit")
            snapshot = session.snapshot(free_list=True)
            assert snapshot.capture.consistency is Consistency.ATOMIC
            assert table_of(snapshot) == host.registered()
            if level is Level.REFERENCES:
                assert snapshot.pages is not None
                counts = View(snapshot).references
                assert counts is not None
                assert {page: int(counts[page]) for page in host.references()} == host.references()
            drain(host)

    def test_requests_pool_holders_and_free_list(self, host: Host) -> None:
        """Every reference is a request's or a holder's, every other page is in the free list, the pool counts them."""
        host.run("before", prompt("before", 100))
        for name in ("one", "two"):
            host.add(name, prompt(name, 150), 40)
        for _ in range(6):
            host.step()
        with host.session() as session:
            snapshot = session.snapshot(free_list=True)
        assert snapshot.requests is not None
        assert snapshot.pool is not None
        assert snapshot.holders is not None
        assert snapshot.free_list is not None
        assert {item.id for item in snapshot.requests} == {"one", "two"}
        for item in snapshot.requests:
            assert item.prompt_tokens == 150
            assert item.computed_tokens >= 150
        null = snapshot.pool.null_page
        held = Counter(
            page for item in snapshot.requests for table in item.tables or () for page in table if page != null
        )
        held.update(snapshot.holders)
        assert {page: count for page, count in host.references().items() if count} == dict(held)
        assert set(snapshot.free_list) == host.free()
        assert len(snapshot.free_list) == snapshot.pool.free == len(host.free())
        assert snapshot.pool.keys == len(set(host.registered().values()))
        drain(host)

    def test_the_engines_finder_agrees(self, host: Host) -> None:
        """Whatever is cached, the rules give what the engine's own finder gives, at every limit, without effect."""
        stem = prompt("finder", 300)
        host.run("whole", stem)
        host.run("branch", sibling(stem, 130, "branch", 60))
        host.add("asked", [*stem, *prompt("tail", 20)], 30)
        host.step()
        with host.session() as session:
            snapshot = session.snapshot()
            hashes = host.probe.adapter.chain("asked")
            chain = [bytes(key[:KEY_BYTES]) for key in hashes]
            presence = KeyPresence(View(snapshot), chain)
            for limit in range(0, 310, 7):
                hit = evaluate(snapshot.geometry, chain, presence, limit=limit)
                assert hit.usable == host.probe.adapter.engine_hit(hashes, limit)
            after = session.snapshot()
        assert table_of(after) == table_of(snapshot)
        drain(host)

    def test_a_healthy_engine_passes_the_gates(self, host: Host) -> None:
        """No gate finds an error, and the gates of blocks and of what decisions used look at something."""
        stem = prompt("healthy", 300)
        with host.session() as session:
            session.follow(Level.REFERENCES)
            for number in range(4):
                host.run(f"h{number}", sibling(stem, 60 * number, f"h{number}", 50))
            host.add("running", stem, 40)
            for _ in range(6):
                host.step()
            session.poll()
            results = {item.gate: item for item in run_gates(session.snapshot(free_list=True, lookups=8))}
            drain(host)
        for result in results.values():
            dangerous = [finding for finding in result.findings if finding.code not in TRUE_HERE]
            assert not dangerous
        assert results[GateName.BLOCK].looked["KV101"] > 0
        assert results[GateName.BLOCK].looked["KV103"] > 0
        assert results[GateName.INTERSECTION].looked["KV305"] > 0

    def test_a_prefix_is_taken_out_by_key(self, host: Host) -> None:
        """The planned pages lose their keys, the next request computes the prefix anew, another one still hits."""
        mine, other = prompt("mine", 200), prompt("other", 200)
        host.run("mine0", mine)
        host.run("other0", other)
        host.add("mine1", mine)
        host.step()
        with host.session() as session:
            keys = keys_of(session, "mine1", 192)
            drain(host)
            plan = session.call("invalidate_plan", keys=keys)
            pages = {page for entry in plan["entries"] for page in entry["pages"]}
            assert len(pages) >= 192 // UNIT
            done = session.call("invalidate_apply", plan={**plan, "selector": "hash"})
            counters = session.call("counters")["counters"]
        assert done["removed"] == counters['invalidated_pages{selector="hash"}'] == len(pages)
        assert sum(value for name, value in counters.items() if name.startswith("invalidated_pages{")) == len(pages)
        assert not pages & set(host.registered())
        assert host.run("mine2", mine) == 0
        assert host.run("other1", other) == 192
        assert host.run("mine3", mine) == 192

    def test_following_and_stopping_leave_no_trace(self, make: Maker) -> None:
        """After `stop` every object and class that was hooked is as it was, and the engine works."""
        with make() as host:
            before = {name: functions(owner) for name, owner in host.hooked().items()}
            assert host.probe.start()
            session = host.session()
            session.follow(Level.REFERENCES)
            assert {name: functions(owner) for name, owner in host.hooked().items()} != before
            host.run("a", prompt("a", 300))
            session.call("audit")
            assert table_of(session.snapshot(free_list=True)) == host.registered()
            assert session.call("stop") == {"stopped": True}
            session.close()
            assert host.run("b", prompt("a", 300)) == 288
            assert {name: functions(owner) for name, owner in host.hooked().items()} == before
            host.probe.stop()
