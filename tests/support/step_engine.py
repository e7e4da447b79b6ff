"""vLLM's real schedulers driven without a model, with the truth about every slot kept beside them.

A step "computes" when its output is processed, the latest moment it can: it writes the slots of its tokens, and
writes them as spoiled when a slot that it reads does not hold what the request's prefix promises. So the state of any
page can be compared with what the commit fence says. Needs vLLM.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.engines.vllm.pool import VllmPool
from agent.feedformat import step_of
from agent.probe.feed import Feed

BLOCK = 16
SAMPLED = 5
EBB_REQUESTS = 3
PATIENT_PRIORITY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One configuration of the scheduler and its load."""

    policy: str
    asynchronous: bool
    in_flight: int
    pages: int = 160
    seed: int = 1
    requests: int = 10
    """Requests that are kept waiting or running."""
    wave_steps: int = 0
    """Steps of a wave: every other one only :data:`EBB_REQUESTS` are kept; 0: no waves."""
    patient: int = 2
    """Long requests of the lowest priority among them."""
    patient_tokens: tuple[int, int] = (1000, 1400)
    chunk: int = 80
    """Most tokens of a long prompt in one step."""
    outputs: tuple[int, int] = (10, 90)
    """Fewest and most output tokens of the short ones."""


@dataclass(slots=True)
class Verdicts:
    """Registrations (page, stamp) by what the fence said and what was true."""

    never: set[tuple[int, int]] = field(default_factory=set)
    """Named never-computed."""
    never_falsely: set[tuple[int, int]] = field(default_factory=set)
    """Named never-computed, and computed."""
    missed: set[tuple[int, int]] = field(default_factory=set)
    """Called committed, and never computed."""
    tainted: set[tuple[int, int]] = field(default_factory=set)
    """Named tainted."""
    tainted_falsely: set[tuple[int, int]] = field(default_factory=set)
    """Named tainted, and right."""
    tainted_missed: set[tuple[int, int]] = field(default_factory=set)
    """Called committed, and computed from spoiled slots."""
    committed: set[tuple[int, int]] = field(default_factory=set)
    left_over: set[tuple[int, int]] = field(default_factory=set)
    """Never computed, but right by what an earlier owner of the page left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Groups and sizes of a scheduler; as it stands: one full-attention group, small."""

    specs: Sequence[Any] = ()
    """Spec of each group; none: one of full attention."""
    block: int = BLOCK
    """Block of the scheduler: a multiple of every group's."""
    hash_block: int = BLOCK
    max_tokens: int = 2048
    sequences: int = 24
    batched_tokens: int = 512


