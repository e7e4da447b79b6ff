"""Whatever the agent does or fails to do, the engine's output is the same to the token.

One fixed run of a model with seeded weights (outputs depend on every cached page), each variant in its own process.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import engine_env

SEED = 20_26


@pytest.fixture(scope="module")
def outcome(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return a function that runs one variant (each number of it once) and returns what it printed."""
    folder = model("gemma3", SEED)
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def get(variant: str, number: int = 0) -> dict[str, Any]:
        if (variant, number) not in known:
            known[variant, number] = _run(folder, variant)
        return known[variant, number]

    return get


def _run(folder: Path, variant: str) -> dict[str, Any]:
    with engine_env.short_folder() as runtime:
        runtime.chmod(0o700)
        environment = engine_env.engine_environment(runtime, agent=variant != "absent")
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.fixed_run", str(folder), variant],
            cwd=engine_env.ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return (left["tokens"], left["cached"], left["steps"]) == (right["tokens"], right["cached"], right["steps"])


def test_the_run_can_be_compared(outcome: Callable[..., dict[str, Any]]) -> None:
    """Without the agent the run repeats itself exactly, reuses prefixes, and its answers differ from each other."""
    first = outcome("absent")
    assert _same(first, outcome("absent", 1))
    assert sum(first["cached"].values()) > 1000
    assert len({tuple(tokens) for tokens in first["tokens"].values()}) > len(first["tokens"]) // 2
    assert sum(len(set(tokens)) > 4 for tokens in first["tokens"].values()) > len(first["tokens"]) // 2


def test_present(outcome: Callable[..., dict[str, Any]]) -> None:
    """With the agent and nobody reading, every token is the same."""
    assert _same(outcome("present"), outcome("absent"))


def test_joined(outcome: Callable[..., dict[str, Any]]) -> None:
    """With a reader that follows references as well, every token is the same, and the reader saw the decisions."""
    joined = outcome("joined")
    assert _same(joined, outcome("absent"))
    assert joined["reader"]["decisions"] >= len(joined["tokens"])


def test_every_hook_raising(outcome: Callable[..., dict[str, Any]]) -> None:
    """With every hook raising on every call, every token is the same."""
    raising = outcome("raising")
    assert _same(raising, outcome("absent"))
    assert len(raising["raised"]) >= 4, raising["raised"]
    assert sum(raising["raised"].values()) > raising["steps"]


def test_breaker(outcome: Callable[..., dict[str, Any]]) -> None:
    """With the breaker working, hooks that raise are taken out after a few errors, and every token is the same."""
    breaking = outcome("breaking")
    assert _same(breaking, outcome("absent"))
    assert 0 < sum(breaking["raised"].values()) < breaking["steps"]
