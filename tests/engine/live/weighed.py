"""An engine in this process whose weights change, and what a test asks of it.

Invariant: looking changes nothing but what a reading of the weights finds. Used by the tests of changed weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.model.evidence import Weights
from agent.model.finding import Finding
from agent.session import Session
from tests.engine.live.engines import BLOCK, Engine
from tests.support.prompts import prompt
from tests.support.validating import validate
from tests.support.waiting import wait_for

WHOLE = 4 * BLOCK
PROMPT = prompt("asked again and again", WHOLE + 3)


@dataclass(slots=True)
class Weighed:
    """An engine whose weights change, and what others answer that were started with the new ones."""

    engine: Engine
    session: Session
    folders: dict[str, Path]
    invalidates: bool
    count: int = 0

    def ask(self, ids: list[int] = PROMPT, adapter: Any = None, tokens: int = 4) -> Any:
        """Run one request to its end."""
        self.count += 1
        name = f"r{self.count}"
        self.add(name, ids, adapter, tokens)
        self.engine.finish()
        return self.engine.results[name]

    def add(self, name: str, ids: list[int], adapter: Any = None, tokens: int = 4) -> None:
        """Add one request."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        self.engine.llm.add_request(name, {"prompt_token_ids": ids}, sampling, lora_request=adapter)

    def look(self) -> tuple[Weights, dict[str, Finding]]:
        """Run all gates."""
        snapshot, results = validate(self.session)
        assert snapshot.evidence is not None
        assert snapshot.evidence.weights is not None
        return snapshot.evidence.weights, {one.code: one for result in results for one in result.findings}

    def epochs(self) -> int:
        """Count the changes that were seen; asks nobody, so that nothing is found by asking."""
        return len(self.engine.probe.adapter.weights_seen().changes)

    def cached(self) -> set[int]:
        """Return the pages that carry a key."""
        blocks = self.engine.core.scheduler.kv_cache_manager.block_pool.blocks
        return {block.block_id for block in blocks if block.block_hash is not None}

    def settle(self) -> None:
        """Wait until the probe has nothing left to read or to take out."""
        wait_for(lambda: not self.engine.probe.safe_point.waiting, "the probe's jobs to end")
