"""The engine: takes requests, runs steps, answers tokens.

Invariant: single-threaded apart from the transfers and whoever evicts through ``pages`` (which has its own lock);
every page read in a step was revalidated against the generation it was bound under. The adapter and the demo call it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..model.groups import Geometry
from ..model.states import State
from .admission import pages_needed
from .commit import Committer
from .config import EngineConfig, ModelConfig, Recovery, check
from .degrade import recompute_layers
from .disk import Disk
from .faults import Fault, Faults
from .fingerprint import contract_of, fingerprint_of
from .geometry import GroupName, alignment_of, describe, hash_unit_of
from .graph import Row, StaticDecode
from .keys import Chain, Identity
from .pages import Pages
from .plan import Plan, Planner
from .pools import Pools
from .prefetch import Prefetcher
from .recovery import realign_window, rebuild_indexer, recompute_tail
from .request import Request, RequestStatus
from .reuse import Reuser
from .scheduler import Admitted, Batch, Scheduler, Work
from .span import logits_of, span_forward
from .tiers import Tiers
from .transfers import Transfers
from .use import revalidate
from .weights import Weights, build_weights, dtype_of

_COPIES = 16
"""Copies between tiers that are worked off in a step where they have no thread of their own."""

Observer = Callable[[Request, int, torch.Tensor, torch.Tensor], None]
"""Told (request, first position, hidden [n, width], logits [n, vocabulary]) of everything computed."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What the engine did, since it started."""

    steps: int = 0
    computed_tokens: int = 0
    replayed_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    restarts: int = 0


