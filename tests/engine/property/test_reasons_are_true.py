"""A reason that is stated without a memory of what was registered is the one that a complete memory gives."""

import os
import secrets
from collections import Counter
from random import Random

from agent.engines.vllm.groups import geometry_of
from agent.model.decision import Reason
from agent.model.states import KEY_BYTES
from agent.resume import evaluate
from tests.support.lookup_trials import choose_setup
from tests.support.vllm_worlds import KeySet, Traffic, World, keys_of, random_evictions
from tests.support.watched_pool import WatchedPool

STATES = 6_000 if os.environ.get("KVCTL_NIGHTLY") == "1" else 600
SEED = int(os.environ.get("KVCTL_SEED") or secrets.randbits(32))


def test_deduced_reasons_are_true(table: list[str]) -> None:
    """On real traffic with evictions, what is deduced from the table alone never contradicts the truth."""
    told: Counter[str] = Counter()
    for number in range(STATES):
        random = Random(f"{SEED}/{number}")
        world = World(choose_setup(random), random)
        truth, traffic = WatchedPool(world.manager.block_pool), Traffic(world)
        for _ in range(random.randint(2, 6)):
            traffic.run(traffic.draw())
        random_evictions(world, random.choice([1, 2, 4, 8]))
        geometry, held = geometry_of(world.manager), KeySet(keys_of(world.manager))
        for _ in range(8):
            digests, limit = world.lookup()
            chain = [digest[:KEY_BYTES] for digest in digests]
            alone = evaluate(geometry, chain, held, limit=limit)
            known = evaluate(geometry, chain, held, limit=limit, ghost=truth)
            for ours, true in zip(alone.waterfall, known.waterfall, strict=True):
                if ours.group is None:
                    continue
                assert true.reason is not Reason.UNKNOWN
                assert ours.reason in {Reason.UNKNOWN, true.reason}, (SEED, number, geometry, ours, true)
                told[f"{true.reason}, {'told' if ours.reason is true.reason else 'unknown'} without memory"] += 1
    table.append(f"reasons of losses, seed {SEED}")
    table.extend(f"  {name:50s} {count:7,d}" for name, count in sorted(told.items()))
    assert told["window_hole, told without memory"] > 0
    assert told["tail_missing, told without memory"] > 0
