"""DeepSeek-V4's five groups on a real server: tail and indexer shown, and a hit that all of them allow.

One server with the tiny model on CPU; few requests, each costs seconds.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.following import follow_decisions
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve

UNIT = 256


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve the model."""
    with serve(model("deepseek_v4"), "--num-gpu-blocks-override", "2048", "--max-model-len", "4096") as running:
        yield running


def test_groups(server: Server) -> None:
    """The five groups are named by state and geometry; the main one holds compressed history and indexer keys."""
    groups = server.kvctl("inspect", "groups", "-o", "json").json["groups"]
    shapes = {(group["states"][0], group["block_tokens"], group["window_past_tokens"]) for group in groups}
    assert shapes == {("swa", 64, 127), ("compressed", 256, None), ("tail", 4, 7), ("tail", 8, 127)}
    assert len(groups) == 5
    (main,) = [group for group in groups if group["states"][0] == "compressed"]
    assert main["states"] == ["compressed", "indexer"]
    assert {"model.layers.1.attn.indexer.k_cache", "model.layers.3.attn.indexer.k_cache"} <= set(main["layers"])


def test_states_and_decisions(server: Server, tmp_path: Path) -> None:
    """Tail and indexer are there after a request; a repeat hits 1,024, a sibling that ends elsewhere nothing."""
    ids = prompt("deepseek", 1100)
    with follow_decisions(server, tmp_path) as follower:
        server.http.complete(ids)
        again = server.http.complete(ids)
        other = server.http.complete(sibling(ids, 800, "elsewhere", 40))
        _, warm, apart = follower.next(3)
    assert again.cached_tokens == warm["usable_by_rules_tokens"] == warm["logical_tokens"] == 4 * UNIT
    assert warm["outcome"] == "reuse"
    assert (other.cached_tokens, apart["usable_by_rules_tokens"], apart["logical_tokens"]) == (0, 0, 3 * UNIT)
    assert apart["reason"] == "not_retained"
    states = {row["state"]: row for row in server.kvctl("inspect", "states", "-o", "json").json["states"]}
    for name in ("compressed", "tail", "swa", "indexer"):
        assert states[name]["pages"] > 0, name
    table = server.kvctl("inspect", "states").stdout
    assert "tail" in table
    assert "indexer" in table
