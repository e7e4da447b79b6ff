"""Cases 10 and 24: weights are overwritten in the worker and the cache is kept; the stale pages are found and taken.

One server with real weights, so that answers under old and new weights differ.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.columns import cached
from agent.model.snapshot import Level
from agent.session import Session
from tests.support import other_weights
from tests.support.prompts import prompt
from tests.support.server import Server, serve
from tests.support.validating import validate
from tests.support.waiting import wait_for

BLOCK = 32
ARGUMENTS = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", "1024", "--max-model-len", "2048")
TOKENS = 300
WHOLE = (TOKENS - 1) // BLOCK * BLOCK


@contextmanager
def changeable(model: Path, **environment: str) -> Iterator[Server]:
    """Run a server with weights that somebody can overwrite."""
    with serve(
        model,
        *ARGUMENTS,
        weights=True,
        environment={"VLLM_SERVER_DEV_MODE": "1", **environment},
        plugins={"kvctl_test_weights": (Path(other_weights.__file__), "install")},
    ) as running:
        yield running


@pytest.fixture
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """A Gemma-3-like server that reports."""
    with changeable(model("gemma3", 1), KVCTL_ALLOW_CHANGES="1") as running:
        yield running


def overwrite(server: Server, factor: str) -> None:
    """Pause without clearing the cache, overwrite weights in the worker, resume."""
    server.http.request("/pause?clear_cache=false", {}, method="POST")
    body = {"method": other_weights.METHOD, "kwargs": {"factor": factor}}
    answer = json.loads(server.http.request("/collective_rpc", body, method="POST"))
    assert answer["results"][0], "the worker was meant to change something"
    server.http.request("/resume", {}, method="POST")


def stale(server: Server, *, code: int = 1) -> dict[str, Any] | None:
    """Run gate 2 and return its KV201, if any."""
    found = server.kvctl("validate", "--gate", "2", "-o", "json")
    assert found.code == code, found.stdout + found.stderr
    listed = [item for item in found.json["findings"] if item["code"] == "KV201"]
    return listed[0] if listed else None


def test_overwritten_weights_are_found_and_their_pages_taken(server: Server) -> None:
    """KV201 counts the pages from before, `invalidate stale` takes exactly these, and the next answer is right."""
    ids, later = prompt("before", TOKENS), prompt("after", TOKENS)
    old = server.http.complete(ids, tokens=16)
    assert server.http.complete(ids, tokens=16).cached_tokens == WHOLE
    assert stale(server, code=0) is None

    overwrite(server, "3")
    wrong = server.http.complete(ids, tokens=16)
    assert wrong.cached_tokens == WHOLE, "vLLM keeps its cache over a change of weights"
    finding = stale(server)
    assert finding is not None
    plan = server.kvctl("invalidate", "stale", "-o", "json").json
    assert finding["values"]["count"] == len(plan["pages"]) > WHOLE // BLOCK
    server.http.complete(later, tokens=16)
    taken = server.kvctl("invalidate", "stale", "--yes", "-o", "json")
    assert taken.code == 0, taken.stderr
    assert taken.json["pages"] == plan["pages"]

    assert server.http.complete(later, tokens=16).cached_tokens == WHOLE, "pages from after the change stay"
    right = server.http.complete(ids, tokens=16)
    assert right.cached_tokens == 0
    fresh = server.http.complete(ids, tokens=16, prompt_logprobs=0)  # computed without the cache
    assert right.token_ids == fresh.token_ids
    assert right.token_ids != old.token_ids, "the new weights were meant to make a difference"
    assert stale(server, code=0) is None

    # Case 10: the engine was told of a new version.
    server.http.request("/update_weight_version", {"new_version": "v2"}, method="POST")
    told = stale(server)
    assert told is not None
    assert "update" in told["sentence"]
    shown = server.kvctl("fingerprint", "show", "-o", "json").json
    assert shown["weights"]["fields"]["engine_version"] == "v2"
    assert shown["weight_changes"][-1]["cause"] == "update"


def causes(session: Session) -> tuple[str, ...]:
    """Return the causes of all changes that were seen; no gate may find anything."""
    snapshot, results = validate(session)
    assert [finding.sentence for result in results for finding in result.findings] == []
    assert snapshot.evidence is not None
    assert snapshot.evidence.weights is not None
    return snapshot.evidence.weights.causes


def gone(session: Session) -> bool:
    """Return whether nothing is cached any more."""
    session.poll()
    pages = session.snapshot(tables=False).pages
    assert pages is not None
    return not cached(pages).any()


def test_pages_of_older_weights_go_by_themselves(model: Callable[..., Path]) -> None:
    """With ``invalidate`` the next answer after a change is right; a pause is no change, a sleep raises the epoch."""
    ids = prompt("before", TOKENS)
    with changeable(model("gemma3", 1), KVCTL_ON_WEIGHTS_CHANGE="invalidate") as server, server.session() as session:
        http = server.http
        session.follow(Level.REFERENCES, deadline_s=60.0)
        old = http.complete(ids, tokens=16)
        http.request("/pause?clear_cache=false", {}, method="POST")
        http.request("/resume", {}, method="POST")
        assert http.complete(ids, tokens=16).cached_tokens == WHOLE
        assert causes(session) == ()

        overwrite(server, "3")
        wait_for(lambda: gone(session), "the pages of the older weights to go")
        right = http.complete(ids, tokens=16)
        fresh = http.complete(ids, tokens=16, prompt_logprobs=0)  # computed without the cache
        assert (right.cached_tokens, right.token_ids) == (0, fresh.token_ids)
        assert right.token_ids != old.token_ids
        assert causes(session) == ("digest",)

        http.request("/sleep?level=1", {}, method="POST")
        http.request("/wake_up", {}, method="POST")
        again = http.complete(ids, tokens=16)
        assert (again.cached_tokens, again.token_ids) == (0, right.token_ids)
        assert causes(session) == ("digest", "wake")

        http.request("/collective_rpc", {"method": "reload_weights"}, method="POST")
        wait_for(lambda: gone(session), "the pages of the older weights to go")
        assert http.complete(ids, tokens=16).token_ids == old.token_ids
        assert http.complete(ids, tokens=16).cached_tokens == WHOLE
        assert causes(session) == ("digest", "wake", "reload")
