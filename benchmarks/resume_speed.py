"""What one look-up costs: our rules on a table outside the engine, against the engine's own finders.

Invariant: needs vLLM; every number is the smallest thread CPU of many repetitions, so that a busy machine shifts it
little. Prints the Markdown table that is committed beside this file. Run: ``python benchmarks/resume_speed.py``.
"""

import time
from collections.abc import Callable
from random import Random

from agent.engines.vllm.groups import geometry_of
from agent.model.states import KEY_BYTES
from agent.resume import evaluate
from agent.table.presence import Presence
from tests.support import vllm_groups as make
from tests.support.vllm_worlds import Traffic, World, drop, keys_of

REPETITIONS = 40


def cheapest_us(call: Callable[[], object], repetitions: int = REPETITIONS) -> float:
    """Return the smallest thread CPU of a call in microseconds."""
    best = float("inf")
    for _ in range(repetitions):
        start = time.thread_time_ns()
        call()
        best = min(best, (time.thread_time_ns() - start) / 1_000)
    return best


def presence_of(world: World) -> Presence:
    """Index the pool's keys as a joined reader's table does."""
    presence = Presence()
    for page, (group, key) in enumerate(keys_of(world.manager)):
        presence.add(page, group, key)
    return presence


def measure(setup: make.Setup, tokens: int, situation: str) -> tuple[float, float, float, int | None]:
    """Measure one situation: engine's finder, engine's finder for each group, our rules (us), and usable tokens."""
    world = World(setup, Random(1))
    traffic = Traffic(world)
    prompt = [world.random.randrange(30_000) for _ in range(tokens)]
    first = traffic.request(prompt)
    if situation != "cold":
        world.random.choice = lambda seq: seq[0]  # type: ignore[method-assign]
        traffic.run(first)
    if situation == "hole":
        boundary = (tokens - 1) // setup.alignment * setup.alignment
        drop(world.manager, 0, first.block_hashes[boundary // setup.unit - 1])
    digests, limit = list(first.block_hashes), tokens - 1
    chain, geometry, presence = [key[:KEY_BYTES] for key in digests], geometry_of(world.manager), presence_of(world)
    coordinator = world.manager.coordinator
    engine = cheapest_us(lambda: coordinator.find_longest_cache_hit(digests, limit))
    groups = cheapest_us(lambda: coordinator.find_longest_cache_hit_per_group(digests, limit))
    ours = cheapest_us(lambda: evaluate(geometry, chain, presence, limit=limit))
    return engine, groups, ours, evaluate(geometry, chain, presence, limit=limit).usable


def main() -> None:
    """Print the table."""
    print("| groups | tokens | situation | usable | engine, us | engine for each group, us | kvctl, us | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens in (2_048, 32_768):
        more = {"pages": 30_000, "longest": tokens}
        for setup in (make.deepseek_v4(0, **more), make.gemma3(0, **more), make.deepseek_v4(None, **more)):
            keep = "dense" if setup.retention is None else "sparse"
            for situation in ("all there", "hole", "cold"):
                engine, groups, ours, usable = measure(setup, tokens, situation)
                print(
                    f"| {setup.name}, {keep} | {tokens:,} | {situation} | {usable:,} | {engine:,.0f} | {groups:,.0f} "
                    f"| {ours:,.0f} | {ours / engine:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
