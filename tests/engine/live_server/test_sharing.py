"""Beside a reader that follows a real server, commands that only look show what it explained, also after its end."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import older_agent
from tests.support.following import Follower, follow_decisions
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

ARGUMENTS = ("--block-size", "32", "--num-gpu-blocks-override", "420", "--max-model-len", "4096")


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve a model with windows, in which a sibling of a cached prompt loses its window."""
    with serve(model("gemma3"), *ARGUMENTS) as running:
        yield running


def send(server: Server, follower: Follower, name: str) -> list[dict[str, Any]]:
    """Send a cold prompt, the same again, and a sibling whose window was not kept; return the follower's decisions."""
    stem = prompt(name, 1000)
    for ids in (stem, stem, sibling(stem, 600, f"{name}-other", 40)):
        server.http.complete(ids)
    return follower.next(3)


def asked(server: Server, *words: str) -> Any:
    """What a one-shot command says."""
    done = server.kvctl(*words, "-o", "json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def all_explained(server: Server, made: list[dict[str, Any]]) -> bool:
    """Whether a reader that only looks knows them all."""
    with server.session() as session:
        known = {item.id for item in session.decisions() if item.logical is not None}
    return {item["id"] for item in made} <= known


def as_told(made: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The decisions as another reader shows them, by number."""
    extra = {"schema_version", "kind"}
    return {
        item["id"]: {name: value for name, value in item.items() if name not in extra}
        | {"explained_by": "another_reader"}
        for item in made
    }


def check_commands(server: Server, made: list[dict[str, Any]]) -> None:
    """Hold every command that only looks against what the follower said."""
    expected = as_told(made)
    listed = {item["id"]: item for item in asked(server, "decisions")["decisions"]}
    assert {number: listed[number] for number in expected} == expected
    lost = made[-1]["id"]
    picked = asked(server, "decisions", "--where", "reason=not_retained")["decisions"]
    assert lost in {item["id"] for item in picked}
    assert asked(server, "explain", str(lost))["decision"] == expected[lost]
    told = server.kvctl("explain", str(lost)).stdout
    assert "by another reader" in told
    assert "576 -> 0" in told
    reuse = asked(server, "inspect")["reuse"]
    known = [item for item in listed.values() if item["logical_tokens"] is not None]
    assert reuse["explained"] == len(known)
    assert reuse["logical_tokens"] == sum(item["logical_tokens"] for item in known)
    assert reuse["usable_tokens"] == sum(item["usable_tokens"] for item in known)
    assert reuse["main_reason"] == "not_retained"
    assert asked(server, "inspect", "-w", "-n", "1")["reuse"] == reuse
    (row,) = asked(server, "ps")["engines"]
    assert row["usable_of_logical_ratio"] == reuse["usable_of_logical_ratio"]


def test_a_reader_that_follows_explains_for_all(server: Server, tmp_path: Path) -> None:
    """To the field, while it follows and after it was killed; decisions of before are unknown, and a file has them."""
    server.http.complete(prompt("before", 200))
    with follow_decisions(server, tmp_path) as follower:
        made = send(server, follower, "shared")
        assert [item["reason"] for item in made] == ["cold", None, "not_retained"]
        assert {item["explained_by"] for item in made} == {"this_reader"}
        wait_for(lambda: all_explained(server, made), "the follower to post them")
        check_commands(server, made)
        follower.process.kill()
        follower.process.wait()
        check_commands(server, made)
    first = asked(server, "decisions")["decisions"][0]
    assert (first["logical_tokens"], first["explained_by"], first["outcome"]) == (None, None, "unknown")
    file = tmp_path / "saved.kvsnap"
    assert server.kvctl("snapshot", "save", str(file), "--reveal").code == 0
    saved = {item["id"]: item for item in asked(server, "decisions", "--snapshot", str(file))["decisions"]}
    expected = as_told(made)
    assert {number: saved[number] for number in expected} == expected
    with server.session() as late:
        late.follow()
        late.poll()
        shown = {item.id: item for item in late.snapshot().decisions or ()}
    assert all(shown[number].shared for number in expected)


def test_two_readers_count_once(server: Server, tmp_path: Path) -> None:
    """However many readers explain a decision, it is kept once, and none of their posts is refused."""
    with follow_decisions(server, tmp_path) as follower, server.session() as other:
        other.follow()
        before = other.call("capabilities")["explained"]["kept"]
        made = send(server, follower, "twice")
        wait_for(lambda: other.poll() or all_explained(server, made), "the decisions")
        wait_for(lambda: all_explained(server, made), "the follower to post them")
        other.poll()
        state = other.call("capabilities")["explained"]
        assert (state["kept"] - before, state["refused"]) == (len(made), 0)


def test_commands_work_beside_an_older_agent(model: Callable[..., Path], tmp_path: Path) -> None:
    """An agent from before explains nothing to those who only look; who follows sees everything as always."""
    plugins = {"kvctl_test_older": (Path(older_agent.__file__), "install")}
    with serve(model("gemma3"), *ARGUMENTS, plugins=plugins) as server:
        with follow_decisions(server, tmp_path) as follower:
            made = send(server, follower, "older")
            assert [item["logical_tokens"] for item in made] == [0, 992, 576]
        with server.session() as session:
            assert session.not_shared is not None
        assert {item["logical_tokens"] for item in asked(server, "decisions")["decisions"]} == {None}
        assert asked(server, "inspect")["reuse"]["explained"] == 0
        assert asked(server, "ps")["engines"][0]["usable_of_logical_ratio"] is None
        assert "unknown" in server.kvctl("explain", str(made[-1]["id"])).stdout
        latest = asked(server, "decisions", "--limit", "1")["decisions"]
        assert [item["id"] for item in latest] == [made[-1]["id"]]
