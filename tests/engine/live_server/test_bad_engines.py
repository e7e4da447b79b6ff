"""Engines that are not what kvctl would like: shown as far as possible, the reason said, the engine untouched."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import engine_env, host_tier, spoilt
from tests.support.following import follow_decisions
from tests.support.messages import explains
from tests.support.prompts import prompt
from tests.support.server import Server, serve
from tests.support.waiting import wait_for

SMALL = ("--block-size", "32", "--num-gpu-blocks-override", "160", "--max-model-len", "2048")


def capability(server: Server, name: str) -> dict[str, Any]:
    """Return one capability as the overview lists it."""
    overview = server.kvctl("inspect", "overview", "-o", "json")
    assert overview.code == 0, overview.stderr
    (found,) = [item for item in overview.json["capabilities"] if item["name"] == name]
    answer: dict[str, Any] = found
    return answer


def test_without_prefix_caching(model: Callable[..., Path]) -> None:
    """An engine without prefix caching is shown, and said to be one; nothing is counted as lost."""
    with serve(model("llama"), *SMALL, caching=False) as server:
        server.http.complete(prompt("once", 300))
        server.http.complete(prompt("once", 300))
        shown = server.kvctl("inspect")
        assert shown.code == 0, shown.stderr
        assert "without prefix caching" in shown.stdout
        data = server.kvctl("inspect", "-o", "json").json
        assert data["caching"] is False
        assert not data["reuse"]["lost"]


def test_a_vllm_with_other_functions(model: Callable[..., Path]) -> None:
    """A changed function and an unknown mutating one switch off what needs them, by name; all else works."""
    plugins = {"kvctl_test_spoilt": (Path(spoilt.__file__), "install")}
    with serve(model("llama"), *SMALL, plugins=plugins) as server:
        first = server.http.complete(prompt("spoilt", 300))
        second = server.http.complete(prompt("spoilt", 300))
        assert (first.cached_tokens, second.cached_tokens) == (0, 288)
        assert first.token_ids == second.token_ids
        decisions = capability(server, "decisions")
        assert not decisions["on"]
        assert "record_prefix_cache_stats" in decisions["reason"]
        feed = capability(server, "feed")
        assert not feed["on"]
        assert "rebalance" in feed["reason"]
        assert capability(server, "pool")["on"]
        assert server.kvctl("inspect", "requests").code in {0, 4}
        explains(server.kvctl("inspect", "prefixes"), 4, "rebalance")
        assert "rebalance" in server.kvctl("doctor").stdout


def test_with_a_connector(model: Callable[..., Path], tmp_path: Path) -> None:
    """Tokens that a connector brings from a host tier are counted apart from the engine's own, as the server does."""
    ids = prompt("tiered", 600)
    with serve(
        model("llama"),
        *SMALL,
        "--kv-transfer-config",
        json.dumps(host_tier.transfer_config()),
        plugins={"kvctl_test_tier": (Path(host_tier.__file__), "register")},
        environment={"VLLM_SERVER_DEV_MODE": "1"},
    ) as server:
        assert capability(server, "external")["on"]
        with follow_decisions(server, tmp_path) as follower:
            server.http.complete(ids)
            server.http.complete(ids)
            cold, warm = follower.next(2)
            assert (cold["usable_tokens"], cold["external_tokens"]) == (0, 0)
            assert (warm["usable_tokens"], warm["external_tokens"]) == (576, 0)
            server.http.request("/reset_prefix_cache", method="POST")
            wait_for(lambda: server.kvctl("inspect", "-o", "json").json["pool"]["keys"] == 0, "the cache to be empty")
            back = server.http.complete(ids)
            (loaded,) = follower.next()
        assert loaded["external_tokens"] == back.cached_tokens > 0
        assert loaded["usable_tokens"] == 0
        tiers = server.kvctl("inspect", "tiers", "-o", "json")
        assert tiers.code == 0, tiers.stderr
        assert tiers.json["tiers"]


def test_the_kill_switch_at_start(model: Callable[..., Path]) -> None:
    """An operator's file in the runtime folder keeps the agent out; the engine serves as if it had none."""
    with engine_env.short_folder() as folder:
        folder.chmod(0o700)
        (folder / "off").touch()
        with serve(model("llama"), *SMALL, runtime=folder) as server:
            assert server.http.complete(prompt("off", 100)).prompt_tokens == 100
            explains(server.kvctl("inspect"), 3)


def test_a_folder_that_others_may_enter(model: Callable[..., Path]) -> None:
    """Without a folder for its socket the agent says so in the log and keeps out of the way; ps and doctor say why."""
    with engine_env.short_folder() as folder:
        folder.chmod(0o755)
        with serve(model("llama"), *SMALL, runtime=folder) as server:
            assert server.http.complete(prompt("open", 100)).prompt_tokens == 100
            why = f"{folder}: its mode is 0755; 0700 is needed"
            assert f"socket is off: the folder in KVCTL_RUNTIME_DIR cannot be used: {why}" in server.log.read_text()
            assert not list(folder.iterdir())
            assert why in server.kvctl("ps").stderr
            assert f"chmod 0700 {folder}" in server.kvctl("doctor").stdout
            explains(server.kvctl("inspect"), 3, why)
            explains(server.kvctl("inspect", "--pid", str(server.engine_pid())), 3, why)
            explains(server.kvctl("run", "--", "true"), 3, why, f"chmod 0700 {folder}")
