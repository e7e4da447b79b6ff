"""A vLLM in which a function is missing or has other parameters: that capability is off, the engine runs on."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_env import ROOT

SCRIPT = """
import json, sys
from tests.support.engine_env import prepare_in_process
prepare_in_process()
from pathlib import Path
from tests.engine.live.engines import engine_in_process
from tests.support.prompts import prompt
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.sched.scheduler import Scheduler
exec(sys.argv[2])
with engine_in_process(Path(sys.argv[1]), pages=72) as engine:
    with engine.session() as session:
        cached = [engine.run(f"r{n}", prompt("changed", 300)).num_cached_tokens for n in range(2)]
        overview = session.overview()
        print(json.dumps({
            "cached": cached,
            "off": {item.name: item.reason for item in overview.capabilities if not item.on},
            "decisions": [item.engine_usable for item in overview.decisions],
            "errors": engine.probe.guard.errors,
        }))
"""

RENAMED = """
def get_computed_blocks(self, req, original=KVCacheManager.get_computed_blocks):
    return original(self, req)
KVCacheManager.get_computed_blocks = get_computed_blocks
def find(self, hashes, length, original=UnitaryKVCacheCoordinator.find_longest_cache_hit):
    return original(self, hashes, length)
UnitaryKVCacheCoordinator.find_longest_cache_hit = find
"""

MISSING = "del BlockPool.evict_blocks"

FURTHER = """
def get_computed_blocks(self, request, lookahead=0, original=KVCacheManager.get_computed_blocks):
    return original(self, request)
KVCacheManager.get_computed_blocks = get_computed_blocks
def schedule(self, throttle_prefills=False, more=None, original=Scheduler.schedule):
    return original(self, throttle_prefills)
Scheduler.schedule = schedule
"""


def run(folder: Path, change: str) -> dict[str, Any]:
    """Run an engine with a change to the real classes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), change], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("change", "reasons", "decisions"),
    [
        (
            RENAMED,
            {
                "binds": "KVCacheManager.get_computed_blocks has other parameters",
                "decisions": "KVCacheManager.get_computed_blocks has other parameters",
                "engine_hit": "find_longest_cache_hit has other parameters",
            },
            [],
        ),
        (MISSING, {"feed": "no BlockPool.evict_blocks", "invalidate": "BlockPool.evict_blocks is missing"}, [0, 288]),
        (FURTHER, {}, [0, 288]),
    ],
    ids=["renamed", "missing", "further parameters"],
)
def test_one_capability_goes_and_the_engine_runs_on(
    model: Callable[..., Path], change: str, reasons: dict[str, str], decisions: list[int]
) -> None:
    """What was changed turns off what needs it, with a reason that names it; everything else works on."""
    found = run(model("llama", 1), change)
    assert found["cached"] == [0, 288]
    assert found["errors"] == 0
    assert found["decisions"] == decisions
    wrong = {
        name: reason for name, reason in found["off"].items() if name not in {"external", "layout", "weights_digest"}
    }
    assert wrong.keys() == reasons.keys()
    for name, part in reasons.items():
        assert part in wrong[name]
