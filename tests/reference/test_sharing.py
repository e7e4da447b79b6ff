"""The demo's engine, one reader that follows it, and others that only look: all show the same decisions."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.model.decision import Decision, Outcome, Reason
from agent.model.groups import Geometry
from agent.session import Session, open_target
from inspector.views.decisions import item_of
from kvctl.demo_engine import DemoEngine
from tests.support import engine_env
from tests.support.server import Host
from tests.support.waiting import wait_for


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoEngine]:
    """A reference engine under mixed traffic, which loses its memory now and then and fetches it from disk."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(folder))
    engine = DemoEngine(rate=20.0, seed=3, restart_s=2.0)
    try:
        engine.start(nullcontext)
        yield engine
    finally:
        engine.close()


def follow(session: Session, *, prefetched: int, lost: int) -> list[Decision]:
    """Follow until so many decisions waited for another tier, and so many lost what a group did not keep."""
    found: list[Decision] = []

    def enough() -> bool:
        found.extend(session.poll())
        waited = sum(item.outcome is Outcome.PREFETCHING and item.logical is not None for item in found)
        return waited >= prefetched and sum(item.limiting_group is not None for item in found) >= lost

    wait_for(enough, "decisions of all kinds", deadline_s=120)
    return found


def told(decisions: list[Decision]) -> dict[int, Decision]:
    """The explained ones as others see them: all but the keys, and that it was somebody else who saw the table."""
    return {item.id: replace(item, chain=None, shared=True) for item in decisions if item.logical is not None}


def shown(output: str) -> dict[int, dict[str, Any]]:
    """What a command listed, by number."""
    return {item["id"]: item for item in json.loads(output)["decisions"]}


def listed(geometry: Geometry, decisions: dict[int, Decision]) -> dict[int, dict[str, Any]]:
    """How a command lists these decisions."""
    return {number: json.loads(json.dumps(item_of(geometry, item))) for number, item in decisions.items()}


def test_every_reader_sees_the_same_decision(engine: DemoEngine, tmp_path: Path) -> None:
    """To the field, in a session, in one-shot commands, in a file, and by whoever joins later; after who followed."""
    with open_target(engine.pid) as follower:
        follower.follow()
        seen = told(follow(follower, prefetched=3, lost=5))
        geometry = follower.geometry
    with open_target(engine.pid) as session:
        assert {item.id: item for item in session.decisions() if item.id in seen} == seen
        session.follow()
        session.poll()
        late = session.snapshot().decisions or ()
        assert {item.id: item for item in late if item.id in seen} == seen
    host, expected = Host(runtime=Path(os.environ["KVCTL_RUNTIME_DIR"])), listed(geometry, seen)
    found = shown(host.kvctl("decisions", "-o", "json").stdout)
    assert {number: found[number] for number in expected} == expected
    reasons = [number for number, item in seen.items() if item.reason is Reason.NOT_READY]
    filtered = shown(host.kvctl("decisions", "--where", "reason=not_ready", "-o", "json").stdout)
    assert [number for number in filtered if number in seen] == reasons
    number = reasons[0]
    assert json.loads(host.kvctl("explain", str(number), "-o", "json").stdout)["decision"] == expected[number]
    file = tmp_path / "saved.kvsnap"
    assert host.kvctl("snapshot", "save", str(file), "--reveal").code == 0
    saved = shown(host.kvctl("decisions", "--snapshot", str(file), "-o", "json").stdout)
    assert {number: saved[number] for number in expected} == expected


def test_explanations_outlive_a_reader_that_is_killed(engine: DemoEngine) -> None:
    """What a reader said until it was killed stays; two readers that explain the same are one."""
    runtime = Path(os.environ["KVCTL_RUNTIME_DIR"])
    command = [*engine_env.kvctl_command(), "decisions", "-f", "-o", "jsonl"]
    first, second = (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=engine_env.ROOT) for _ in range(2)
    )
    try:
        with open_target(engine.pid) as session:

            def known() -> tuple[Decision, ...]:
                return tuple(item for item in session.decisions() if item.shared)

            wait_for(lambda: len(known()) > 10, "explanations of others")
            for reader in (first, second):
                reader.send_signal(signal.SIGKILL)
                reader.wait()
            kept = known()
            state = session.call("capabilities")["explained"]
            assert (state["kept"], state["refused"]) == (len(kept), 0)
            assert len({item.id for item in kept}) == len(kept)
            found = shown(Host(runtime=runtime).kvctl("decisions", "-o", "json").stdout)
            assert {item.id: found[item.id] for item in kept} == listed(
                session.geometry, {item.id: item for item in kept}
            )
    finally:
        for reader in (first, second):
            reader.kill()
            reader.wait()
            assert reader.stdout is not None
            reader.stdout.close()
