"""An engine in this very process, with the agent in it, and what the live tests do with it.

Invariant: the engine is stepped by the test's own thread, so that between two steps nothing moves.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvctl.plugin
from agent.discovery import EndpointState, discover
from agent.session import Session
from tests.support import engine_env

BLOCK = 32


@dataclass(slots=True)
class Engine:
    """One in-process engine."""

    llm: Any
    runtime: Path
    results: dict[str, Any] = field(default_factory=dict)
    """Finished requests by the name they were added under."""

    @property
    def core(self) -> Any:
        """The engine core."""
        return self.llm.engine_core.engine_core

    @property
    def probe(self) -> Any:
        """Its probe, or None."""
        return None if entry() is None else entry().probe_of(self.core)

    def session(self) -> Session:
        """Open a session with it."""
        live = [
            item
            for item in discover({"KVCTL_RUNTIME_DIR": str(self.runtime)})
            if item.state is EndpointState.LIVE and item.pid == os.getpid()
        ]
        assert len(live) == 1, live
        return Session.open(live[0], deadline_s=30.0)

    def add(self, name: str, ids: Sequence[int], tokens: int = 4, **params: Any) -> None:
        """Add a greedy request."""
        from vllm import SamplingParams

        priority = params.pop("priority", 0)
        sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, **params)
        self.llm.add_request(name, {"prompt_token_ids": list(ids)}, sampling, priority=priority)

    def step(self, count: int = 1) -> None:
        """Step it."""
        for _ in range(count):
            for output in self.llm.step():
                if output.finished:
                    self.results[output.request_id.split("-")[0]] = output

    def finish(self) -> None:
        """Step it until nothing is left to do."""
        while self.llm.has_unfinished_requests():
            self.step()

    def run(self, name: str, ids: Sequence[int], tokens: int = 4, **params: Any) -> Any:
        """Run one request to its end and return its output."""
        self.add(name, ids, tokens, **params)
        self.finish()
        return self.results[name]

    def run_beside(self, name: str, ids: Sequence[int], tokens: int = 4) -> None:
        """Run one request to its end while others go on."""
        self.add(name, ids, tokens)
        while name not in self.results:
            self.step()


def entry() -> Any:
    """Return the plugin's entry hooks in this process."""
    import importlib

    package = kvctl.plugin.load_agent()
    return importlib.import_module(f"{package.__name__}.engines.vllm.entry")._entry


@contextmanager
def engine_in_process(model: Path, *, pages: int, agent: bool = True, **arguments: Any) -> Iterator[Engine]:
    """Start an engine with the agent in it, until the context is left."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    with engine_env.short_folder() as runtime:
        changed = {"KVCTL_RUNTIME_DIR": str(runtime), "KVCTL_ALLOW_CHANGES": "1", "KVCTL_AGENT": "1" if agent else "0"}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            kvctl.plugin.register_vllm()
            fields = {
                "model": str(model),
                "dtype": "bfloat16",
                "enforce_eager": True,
                "max_model_len": 1024,
                "block_size": BLOCK,
                "num_gpu_blocks_override": pages,
                "max_num_batched_tokens": 256,
                "max_num_seqs": 8,
                "enable_prefix_caching": True,
                "disable_log_stats": True,
            }
            llm = LLMEngine.from_engine_args(EngineArgs(**{**fields, **arguments}))
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        try:
            yield Engine(llm, runtime)
        finally:
            llm.engine_core.shutdown()
