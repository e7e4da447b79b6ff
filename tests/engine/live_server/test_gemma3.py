"""Usable against logical on a real server with windows and full attention, through the commands an operator types.

One server with a Gemma-3-like model, two window groups to one full; the tests share it and use prompts of their own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.session import Session
from inspector.views.prefixes import prefixes
from tests.support.client_http import Completion
from tests.support.following import Follower, follow_decisions
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve

BLOCK = 32
PAGES = 420
"""About four long prompts: other traffic pushes pages out soon."""


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve the model."""
    arguments = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(PAGES), "--max-model-len", "4096")
    with serve(model("gemma3"), *arguments) as running:
        yield running


@pytest.fixture
def follower(server: Server, tmp_path: Path) -> Iterator[Follower]:
    """Follow its decisions."""
    with follow_decisions(server, tmp_path) as following:
        yield following


def ask(server: Server, follower: Follower, ids: list[int]) -> tuple[Completion, dict[str, Any]]:
    """Send one prompt and return the server's report and kvctl's decision; their counts must agree."""
    completion = server.http.complete(ids)
    (decision,) = follower.next()
    assert completion.id in decision["request"]
    assert decision["lookup_tokens"] == completion.prompt_tokens == len(ids)
    assert decision["usable_tokens"] == completion.cached_tokens
    assert decision["usable_by_rules_tokens"] == completion.cached_tokens
    assert decision["external_tokens"] == 0
    return completion, decision


def full(tokens: int) -> int:
    """Tokens in whole pages before the last token."""
    return (tokens - 1) // BLOCK * BLOCK


def hits(decision: dict[str, Any]) -> tuple[str, int, int, str | None]:
    """Return what a decision is about: outcome, logical, usable, reason."""
    return decision["outcome"], decision["logical_tokens"], decision["usable_tokens"], decision["reason"]


def test_identical_prefix_is_reused(server: Server, follower: Follower) -> None:
    """A cold prompt is recomputed, the same prompt again is reused to the last whole page."""
    ids = prompt("identical", 1000)
    _, cold = ask(server, follower, ids)
    assert hits(cold) == ("recompute", 0, 0, "cold")
    _, warm = ask(server, follower, ids)
    assert hits(warm)[:3] == ("reuse", full(1000), full(1000))


def test_sibling_that_ends_elsewhere(server: Server, follower: Follower) -> None:
    """A prompt that shares 600 tokens finds the full history there and no window: not_retained; the next one hits."""
    stem = prompt("stem", 1000)
    ask(server, follower, stem)
    _, first = ask(server, follower, sibling(stem, 600, "first", 40))
    assert hits(first) == ("recompute", 576, 0, "not_retained")
    assert first["limiting_state"] == "swa"
    _, second = ask(server, follower, sibling(stem, 600, "second", 40))
    assert hits(second)[:3] == ("reuse", 576, 576)


def cached(session: Session, tokens: int) -> tuple[int, int]:
    """Return (logical, usable) of the only prefix that ends at ``tokens``; reading does not touch its pages."""
    session.poll()
    rows = [row for row in prefixes(session.snapshot(), limit=1000).data["prefixes"] if row["tokens"] == tokens]
    assert len(rows) <= 1
    return (rows[0]["logical_tokens"], rows[0]["usable_tokens"]) if rows else (0, 0)


def test_window_evicted_then_recovered(server: Server, follower: Follower) -> None:
    """When other traffic has pushed window pages out, the hit collapses with window_hole; recomputing heals it."""
    ids = prompt("victim", 1300)
    with server.session() as session:
        session.follow()
        ask(server, follower, ids)
        _, whole = ask(server, follower, ids)
        assert whole["usable_tokens"] == full(1300)
        assert cached(session, full(1300)) == (full(1300), full(1300))
        for number in range(60):
            ask(server, follower, prompt(f"traffic {number}", 100))
            logical, usable = cached(session, full(1300))
            if usable < full(1300):
                break
    assert usable < logical
    _, hole = ask(server, follower, ids)
    assert hits(hole)[1:] == (logical, usable, "window_hole")
    assert hole["limiting_state"] == "swa"
    _, healed = ask(server, follower, ids)
    assert hits(healed)[:3] == ("reuse", full(1300), full(1300))


def test_counters_agree(server: Server) -> None:
    """The probe's counters equal the engine's own over the life of the server."""
    counters = server.kvctl("inspect", "overview", "-o", "json").json["counters"]
    http = server.http

    assert counters["reuse_lookup_tokens"] == http.metric("vllm:prefix_cache_queries_total")
    assert counters["reuse_engine_usable_tokens"] == http.metric("vllm:prefix_cache_hits_total")


def test_snapshot_says_the_same(server: Server, tmp_path: Path) -> None:
    """Every view says the same about an idle engine and about its saved snapshot."""
    file = tmp_path / "engine.kvsnap"
    saved = server.kvctl("snapshot", "save", str(file))
    assert saved.code == 0, saved.stderr
    for view in ("overview", "groups", "states", "pages", "prefixes", "requests", "tiers"):
        live = server.kvctl("inspect", view, "-o", "json")
        loaded = server.kvctl("inspect", view, "-o", "json", "--snapshot", str(file))
        assert (live.code, loaded.code) == (0, 0), live.stderr + loaded.stderr
        assert differences(live.json, loaded.json) == [], view
    live = server.kvctl("fingerprint", "show", "-o", "json")
    loaded = server.kvctl("fingerprint", "show", "-o", "json", "--snapshot", str(file))
    contract, kept = live.json["contract"]["fields"], loaded.json["contract"]["fields"]
    assert {name: text for name, text in contract.items() if name != "hash.seed"} == kept
    assert "hash.seed" in loaded.json["contract"]["missing"]


MOVING = ("capture", "_seconds", "time", "hash", "key", "counters")
"""Parts of a name that say: differs between two readings of an idle engine, or is secret in a file."""


def differences(live: Any, loaded: Any, at: str = "") -> list[str]:
    """Return where two values differ; a part that only one of the two readings covers is no difference."""
    if live is None or loaded is None:
        return []
    if isinstance(live, dict) and isinstance(loaded, dict):
        names = [name for name in live if not any(word in name for word in MOVING)]
        return [found for name in names for found in differences(live[name], loaded.get(name), f"{at}.{name}")]
    if isinstance(live, list) and isinstance(loaded, list) and len(live) == len(loaded):
        return [
            found for n, pair in enumerate(zip(live, loaded, strict=True)) for found in differences(*pair, f"{at}[{n}]")
        ]
    return [] if live == loaded else [f"{at}: live {live!r}, file {loaded!r}"]