def make_scheduler(model: Path, setting: Setting, shape: Shape = Shape()) -> Any:
    """Make the scheduler of ``setting`` over the groups of ``shape``."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(sha256)
    cache = CacheConfig(
        block_size=shape.block, gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=True
    )
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),  # a GPU build would look for a GPU
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.sequences,
            max_num_batched_tokens=shape.batched_tokens,
            max_model_len=shape.max_tokens,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=setting.chunk,
            is_encoder_decoder=False,
            async_scheduling=setting.asynchronous,
            policy=setting.policy,
        ),
        model_config=ModelConfig(model=str(model), dtype="bfloat16", seed=0, max_model_len=shape.max_tokens),
        cache_config=cache,
    )
    config.scheduler_config.async_scheduling = setting.asynchronous  # the CPU platform turns it off
    cache.num_gpu_blocks = setting.pages
    specs = shape.specs or [FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)]
    return (AsyncScheduler if setting.asynchronous else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=setting.pages,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)],
        ),
        block_size=shape.block,
        hash_block_size=shape.hash_block,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )


@dataclass(slots=True)
class Write:
    """What one request does in one step: slots ``start .. end`` on ``pages``; ``chain`` is what they must hold."""

    pages: list[int]
    start: int
    end: int
    chain: list[int]


class StepEngine:
    """A scheduler, its feed, and the truth about its slots.

    Args:
        model: Folder with a model's configuration.
        setting: What to run.
    """

    def __init__(self, model: Path, setting: Setting) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        self.setting = setting
        self.scheduler = make_scheduler(model, setting)
        self.rng = random.Random(setting.seed)
        manager = self.scheduler.kv_cache_manager
        self.pool = manager.block_pool
        self.tables = manager.coordinator.single_type_managers[0].req_to_blocks
        self.port = VllmPool(self.pool, manager.coordinator.single_type_managers, owners=(manager, self.scheduler))
        self.feed = Feed(self.port)
        self.feed.install()
        self.preemptions = 0
        self.requests = 0
        self.verdicts = Verdicts()
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._slots: list[list[Any]] = [[None] * BLOCK for _ in range(setting.pages)]
        self._chains: dict[str, list[int]] = {}
        self._promised: dict[bytes, int] = {}
        self._batches: deque[tuple[int, Any, list[Write], dict[str, bool]]] = deque()
        self._texts = [[self.rng.randint(1, 900) for _ in range(400)] for _ in range(8)]
        self._step = 0
        self._known: set[int] = set()
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.preemptions += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    # ------------------------------------------------------------------- load

    def add_requests(self) -> None:
        """Keep the scheduler busy with short urgent requests and two long patient ones."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        rng, scheduler = self.rng, self.scheduler
        wave = self.setting.wave_steps
        wanted = EBB_REQUESTS if wave and self._step // wave % 2 else self.setting.requests
        while len(scheduler.waiting) + len(scheduler.running) < wanted:
            self.requests += 1
            patient = (
                sum(request.priority == PATIENT_PRIORITY for request in scheduler.requests.values())
                < self.setting.patient
            )
            shared = rng.choice(self._texts)[: rng.choice([0, 0, 160])]
            own = rng.randint(*self.setting.patient_tokens) if patient else rng.randint(10, 50)
            outputs = rng.randint(5, 20) if patient else rng.randint(*self.setting.outputs)
            scheduler.add_request(
                Request(
                    str(self.requests),
                    shared + [rng.randint(1, 900) for _ in range(own)],
                    SamplingParams(max_tokens=outputs, ignore_eos=True),
                    None,
                    block_hasher=self._hasher,
                    priority=PATIENT_PRIORITY if patient else rng.randint(0, 4),
                )
            )

    def relieve(self) -> None:
        """Abort every urgent request, as their clients might: the preempted patient one finds its pages still there."""
        from vllm.v1.request import RequestStatus

        urgent = [name for name, request in self.scheduler.requests.items() if request.priority < PATIENT_PRIORITY]
        self.scheduler.finish_requests(urgent, RequestStatus.FINISHED_ABORTED)

    def step(self, observe: Callable[[], object] | None = None) -> None:
        """Schedule once; process an output when enough steps are in flight, then call ``observe``."""
        self._step += 1
        self.feed.before_schedule(self._step)
        output = self.scheduler.schedule()
        self.feed.after_schedule(self._step, output.num_scheduled_tokens)
        self._note_left_over()
        writes, sampled = self._plan(output)
        self._batches.append((self._step, output, writes, sampled))
        self.feed.shadow()
        if len(self._batches) > self.setting.in_flight:
            self._process()
            if observe is not None:
                observe()

    def _process(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        step, output, writes, sampled = self._batches.popleft()
        self._compute(writes)
        names = list(output.num_scheduled_tokens)
        self.feed.before_update(step)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[SAMPLED] if sampled[name] else [] for name in names],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        self.feed.after_update(step)
        self._note_promises()

    # ------------------------------------------------------------------ truth

    def _chain(self, request: Any) -> list[int]:
        tokens = request._all_token_ids
        chain = self._chains.setdefault(request.request_id, [])
        while len(chain) < len(tokens):
            chain.append(hash((chain[-1] if chain else 0, tokens[len(chain)])))
        return chain

    def _note_promises(self) -> None:
        for request in self.scheduler.requests.values():
            chain = self._chain(request)
            for index, key in enumerate(request.block_hashes):
                self._promised[key] = chain[(index + 1) * BLOCK - 1]

    def _plan(self, output: Any) -> tuple[list[Write], dict[str, bool]]:
        writes, sampled = [], {}
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            end = request.num_computed_tokens
            chain = list(self._chain(request))
            while len(chain) < end:  # tokens in flight are not known to the scheduler yet
                chain.append(hash((chain[-1], SAMPLED)))
            pages = [block.block_id for block in self.tables[name]]
            writes.append(Write(pages, end - count, end, chain))
            sampled[name] = not request.is_prefill_chunk
        return writes, sampled

    def _compute(self, writes: list[Write]) -> None:
        """A forward pass: all writes, then all reads."""
        for write in writes:
            for token in range(write.start, write.end):
                self._slots[write.pages[token // BLOCK]][token % BLOCK] = write.chain[token]
        for write in writes:
            read = (self._slots[write.pages[token // BLOCK]][token % BLOCK] for token in range(write.start))
            if any(found != wanted for found, wanted in zip(read, write.chain, strict=False)):
                for token in range(write.start, write.end):
                    self._slots[write.pages[token // BLOCK]][token % BLOCK] = ("spoiled", write.chain[token])

    def _right(self, page: int, key: bytes) -> bool:
        slots = self._slots[page]
        promised = self._promised.get(key[:-4])
        whole = None not in slots and not any(isinstance(slot, tuple) for slot in slots)
        return promised is not None and slots[-1] == promised and whole

    def _spoiled(self, page: int) -> bool:
        return any(isinstance(slot, tuple) for slot in self._slots[page])

    def _note_left_over(self) -> None:
        """A page that is never computed may hold the right bytes from an earlier owner."""
        fresh = self.feed.never_computed() - self._known
        if not fresh:
            return
        self._known |= fresh
        self._note_promises()
        for block in self.pool.blocks:
            stamp = self.feed.stamp_of(block.block_id)
            if stamp in fresh and block.block_hash is not None and self._right(block.block_id, block.block_hash):
                self.verdicts.left_over.add((block.block_id, stamp))

    def judge(self) -> None:
        """Compare the fence with the truth for every page that has a key now."""
        never, tainted = self.feed.never_computed(), self.feed.tainted()
        committed = self.feed.committed_step
        verdicts = self.verdicts
        for block in self.pool.blocks:
            key = block.block_hash
            if key is None:
                continue
            page = block.block_id
            stamp = self.feed.stamp_of(page)
            case = (page, stamp)
            right = self._right(page, key)
            if stamp in never:
                verdicts.never.add(case)
                if right:
                    verdicts.never_falsely.add(case)
            elif step_of(stamp) > committed:
                continue
            elif tainted.get(page) == stamp:
                verdicts.tainted.add(case)
                if right:
                    verdicts.tainted_falsely.add(case)
            else:
                verdicts.committed.add(case)
                if not right:
                    (verdicts.tainted_missed if self._spoiled(page) else verdicts.missed).add(case)
