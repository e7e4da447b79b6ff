"""vLLM's engine core around a real scheduler, without a model: what adapter and probe need of it, stepped by hand.

Invariant: every object is of the engine's own class; only the forward pass is missing, its results are made up. So it
runs on any machine, and with engine builds whose kernels the machine does not have. Only ``tests/engine`` uses it.
"""

import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.discovery import EndpointState, discover
from agent.engines.vllm.adapter import VllmAdapter
from agent.model.snapshot import PageColumns
from agent.model.states import KEY_BYTES
from agent.probe.lifecycle import Probe
from agent.session import Session
from tests.support.step_engine import BLOCK, SAMPLED, Setting, make_scheduler

OUTPUTS = 4
"""Tokens that a request generates."""


def bare_core(scheduler: Any, hash_block: int = BLOCK) -> Any:
    """Return an engine core with this scheduler; its constructor, which loads a model, is not run."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    core = object.__new__(EngineCoreProc)
    core.scheduler = scheduler
    core.vllm_config = scheduler.vllm_config
    executor = core.model_executor = object.__new__(UniProcExecutor)
    executor.sleeping_tags = set()
    if not hasattr(UniProcExecutor, "is_sleeping"):  # where it is no property, the constructor sets it
        executor.is_sleeping = False
    core.request_block_hasher = get_request_block_hasher(hash_block, sha256)
    core.input_queue = queue.Queue()
    return core


def made_up_results(scheduler: Any, output: Any) -> Any:
    """Return what a model runner would: one token for each request of the batch whose prompt is computed."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[] if scheduler.requests[name].is_prefill_chunk else [SAMPLED] for name in names],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def distinct_keys(pages: PageColumns) -> int:
    """Return how many (group, key) a page table holds: what the engine's own map has entries for."""
    size = KEY_BYTES
    return len(
        {
            (pages.group[page], bytes(pages.key[page * size : (page + 1) * size]))
            for page, tokens in enumerate(pages.tokens)
            if tokens
        }
    )


class BareEngine:
    """One engine core and its probe.

    Args:
        model: Folder with a model's configuration.
        runtime: Folder for the probe's socket, short.
        pages: Pages of its pool.
    """

    def __init__(self, model: Path, runtime: Path, *, pages: int = 96) -> None:
        setting = Setting(policy="fcfs", asynchronous=False, in_flight=0, pages=pages)
        self.scheduler = make_scheduler(model, setting)
        self.core = bare_core(self.scheduler)
        self.runtime = runtime
        self.hits: dict[str, int] = {}
        """Tokens that the engine says it reused, by request."""
        self._turn = threading.RLock()
        environ = {"KVCTL_RUNTIME_DIR": str(runtime), "KVCTL_ALLOW_CHANGES": "1"}
        self.adapter = VllmAdapter(self.core, served=False)
        self.probe = Probe(self.adapter, turn=self._turn, environ=environ)

    @property
    def pool(self) -> Any:
        """Its block pool."""
        return self.scheduler.kv_cache_manager.block_pool

    def session(self) -> Session:
        """Open a session with it."""
        live = [
            item
            for item in discover({"KVCTL_RUNTIME_DIR": str(self.runtime)})
            if item.state is EndpointState.LIVE and item.pid == os.getpid()
        ]
        assert len(live) == 1, live
        return Session.open(live[0], deadline_s=60.0)

    def add(self, name: str, tokens: Sequence[int], outputs: int = OUTPUTS) -> None:
        """Add a request."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=outputs, ignore_eos=True)
        request = Request(name, list(tokens), sampling, None, block_hasher=self.core.request_block_hasher)
        with self._turn:
            self.scheduler.add_request(request)

    def step(self) -> None:
        """Schedule, dispatch, and process made-up results, as the engine core's own step does."""
        scheduler = self.scheduler
        with self._turn:
            output = scheduler.schedule()
            scheduler.get_grammar_bitmask(output)
            batches = scheduler.update_from_output(output, made_up_results(scheduler, output))
            self.probe.between_steps(idle=False)
        for batch in batches.values():
            for one in batch.outputs:
                if one.prefill_stats is not None:
                    self.hits[one.request_id] = one.prefill_stats.num_cached_tokens

    def run(self, name: str, tokens: Sequence[int], outputs: int = OUTPUTS) -> int:
        """Run a request to its end; return the tokens that the engine reused for it."""
        self.add(name, tokens, outputs)
        while self.scheduler.has_unfinished_requests():
            self.step()
        return self.hits[name]

    def busy(self) -> bool:
        """Whether a request is left."""
        return bool(self.scheduler.has_unfinished_requests())

    def registered(self) -> dict[int, tuple[int, bytes]]:
        """Return group and key of every page that carries one."""
        keyed = [(block.block_id, block.block_hash) for block in self.pool.blocks if block.block_hash is not None]
        return {page: (int.from_bytes(key[-4:], "big"), bytes(key[:KEY_BYTES])) for page, key in keyed}

    def references(self) -> dict[int, int]:
        """Return the engine's own count of every page but the null page."""
        return {block.block_id: block.ref_cnt for block in self.pool.blocks if not block.is_null}

    def free(self) -> set[int]:
        """Return the pages that nobody holds."""
        return {block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()}

    def hooked(self) -> dict[str, Any]:
        """Return everything that the probe may hook: objects and their classes."""
        manager = self.scheduler.kv_cache_manager
        objects = {
            "core": self.core,
            "scheduler": self.scheduler,
            "manager": manager,
            "coordinator": manager.coordinator,
            "pool": manager.block_pool,
            **{f"group{number}": each for number, each in enumerate(manager.coordinator.single_type_managers)},
        }
        return {**objects, **{type(each).__name__: type(each) for each in objects.values()}}
