"""Beside a reader that follows a real server a command that looks once takes over its table, with all parents."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import readers
from agent.columns import cached, parents
from agent.discovery import Endpoint
from agent.model.snapshot import Snapshot
from tests.support.following import Follower, follow_decisions
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "420", "--max-model-len", "4096")


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve a model with windows."""
    with serve(model("gemma3"), *ARGUMENTS) as running:
        yield running


def endpoint(server: Server) -> Endpoint:
    """Where its engine core listens."""
    with server.session() as session:
        return session.endpoint


def sent(server: Server) -> int:
    """Pages that the engine sent for bootstraps and audits; none while it idles and nobody waits."""
    with server.session() as session:
        return int(session.call("capabilities")["feed"]["chunk_pages"])


def asked(server: Server, *words: str) -> Any:
    """What a one-shot command says."""
    done = server.kvctl(*words, "-o", "json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def branched(server: Server, name: str) -> None:
    """Cache a prompt, and two that leave it half way: their chains go on from pages of another call."""
    stem = prompt(name, 1000)
    for ids in (stem, sibling(stem, 600, f"{name}-left", 200), sibling(stem, 600, f"{name}-right", 300)):
        server.http.complete(ids)


def looked(server: Server) -> Snapshot:
    """The table, as one who joins now has it."""
    with server.session() as session:
        session.follow()
        session.poll()
        return session.snapshot(tables=False)


def known_parents(snapshot: Snapshot) -> int:
    """Cached pages whose parent is known."""
    assert snapshot.pages is not None
    found = parents(snapshot.pages)
    assert found is not None
    return int(((found != 0) & cached(snapshot.pages)).sum())


def serves(follower: Follower, server: Server) -> bool:
    """Whether a follower hands its table over."""
    found = readers.of_engine(endpoint(server))
    return [item.endpoint.pid for item in found] == [follower.process.pid]


def test_a_command_takes_over_the_table_of_a_follower(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent for it, all that was cached meanwhile has its parent, and the rest is what the engine says."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(server.runtime))
    server.http.complete(prompt("before", 500))
    with follow_decisions(server, tmp_path) as follower:
        branched(server, "tree")
        follower.next(3)
        wait_for(lambda: serves(follower, server), "the follower to serve its table")
        before = sent(server)
        shown = asked(server, "inspect", "prefixes")
        there = looked(server)
        assert sent(server) == before
        (note,) = shown["capture"]["notes"]
        assert note.startswith(f"the page table was taken over from reader {follower.process.pid}, at epoch ")
        assert shown["capture"]["consistency"] == "atomic"
        assert str(follower.process.pid) in server.kvctl("doctor").stdout
        whole = asked(server, "inspect", "pages")
        (note,) = whole["capture"]["notes"]
        assert note.startswith(f"the parents of cached pages were taken over from reader {follower.process.pid}")
        assert sent(server) - before >= 420
        for judging in (("validate",), ("invalidate", "all")):
            done = server.kvctl(*judging)
            assert "taken over" not in done.stdout + done.stderr
        follower.process.kill()
        follower.process.wait()
        alone = asked(server, "inspect", "prefixes")
        late = looked(server)
    assert alone["capture"]["notes"] == []
    assert known_parents(late) < known_parents(there)
    usable = [{row["key"]: row["usable_tokens"] for row in one["prefixes"]} for one in (shown, alone)]
    assert None not in usable[0].values()
    assert None in usable[1].values()
    assert there.pages is not None
    assert late.pages is not None
    for column in ("key", "group", "tokens", "stamp", "extra_keys", "never_computed", "tainted"):
        assert getattr(there.pages, column) == getattr(late.pages, column), column
    assert len(readers.endpoints()) == 1
    assert "removed" in server.kvctl("doctor", "--fix").stdout
    assert readers.endpoints() == []


def test_one_that_is_watched_serves_between_its_readings(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads again and again hands over its table while it waits, also references where it has them."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(server.runtime))
    words = ("inspect", "pages", "-w", "-i", "600")
    with follow_decisions(server, tmp_path, words=words) as watching:
        branched(server, "watched")
        wait_for(lambda: serves(watching, server), "the watching command to serve its table")
        before = sent(server)
        (note,) = asked(server, "inspect", "pages")["capture"]["notes"]
        assert note.startswith(f"the page table was taken over from reader {watching.process.pid}")
        assert sent(server) == before
