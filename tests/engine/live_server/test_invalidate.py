"""`kvctl invalidate` on a real server while requests run: exactly as planned, or not at all, and not brought back."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.model.decision import Decision, Outcome, Reason
from agent.model.snapshot import RequestInfo
from inspector import invalidation
from inspector.selection import select
from inspector.selector import parse
from tests.support.client_http import Completion
from tests.support.messages import explains
from tests.support.models import write_model
from tests.support.prompts import prompt, sibling
from tests.support.server import Result, Server, serve
from tests.support.waiting import wait_for

BLOCK = 32
PAGES = 2048
LONGEST = 40_960
"""Tokens of a request: one that is to run on must not end before slow commands beside it have."""
ARGUMENTS = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(PAGES), "--max-model-len", str(LONGEST))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Gemma-3-like server that may be changed."""
    environment = {"KVCTL_ALLOW_CHANGES": "1", "VLLM_SERVER_DEV_MODE": "1"}
    model = write_model(tmp_path_factory.mktemp("model"), "gemma3", max_position_embeddings=LONGEST)
    with serve(model, *ARGUMENTS, environment=environment) as running:
        yield running


@contextmanager
def traffic(server: Server) -> Iterator[list[Completion]]:
    """Keep requests running meanwhile; what they were answered is in the list."""
    answers: list[Completion] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            answers.append(server.http.complete(prompt("traffic", 90), tokens=30))

    worker = threading.Thread(target=run)
    worker.start()
    try:
        wait_for(lambda: answers, "the first answer")
        yield answers
    finally:
        over.set()
        worker.join()


def file_of(folder: Path, ids: list[int]) -> str:
    """Write token ids to a file and return the selector that names it."""
    path = folder / "tokens.json"
    path.write_text(json.dumps(ids), encoding="utf-8")
    return f"tokens:{path}"


def whole(tokens: int) -> int:
    """Tokens in whole pages before the last token."""
    return (tokens - 1) // BLOCK * BLOCK


def cached(server: Server, ids: list[int], **fields: Any) -> int:
    """Send a prompt and return what the server says it took from its cache."""
    return server.http.complete(ids, **fields).cached_tokens


def done(result: Result) -> dict[str, Any]:
    """Return the data of a command that succeeded."""
    assert result.code == 0, result.stderr
    data: dict[str, Any] = result.json
    return data


def table(server: Server) -> dict[int, tuple[int, str]]:
    """Return group and key of every cached page."""
    with server.session() as session:
        pages = session.snapshot().pages
    assert pages is not None
    tokens = memoryview(pages.tokens).cast("B").cast("I")
    keys = bytes(pages.key)
    return {
        page: (pages.group[page], keys[16 * page : 16 * page + 16].hex()) for page in range(pages.count) if tokens[page]
    }


