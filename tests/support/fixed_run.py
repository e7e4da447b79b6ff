"""One fixed run of an in-process engine: the same requests at the same steps, tokens printed as JSON.

Invariant: what the engine is asked to do depends on nothing but this file, so that two runs may be compared token by
token. Run as a process of its own, ``python -m tests.support.fixed_run MODEL VARIANT``, by ``test_harmless``.

Variants: ``absent`` (no agent), ``present``, ``joined`` (a reader follows at the dearest level), ``raising`` (every
hook raises, the breaker never opens), ``breaking`` (every hook raises, the breaker opens as it should).
"""

import importlib
import json
import os
import select
import subprocess
import sys
from collections import Counter
from typing import Any

from tests.support import engine_env
from tests.support.prompts import prompt, sibling

PAGES = 72
"""Few enough that requests push each other's pages out and are preempted."""
BLOCK = 32
OUTPUT = 24
ENDLESS = 1 << 60

raised: Counter[str] = Counter()
"""How often each hook was made to raise."""


def arrivals() -> dict[int, list[tuple[str, list[int]]]]:
    """Return which requests arrive before which step: repeats, siblings, strangers, bursts."""
    stem = prompt("stem", 700)
    plan: dict[int, list[tuple[str, list[int]]]] = {}
    for number in range(28):
        ids = {
            0: stem,
            1: sibling(stem, 300, f"sibling {number}", 60),
            2: prompt(f"stranger {number}", 90 + 17 * number),
            3: sibling(stem, 64 * (number % 7), f"other {number}", 33),
        }[number % 4]
        plan.setdefault(3 * (number // 3), []).append((f"r{number}", ids))
    return plan


def sabotage(*, breaker: bool) -> None:
    """Make everything that the guard runs raise instead."""
    import kvctl.plugin

    package = kvctl.plugin.load_agent()
    guard: Any = importlib.import_module(f"{package.__name__}.probe.guard")

    def spoil(name: str) -> None:
        run = getattr(guard.Guard, name)

        def raising(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(fn, "__qualname__", "").startswith("Entry."):
                # Without the entry there would be no hooks to raise.
                return run(self, fn, *args, **kwargs)

            def bad(*_args: Any, **_kwargs: Any) -> None:
                where = getattr(fn, "__qualname__", repr(fn))
                raised[where] += 1
                raise RuntimeError(f"planted in {where}")

            if not breaker:
                self._score = -ENDLESS
            return run(self, bad, *args, **kwargs)

        setattr(guard.Guard, name, raising)

    spoil("call")
    spoil("quiet")


class Reader:
    """A process that joins the feed and follows until it is told to stop."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.reader", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=engine_env.ROOT,
        )

    def joined(self) -> bool:
        """Tell whether it has the whole table by now; does not wait."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 0)
        return bool(ready) and self.process.stdout.readline().strip() == b"joined"

    def stop(self) -> dict[str, Any]:
        """End it and return what it saw."""
        out, _ = self.process.communicate(timeout=60)
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer


def start_engine(model: str) -> Any:
    """Start the engine in this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=1024,
            block_size=BLOCK,
            num_gpu_blocks_override=PAGES,
            max_num_batched_tokens=256,
            max_num_seqs=6,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
    )


def add(engine: Any, name: str, ids: list[int], tokens: int) -> None:
    """Add one greedy request."""
    from vllm import SamplingParams

    engine.add_request(
        name, {"prompt_token_ids": ids}, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    )


def warm_up(engine: Any, reader: Reader | None) -> None:
    """Step the engine until the reader has joined; afterwards nothing of it is left in the cache."""
    number = 0
    while number < 3 or (reader is not None and not reader.joined()):
        if not engine.has_unfinished_requests():
            add(engine, f"warm{number}", prompt(f"warm {number}", 40), 16)
            number += 1
            assert number < 3000, "the reader never joined"
        engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.reset_prefix_cache()


def run(engine: Any) -> dict[str, Any]:
    """Run the plan to its end."""
    plan, results, step = arrivals(), {}, 0
    while plan or engine.has_unfinished_requests():
        for name, ids in plan.pop(step, []):
            add(engine, name, ids, OUTPUT)
        step += 1
        for output in engine.step():
            if output.finished:
                results[output.request_id.split("-")[0]] = [*output.outputs[0].token_ids], output.num_cached_tokens
    return {
        "steps": step,
        "tokens": {name: tokens for name, (tokens, _) in results.items()},
        "cached": {name: cached for name, (_, cached) in results.items()},
    }


def main(model: str, variant: str) -> None:
    """Run one variant and print the result as the last line."""
    engine_env.prepare_in_process()
    if variant in {"raising", "breaking"}:
        sabotage(breaker=variant == "breaking")
    engine = start_engine(model)
    reader = Reader() if variant == "joined" else None
    warm_up(engine, reader)
    answer = run(engine)
    answer["reader"] = None if reader is None else reader.stop()
    answer["raised"] = dict(raised)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
