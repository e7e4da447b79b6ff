"""Throughput of a whole ``vllm serve`` with the agent and without it, and with a reader that follows everything.

Run: ``python benchmarks/server_throughput.py [ROUNDS]`` in an environment with vLLM and kvctl. Prints a markdown table.

Three servers of one tiny Gemma-3-like model stand side by side; in each round each of them serves the same burst alone
while the others idle, in an order drawn by lot. The ratio of a round compares servers within that round, so a slow
moment of the machine hits all three alike. A sanity check of the sums in ``probe_cost.py``: a tiny model on a CPU has
short steps, so the share of the agent is far larger here than on a GPU.
"""

import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.model.snapshot import Level
from tests.support import engine_env
from tests.support.models import write_model
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve

ARGUMENTS = (
    "--num-gpu-blocks-override",
    "2000",
    "--max-model-len",
    "4096",
    "--max-num-seqs",
    "16",
    "--block-size",
    "32",
)
MODES = ("without", "always on", "joined")
REQUESTS = 32
OUTPUT = 48


def burst(server: Server, number: int) -> float:
    """Serve one burst; return its output tokens a second."""
    stem = prompt("a shared prefix", 600)
    prompts = [sibling(stem, 480, f"{number} {request}", 160) for request in range(REQUESTS)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda ids: server.http.complete(ids, tokens=OUTPUT), prompts))
    assert len(done) == REQUESTS
    return REQUESTS * OUTPUT / (time.perf_counter() - begin)


def main() -> None:
    """Run all rounds and print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    rng = random.Random(3)
    speeds: dict[str, list[float]] = {mode: [] for mode in MODES}
    with engine_env.short_folder("kvctl-") as folder, ExitStack() as stack:
        model = write_model(folder, "gemma3")
        servers = {mode: stack.enter_context(serve(model, *ARGUMENTS, agent=mode != MODES[0])) for mode in MODES}
        session = stack.enter_context(servers["joined"].session())
        session.follow(Level.REFERENCES)
        for number in range(-1, rounds):
            for mode in rng.sample(MODES, len(MODES)):
                speed = burst(servers[mode], number)
                if mode == "joined":
                    session.poll()
                if number >= 0:
                    speeds[mode].append(speed)
    print("| server | output tokens a second, median | against without, median of the rounds | fastest to slowest |")
    print("|---|---|---|---|")
    for mode in MODES:
        ratios = sorted(mine / base for mine, base in zip(speeds[mode], speeds[MODES[0]], strict=True))
        print(
            f"| {mode} | {statistics.median(speeds[mode]):.0f} | {statistics.median(ratios):.3f} "
            f"| {ratios[-1]:.2f} to {ratios[0]:.2f} |"
        )


if __name__ == "__main__":
    main()