def test_exactly_this_prefix(server: Server, tmp_path: Path) -> None:
    """The dry run names the pages and changes nothing; after --yes this prompt is computed anew, all others hit."""
    mine, other = prompt("mine", 600), prompt("other", 600)
    selector = file_of(tmp_path, mine)
    with traffic(server) as answers:
        for ids in (mine, other):
            cached(server, ids)
        dry = done(server.kvctl("invalidate", selector, "-o", "json"))
        with server.session() as session:
            chain = bytes.fromhex(session.call("hash_tokens", tokens=mine)["keys"])
        keys = {chain[start : start + 16].hex() for start in range(0, len(chain), 16)}
        assert len(keys) == 600 // BLOCK
        before = table(server)
        assert set(dry["pages"]) == {page for page, (_, key) in before.items() if key in keys}
        assert dry["applied"] is None
        assert cached(server, mine) == whole(600), "a dry run changes nothing"
        taken = done(server.kvctl("invalidate", selector, "--yes", "-o", "json"))
        assert taken["applied"]["pages"] == len(taken["pages"]) >= 600 // BLOCK
        assert cached(server, other) == whole(600)
        assert cached(server, mine) == 0
        assert cached(server, mine) == whole(600)
    assert len({answer.token_ids for answer in answers}) == 1, "requests that run are not disturbed"
    assert all(answer.cached_tokens for answer in answers[1:])
    lines = [json.loads(line) for line in (server.runtime / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["result"] for line in lines[-2:]] == ["begun", "done"]
    assert lines[-1]["removed"] == taken["applied"]["pages"]


def test_salt_and_what_is_too_short(server: Server, tmp_path: Path) -> None:
    """The same tokens under a salt are another prefix; tokens that were never sent or are too few are a usage error."""
    ids = prompt("salted", 200)
    selector = file_of(tmp_path, ids)
    for fields in ({}, {"cache_salt": "tenant"}):
        cached(server, ids, **fields)
    done(server.kvctl("invalidate", selector, "--salt", "tenant", "--yes", "-o", "json"))
    assert cached(server, ids) == whole(200)
    assert cached(server, ids, cache_salt="tenant") == 0
    explains(server.kvctl("invalidate", file_of(tmp_path, prompt("never sent", 200))), 2, "nothing of these tokens")
    explains(server.kvctl("invalidate", file_of(tmp_path, ids[: BLOCK - 1])), 2, "too few")
    looked = done(server.kvctl("inspect", "prefix", file_of(tmp_path, ids), "-o", "json"))
    assert looked["prefix"]["tokens"] == 192


def test_duplicates_go_too(server: Server, tmp_path: Path) -> None:
    """Case 23: a key that two pages hold is planned with both, and both are gone afterwards."""
    ids = prompt("twice", 300)
    selector = file_of(tmp_path, ids)
    cached(server, ids)
    cached(server, ids, prompt_logprobs=0)  # vLLM does not read its cache for these: every page is computed again
    plan = done(server.kvctl("invalidate", selector, "-o", "json"))
    assert len(plan["pages"]) > plan["keys"]
    assert cached(server, ids) == whole(300)
    taken = done(server.kvctl("invalidate", selector, "--yes", "-o", "json"))
    assert taken["applied"]["pages"] == len(plan["pages"])
    explains(server.kvctl("invalidate", selector), 2, "nothing of these tokens is cached")
    assert cached(server, ids) == 0


def test_an_outdated_plan_is_refused(server: Server, tmp_path: Path) -> None:
    """Case 14: when pages moved since a plan was made it is refused with exit code 5, names them, and takes nothing."""
    ids = prompt("outdated", 300)
    selector, file = file_of(tmp_path, ids), tmp_path / "plan.json"
    cached(server, ids)
    with traffic(server):
        plan = done(server.kvctl("invalidate", selector, "--save-plan", str(file), "-o", "json"))
        done(server.kvctl("invalidate", selector, "--yes", "-o", "json"))
        cached(server, ids)
        refused = server.kvctl("invalidate", "--plan", str(file), "--yes")
        explains(refused, 5, "outdated", "make a new plan")
        assert str(plan["pages"][0]) in refused.stderr
    assert cached(server, ids) == whole(300)


def running(server: Server, name: str) -> RequestInfo | None:
    """Return a request that runs, by the beginning of its id."""
    with server.session() as session:
        requests = session.overview().requests or ()
    return next((item for item in requests if item.id.startswith(name)), None)


def test_a_request_that_runs_on_does_not_bring_it_back(server: Server, tmp_path: Path) -> None:
    """While a request computed on evicted pages runs on, its prefix is a miss until somebody computes it anew."""
    ids = prompt("runs on", 200)
    answers: list[Completion] = []
    fields = {"request_id": "runs-on"}
    worker = threading.Thread(target=lambda: answers.append(server.http.complete(ids, tokens=LONGEST - 300, **fields)))
    worker.start()

    def computed(least: int) -> bool:
        found = running(server, "cmpl-runs-on")
        return found is not None and found.computed_tokens >= least

    wait_for(lambda: computed(264), "the request to fill pages of its own")
    found = running(server, "cmpl-runs-on")
    assert found is not None
    taken = done(server.kvctl("invalidate", f"request:{found.id}", "--yes", "-o", "json"))
    assert found.id in taken["held_by"]
    now = running(server, "cmpl-runs-on")
    assert now is not None, "the request was meant to run on"
    wait_for(lambda: computed(now.computed_tokens + 3 * BLOCK), "the request to fill more pages")
    assert cached(server, ids) == 0
    assert cached(server, ids) == whole(200)
    assert running(server, "cmpl-runs-on") is not None, "all of this happened while it ran"
    server.http.request("/abort_requests", {"request_ids": []}, method="POST")
    worker.join()
    (answer,) = answers
    longer = [*ids, *answer.token_ids[: now.computed_tokens - 200 + 2 * BLOCK]]
    assert cached(server, longer) == whole(200), "nothing of what it computed on top is there"
    assert cached(server, longer) == whole(len(longer))


def test_who_misses_what_was_taken_is_told_so(server: Server, tmp_path: Path) -> None:
    """The next decision about a prefix that was taken out has the reason `invalidated`; then it hits, as before."""
    ids = prompt("taken", 600)
    with server.session() as session:
        session.follow()
        cached(server, ids)
        assert cached(server, ids) == whole(600)
        session.poll()
        done(server.kvctl("invalidate", file_of(tmp_path, ids), "--yes", "-o", "json"))
        assert cached(server, ids) == 0
        assert cached(server, ids) == whole(600)
        found: list[Decision] = []

        def both() -> bool:
            found.extend(session.poll())
            return len(found) >= 2

        wait_for(both, "both decisions")
        missed, hit = found
        assert {reason for reason, *_ in missed.lost} & {Reason.INVALIDATED, Reason.EVICTED} == {Reason.INVALIDATED}
        assert hit.outcome is Outcome.REUSE

        def shared() -> bool:
            session.poll()
            return "invalidated" in server.kvctl("explain", str(missed.id)).stdout

        wait_for(shared, "the explanation in a command that only looks once")


def test_groups_and_states(server: Server) -> None:
    """`state:` and `group:` take every page of theirs and no other; a window that is gone makes the prefix unusable."""
    ids = prompt("states", 600)
    cached(server, ids)
    before = table(server)
    windows = {page for page, (group, _) in before.items() if group in {0, 1}}
    taken = done(server.kvctl("invalidate", "state:swa", "--yes", "-o", "json"))
    assert set(taken["pages"]) == windows
    after = table(server)
    assert after == {page: held for page, held in before.items() if page not in windows}
    assert cached(server, ids) == 0
    assert cached(server, ids) == whole(600)
    name = done(server.kvctl("inspect", "groups", "-o", "json"))["groups"][2]["name"]
    full = {page for page, (group, _) in table(server).items() if group == 2}
    assert set(done(server.kvctl("invalidate", f"group:{name}", "--yes", "-o", "json"))["pages"]) == full
    assert cached(server, ids) == 0


def test_stale_is_empty_while_weights_stay(server: Server) -> None:
    """`stale` takes nothing from an engine whose weights never changed."""
    cached(server, prompt("fresh", 200))
    taken = done(server.kvctl("invalidate", "stale", "--yes", "-o", "json"))
    assert taken["pages"] == []
    assert taken["applied"]["pages"] == 0


def test_all_in_parts_while_requests_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`all` is carried out in many critical sections while requests run; what moved meanwhile is left alone."""
    monkeypatch.setattr(invalidation, "PART_PAGES", 16)
    stem = prompt("parts", 600)
    with traffic(server), server.session() as session:
        for number in range(6):
            cached(server, sibling(stem, 64 * number, f"parts {number}", 500))
        session.follow()
        snapshot = session.snapshot()
        plan = invalidation.make_plan(session, snapshot, select(snapshot, parse("all")), deadline_s=30)
        assert len(plan.pages) > 100
        applied = invalidation.apply_plan(session, plan, quarantine=True, deadline_s=30)
        assert applied.parts >= len(plan.pages) // 16
        assert applied.pages + applied.skipped == len(plan.pages)
        # Eviction goes by key: a page that was registered since under a key of the plan would have been refused.
        assert cached(server, sibling(stem, 0, "parts 0", 500)) == 0
    assert done(server.kvctl("invalidate", "all", "--yes", "-o", "json"))["applied"]["pages"] > 0
    assert table(server) == {}
    report = server.kvctl("validate", "--gate", "1")
    assert report.code == 0, report.stdout


def test_a_read_only_engine_refuses(model: Callable[..., Path], tmp_path: Path) -> None:
    """An engine that was started without --allow-changes shows the plan and refuses to carry it out, exit code 5."""
    small = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", "128", "--max-model-len", "1024")
    with serve(model("llama"), *small) as server:
        ids = prompt("read only", 200)
        cached(server, ids)
        selector = file_of(tmp_path, ids)
        assert len(done(server.kvctl("invalidate", selector, "-o", "json"))["pages"]) == 6
        explains(server.kvctl("invalidate", selector, "--yes"), 5, "--allow-changes")
        assert cached(server, ids) == whole(200)