class Engine:
    """A small hybrid-attention inference engine.

    Args:
        model: Shapes of the model.
        config: Sizes and policies.
        faults: Faults to act out.
        weights: Use these instead of drawing them from the model's seed.
        threaded_transfers: Copy between tiers in a thread of its own.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        *,
        faults: Faults | None = None,
        weights: Weights | None = None,
        threaded_transfers: bool = False,
    ) -> None:
        check(model, config)
        self.model, self.config, self.faults = model, config, faults or Faults()
        self.weights = weights or build_weights(model, config.device)
        sizes = {
            State.COMPRESSED: config.compressed_pages,
            State.TAIL: config.tail_pages,
            State.SWA: config.window_pages,
            State.INDEXER: config.indexer_pages,
        }
        self.pages = Pages(sizes, faults=self.faults, ghosts=config.ghosts)
        self.pools = Pools(model, config, self.pages)
        self.fingerprint = fingerprint_of(self.contract, self.weights)
        """What the cache was filled under."""
        self.transfers = Transfers(self.faults, threaded=threaded_transfers)
        self.tiers = self._open_tiers()
        self.pages.on_copy_out = self._copy_out if self.tiers.on else None
        self.pages.on_clear = self.pools.poison if config.poison else None
        self.alignment = alignment_of(self.pools.specs)
        planner = Planner(model=model, engine=config, alignment=self.alignment)
        asks = self.tiers.on and Recovery.TRANSFER in config.routes
        self.reuser = Reuser(self.pages, self.pools, planner, self.tiers.ask if asks else None)
        self.prefetcher = Prefetcher(self.pages, self.pools, self.tiers, config)
        self.scheduler = Scheduler(config, self.pages, self.pools, self.reuser, self.prefetcher)
        self.committer = Committer(self.pages, self.pools, config)
        self.decode = StaticDecode(self.weights, self.pools, config, self.faults)
        self.requests: dict[str, Request] = {}
        self.counters = Counters()
        self.violations = self.reuser.violations
        self.binds = 0
        """Times the pages of a request were revalidated."""
        self.recovered: dict[State, str] = {}
        """Recovery route that each state last went through."""
        self.observer: Observer | None = None
        self._geometry = describe(model, config)
        self.woken = threading.Event()
        """Set by whoever wants an idle engine to pass a safe point soon."""

    @property
    def contract(self) -> dict[str, str]:
        """The operator contract as named fields."""
        return contract_of(self.model, self.config)

    def need_of(self, request: Request) -> int:
        """Return the pages that a request needs at once, over all pools."""
        return sum(pages_needed(self.pools.specs, len(request.tokens), self.config.chunk).values())

    def _open_tiers(self) -> Tiers:
        pool, disk = None, None
        if self.config.host_pages:
            elements = max(spec.elements for spec in self.pools.specs)
            pool = torch.zeros(self.config.host_pages, elements, dtype=dtype_of(self.model))
            if self.config.device.startswith("cuda"):
                pool = pool.pin_memory()
        if self.config.disk_folder is not None:
            disk = Disk(Path(self.config.disk_folder), self.fingerprint, faults=self.faults)
        return Tiers(self.transfers, pool=pool, disk=disk, backlog=self.config.store_backlog)

    def _copy_out(self, page: int) -> None:
        """Offer a page that is being evicted to the other tiers."""
        key = self.pages.key[page]
        if key is not None and self.pages.epoch[page] == self.pages.weights_epoch:
            self.tiers.offer(self.pages.group[page], key, self.pages.tokens[page], self.pools.content(page))

    def describe(self) -> Geometry:
        """Return the cache groups in the words of the domain model."""
        return self._geometry

    # --- requests ----------------------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        max_new: int,
        *,
        identity: Identity | None = None,
        skip_cache: bool = False,
    ) -> Request:
        """Queue a request.

        Args:
            name: Its id, unique among living requests.
            prompt: Token ids, at least one.
            max_new: Tokens to generate, at least one.
            identity: Salt and adapter.
            skip_cache: Do not read the cache.

        Raises:
            RefusedError: It could never be admitted.
        """
        identity = identity or Identity()
        request = Request(
            id=name,
            prompt=tuple(prompt),
            max_new=max_new,
            chain=Chain(hash_unit_of(self.pools.specs), identity),
            identity=identity,
            skip_cache=skip_cache,
        )
        request.tokens = list(prompt)
        request.arrived_step = self.counters.steps
        self.scheduler.submit(request)
        self.requests[name] = request
        return request

    def cancel(self, name: str) -> None:
        """End a request at once, wherever it is; what it has computed stays in the cache."""
        request = self.requests.pop(name, None)
        if request is None:
            return
        if request in self.scheduler.running:
            self.scheduler.running.remove(request)
        if request in self.scheduler.waiting:
            self.scheduler.waiting.remove(request)
        request.status = RequestStatus.CANCELLED
        if request.transfer is not None:
            self.prefetcher.drop(request.transfer)
        self.reuser.release(request)
        self.counters.cancelled += 1

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self.scheduler.running and not self.scheduler.waiting

    def run(self, limit: int = 100_000) -> None:
        """Run steps until no request is left.

        Raises:
            RuntimeError: More than ``limit`` steps: nobody advances.
        """
        for _ in range(limit):
            if self.idle:
                return
            self.step()
        raise RuntimeError(f"requests left after {limit} steps")

    # --- one step ----------------------------------------------------------------------------------------------

    def step(self) -> list[Request]:
        """Run one step; returns the requests that finished in it."""
        self.counters.steps += 1
        self.transfers.pump(_COPIES)
        self.collect()
        done = self.execute(self.scheduler.schedule(self.counters.steps))
        self.between()
        return done

    def between(self) -> None:
        """A point between two steps at which nothing of the engine runs; for whoever attached itself."""

    def pause(self, seconds: float) -> None:
        """Wait while there is nothing to do, at most so long, or until somebody wakes the engine."""
        self.woken.wait(seconds)
        self.woken.clear()
        self.between()

    def execute(self, batch: Batch) -> list[Request]:
        """Carry out what was scheduled; returns the requests that finished."""
        for entry in batch.admitted:
            if self._valid(entry.request):
                self._recover(entry)
        work = [item for item in batch.work if self._valid(item.request)]
        self._prefill([item for item in work if item.tokens > 1])
        self._decode([item.request for item in work if item.tokens == 1])
        return self._finish(work)

    def collect(self) -> None:
        """Take the acknowledgements of transfers."""
        with self.pages.lock:
            for done in self.transfers.collect():
                if not self.tiers.acknowledge(done):
                    self.prefetcher.acknowledge(done)
            self.prefetcher.expire(self.counters.steps)

    def _valid(self, request: Request) -> bool:
        """Revalidate what a request is about to read; a page that moved sends it back to the queue."""
        if request.status is not RequestStatus.RUNNING:
            return False
        self.binds += 1
        violation = revalidate(self.pages, self.pools.by_name, request, self.counters.steps)
        if violation is not None:
            self.violations.append(violation)
            self.scheduler.preempt(request)
        return violation is None

    def _recover(self, entry: Admitted) -> None:
        """Carry out what a plan recovers by computing, each state by its own route, then offer the pages."""
        request, plan, boundary = entry.request, entry.plan, entry.plan.boundary
        missing, weights, pools = plan.missing, self.weights, self.pools
        if plan.degraded:
            self.counters.replayed_tokens += recompute_layers(
                weights, pools, request, boundary, missing, chunk=self.config.chunk
            )
        else:
            if GroupName.INDEXER in missing:
                self.counters.replayed_tokens += rebuild_indexer(
                    weights, pools, request, boundary, missing[GroupName.INDEXER], chunk=self.config.chunk
                )
            if GroupName.WINDOW in missing:
                bounded = self.config.bounded_replay
                self.counters.replayed_tokens += realign_window(
                    weights, pools, request, boundary, missing[GroupName.WINDOW], bounded=bounded
                )
            tails: dict[GroupName, frozenset[int]] = {
                name: blocks for name, blocks in missing.items() if pools.by_name[name].state is State.TAIL
            }
            if tails:
                self.counters.replayed_tokens += recompute_tail(weights, pools, request, boundary, tails)
        by_state = {State.INDEXER: Recovery.INDEXER, State.SWA: Recovery.WINDOW, State.TAIL: Recovery.TAIL}
        for name in () if plan.degraded else missing:
            state = pools.by_name[name].state
            self.recovered[state] = by_state[state]
        self._unbind_extra(request, plan)
        if plan.boundary:
            self.committer.commit(request)

    def _unbind_extra(self, request: Request, plan: Plan) -> None:
        """Give back the window pages that only made a recovery short."""
        table = request.tables[GroupName.WINDOW] if plan.extra_window else []
        first = self.pools.by_name[GroupName.WINDOW].first_needed(plan.boundary) if table else 0
        for block in plan.extra_window:
            if block < first and table[block]:
                self.pages.release(table[block])
                table[block] = 0

    def _prefill(self, work: Sequence[Work]) -> None:
        for item in work:
            request, start = item.request, item.request.computed
            tokens = request.tokens[start : start + item.tokens]
            layers = range(len(self.model.layers))
            pasts = [self.pools.gather(layer, request.tables, start) for layer in layers]
            hidden, fresh = span_forward(self.weights, tokens, start, pasts, checkpoint=self.pools.checkpoint)
            for layer in layers:
                self.pools.scatter(layer, request.tables, start, pasts[layer], fresh[layer])
            whole = self.observer is not None
            logits = logits_of(self.weights, hidden if whole else hidden[-1:])
            self._computed(request, hidden, logits)

    def _decode(self, requests: Sequence[Request]) -> None:
        for first in range(0, len(requests), self.config.max_batch):
            part = requests[first : first + self.config.max_batch]
            rows = [
                Row(token=request.tokens[request.computed], position=request.computed, tables=request.tables)
                for request in part
            ]
            hidden, logits = self.decode.run(rows)
            for index, request in enumerate(part):
                self._computed(request, hidden[index : index + 1], logits[index : index + 1])

    def _computed(self, request: Request, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """Book tokens as computed, offer their pages, and sample where the last token was among them."""
        if self.observer is not None:
            self.observer(request, request.computed, hidden, logits)
        request.computed += hidden.shape[0]
        self.counters.computed_tokens += hidden.shape[0]
        self.committer.commit(request)
        if request.computed == len(request.tokens):
            request.tokens.append(int(logits[-1].argmax()))
            self.counters.generated_tokens += 1
            if request.first_token_step is None:
                request.first_token_step = self.counters.steps

    def _finish(self, work: Sequence[Work]) -> list[Request]:
        done = [item.request for item in work if item.request.done]
        for request in done:
            self.scheduler.running.remove(request)
            self.reuser.release(request)
            request.status = RequestStatus.FINISHED
            del self.requests[request.id]
            self.counters.finished += 1
        return done

    # --- weights -----------------------------------------------------------------------------------------------

    def load_weights(self, seed: int) -> None:
        """Replace the weights in place and drop everything that was computed under the old ones.

        With the fault ``change-weights`` the cache is not reset, as an engine that forgets it.
        """
        fresh = build_weights(replace(self.model, seed=seed), self.config.device)
        for (_, old), (_, new) in zip(self.weights.tensors(), fresh.tensors(), strict=True):
            old.copy_(new)
        if self.faults.take(Fault.CHANGE_WEIGHTS):
            return
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        with self.pages.lock:
            self.prefetcher.drop_all()
            self.pages.invalidate_all()
            self.pages.weights_epoch += 1
            self.fingerprint = fingerprint_of(self.contract, self.weights)
            self.tiers.rebrand(self.fingerprint)

    def restart(self) -> None:
        """Do what a restart of the process does to the cache: device and host memory are gone, the disk is read anew.

        Running requests go back to the queue, as clients that ask again.
        """
        self.counters.restarts += 1
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        with self.pages.lock:
            self.prefetcher.drop_all()
            self.pages.invalidate_all()
            self.pages.ghosts.clear()
            self.tiers.forget_host()
            if self.tiers.disk is not None:
                self.tiers.disk.rescan()

    def close(self) -> None:
        """End the transfer thread and give the disk folder back."""
        self.transfers.close()
        if self.tiers.disk is not None:
            self.tiers.disk.close()
