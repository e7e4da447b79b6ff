"""Case 21 on a real engine: priority scheduling leaves pages under a key that nobody ever computed.

Invariant: says from the bytes of the cache, not from any bookkeeping, which pages were never written: the pool is
filled with a pattern first. Run as ``python -m tests.support.priority_run MODEL``, in lockstep with the test: it prints
one JSON line for each stage and goes on when it is told to. There are two rounds with a victim each, on an empty cache.

Source of the load: the public report, vLLM issue 57580. A request is taken out of the very step that allocated its
pages, because a more urgent one needs them; the pages keep their keys.
"""

import json
import sys
from typing import Any

from tests.support import engine_env
from tests.support.prompts import prompt

PATTERN = 7.0
BLOCK = 32
CHUNK = 96
"""Tokens of the victim computed in one step: three pages."""
COMPUTED = 6 * CHUNK
"""Tokens of the victim that are computed when it is taken out of step 7."""
VICTIM_TOKENS = 680
URGENT_TOKENS = 28
"""The urgent request comes one step after the victim and needs its second page when 33 tokens are there: in step 7."""
LONGEST = 736
"""Longest request, in tokens: all pages but the null page."""
SERVED_TOKENS = 40
"""Answer of whoever comes second: fills a page of its own on top of the victim's."""
PAGES = 1 + 1 + 7 * 3 + 1
"""The null page, the calm request's, what the victim holds in step 7, and the urgent one's first: then none is free."""


def start_engine(model: str) -> Any:
    """Start the engine in this process; pages for little more than the victim."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=LONGEST,
            block_size=BLOCK,
            num_gpu_blocks_override=PAGES,
            scheduling_policy="priority",
            long_prefill_token_threshold=CHUNK,
            max_num_batched_tokens=LONGEST,
            max_num_seqs=4,
            enable_prefix_caching=True,
        )
    )


class Run:
    """The engine, its tensors, and the conversation with the test."""

    def __init__(self, model: str) -> None:
        self.engine = start_engine(model)
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.tensors = core.model_executor.driver_worker.worker.model_runner.kv_caches

    def clear(self) -> None:
        """Forget everything, and fill the tensors with the pattern."""
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("requests still run")
        for tensor in self.tensors:
            tensor.fill_(PATTERN)

    def add(self, name: str, ids: list[int], tokens: int, *, priority: int = 0, salt: str | None = None) -> None:
        """Add one greedy request."""
        from vllm import SamplingParams

        prompt_value: dict[str, Any] = {"prompt_token_ids": ids} | ({"cache_salt": salt} if salt else {})
        parameters = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        self.engine.add_request(name, prompt_value, parameters, priority=priority)

    def finish(self) -> dict[str, tuple[list[int], int]]:
        """Step until nothing is left; return tokens and cached tokens of each request."""
        results = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    results[output.request_id.split("-")[0]] = [*output.outputs[0].token_ids], output.num_cached_tokens
        return results

    def never_written(self) -> list[int]:
        """Return the pages that carry a key and still hold the pattern in every layer."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return [
            page.block_id
            for page in pool.blocks
            if page.block_hash is not None
            and all(bool((tensor[page.block_id].float() == PATTERN).all()) for tensor in self.tensors)
        ]

    def say(self, **stage: Any) -> None:
        """Report a stage and wait for the test."""
        sys.stdout.write(json.dumps(stage) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()

    def preempt(self, victim: list[int]) -> None:
        """Have a request taken out of the step that allocated its pages."""
        self.clear()
        # A prefill is cut into chunks only while somebody else runs.
        self.add("calm", prompt("calm", 8), 22)
        self.add("victim", victim, 4, priority=10)
        self.engine.step()
        self.add("urgent", prompt("urgent", URGENT_TOKENS), 12)
        for _ in range(20):
            if any(request.num_preemptions for request in self.scheduler.requests.values()):
                break
            self.engine.step()

    def answer(self, stage: str, ids: list[int], tokens: int, *, salt: str | None = None) -> None:
        """Run one request to its end and report it as a stage."""
        self.add(stage, ids, tokens, salt=salt)
        sampled, cached = self.finish()[stage]
        self.say(stage=stage, tokens=sampled, cached=cached)


def main(model: str) -> None:
    """Make never-computed pages twice; the first time the same prompt comes before the test takes them out."""
    engine_env.prepare_in_process()
    run = Run(model)
    for number, served in enumerate((True, False)):
        victim = prompt(f"victim {number}" if number else "victim", VICTIM_TOKENS)
        run.preempt(victim)
        run.say(stage="preempted", never_written=run.never_written())
        run.finish()
        if served:
            run.answer("served", victim, SERVED_TOKENS)
        run.answer("again", victim, SERVED_TOKENS)
        run.answer("apart", victim, SERVED_TOKENS, salt=f"apart {number}")


if __name__ == "__main__":
    main(sys.argv[1])
