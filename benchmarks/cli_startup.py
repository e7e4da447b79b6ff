"""Start-up of the command line: ``kvctl --help`` against ``import typer``, in fresh interpreters.

Goal: at most 1.3 times. Rounds are interleaved and the fastest counts, so that a busy machine does not decide. Run
``python benchmarks/cli_startup.py [ROUNDS]``; exit code 1 above the goal.
"""

import subprocess
import sys
import time

GOAL = 1.3
CASES = {
    "python -c pass": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "kvctl --help": ["-c", "import sys; sys.argv = ['kvctl', '--help']; from kvctl.main import run; run()"],
}


def once(arguments: list[str]) -> float:
    """Return the seconds that one interpreter takes from start to end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(rounds: int) -> dict[str, float]:
    """Return the fastest of ``rounds`` for each case, in seconds."""
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(rounds):
        for name, arguments in CASES.items():
            best[name] = min(best[name], once(arguments))
    return best


def main() -> int:
    """Print the table and the ratio."""
    best = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    for name, seconds in best.items():
        print(f"{name:<16}{seconds * 1000:8.1f} ms")
    ratio = best["kvctl --help"] / best["import typer"]
    print(f"{'ratio':<16}{ratio:8.2f}     (goal {GOAL})")
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
