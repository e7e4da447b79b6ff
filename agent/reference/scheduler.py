"""Who computes what in the next step: continuous batching, chunked prefill, admission, preemption.

Invariant: requests are admitted in order of arrival, a preempted one first; the request that was admitted first is
never preempted for a later one, and one request alone always fits (checked when it is submitted): so somebody always
advances. Called by the engine.
"""

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ..errors import RefusedError
from ..model.decision import Fidelity, Outcome
from ..model.states import State
from .admission import fits, over_cap, pages_needed, too_large
from .config import EngineConfig, Recovery
from .faults import Fault
from .pages import Pages
from .plan import Plan
from .pools import Pools
from .prefetch import ATTEMPTS, Prefetcher
from .request import Request, RequestStatus
from .reuse import Answer, Reuser, ReuseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Tokens of one request to compute in this step."""

    request: Request
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that was admitted in this step, with the plan that recovers its states."""

    request: Request
    plan: Plan
    record: ReuseRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step does."""

    work: tuple[Work, ...]
    admitted: tuple[Admitted, ...]


class Scheduler:
    """Queues and the choice of each step.

    Args:
        engine: Sizes.
        pages: The allocator.
        pools: Groups.
        reuser: Look-up and bind.
        prefetcher: Loads from other tiers.
    """

    def __init__(
        self, engine: EngineConfig, pages: Pages, pools: Pools, reuser: Reuser, prefetcher: Prefetcher
    ) -> None:
        self._engine, self._pages, self._pools = engine, pages, pools
        self._reuser, self._prefetcher = reuser, prefetcher
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.records: deque[ReuseRecord] = deque(maxlen=4096)
        """The latest decisions, oldest first; prefetches that were started among them."""
        self.preemptions = 0
        self.trimmed = 0
        """Idle cached pages evicted because requests waited and the cache was above its share."""

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RefusedError: It could never be admitted.
        """
        longest = len(request.prompt) + request.max_new
        if longest > self._engine.max_tokens:
            raise RefusedError(f"request {request.id} needs {longest} tokens", why=f"limit {self._engine.max_tokens}")
        need = pages_needed(self._pools.specs, longest, self._engine.chunk)
        if pools := too_large(need, self._pages.sizes):
            raise RefusedError(f"request {request.id} can never be admitted", why=f"too few pages: {', '.join(pools)}")
        self.waiting.append(request)

    def schedule(self, step: int) -> Batch:
        """Choose the work of a step. Admitted requests are bound; their recovery is still to be carried out."""
        work: list[Work] = []
        budget, preempted = self._engine.step_tokens, self.preemptions
        for request in list(self.running):
            count = min(len(request.tokens) - request.computed, self._engine.chunk, budget)
            if request not in self.running or count <= 0:
                continue
            if self._make_room(request, request.computed + count):
                work.append(Work(request=request, tokens=count))
                budget -= count
        admitted: list[Admitted] = []
        if self.preemptions == preempted:
            admitted = self._admit(step, budget, work)
        self.trim()
        return Batch(work=tuple(work), admitted=tuple(admitted))

    # --- room --------------------------------------------------------------------------------------------------

    def grow(self, request: Request, tokens: int) -> bool:
        """Extend the tables of a request to so many tokens; all or nothing."""
        with self._pages.lock:
            wanted = {
                name: spec.blocks(tokens) - len(request.tables[name]) for name, spec in self._pools.by_name.items()
            }
            totals: dict[State, int] = {}
            for name, count in wanted.items():
                pool = self._pools.by_name[name].state
                totals[pool] = totals.get(pool, 0) + max(0, count)
                if totals[pool] > self._pages.available(pool):
                    return False
            for name, count in wanted.items():
                if count > 0:
                    spec = self._pools.by_name[name]
                    taken = self._pages.take(spec.id, spec.state, count)
                    request.tables[name] += taken
                    request.generations[name] += [self._pages.generation[page] for page in taken]
            return True

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Grow a request, preempting the youngest ones if need be; False if it was preempted itself."""
        while not self.grow(request, tokens):
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: Request) -> None:
        """Take everything from a running request; it resumes later with whatever is still cached then."""
        self.running.remove(request)
        self._reuser.release(request)
        request.status = RequestStatus.PREEMPTED
        request.preemptions += 1
        request.approximate = False
        request.tier_attempts = 0
        self.preemptions += 1
        self.waiting.appendleft(request)

    def trim(self) -> None:
        """Keep idle cache below its share of each pool while requests wait."""
        if not self.waiting:
            return
        with self._pages.lock:
            for pool, size in self._pages.sizes.items():
                for _ in range(over_cap(self._pages.cached_idle(pool), size, self._engine.cached_share)):
                    self._pages.evict(next(iter(self._pages.evictable[pool])))
                    self.trimmed += 1

    # --- admission ---------------------------------------------------------------------------------------------

    def _admit(self, step: int, budget: int, work: list[Work]) -> list[Admitted]:
        admitted: list[Admitted] = []
        for request in list(self.waiting):
            if len(self.running) >= self._engine.max_batch or budget <= 0:
                break
            if request.transfer is not None:
                continue  # whoever waits for a tier does not hold up the others
            answer = self.try_reuse(request, step)
            if answer is not None and answer.plan.load:
                continue
            if answer is None:
                break  # in order of arrival: nobody overtakes a request that waits for room
            self.waiting.remove(request)
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.tier_attempts = 0
            self.note_admitted(request, answer)
            request.fetched = 0
            admitted.append(Admitted(request=request, plan=answer.plan, record=answer.record))
            count = min(len(request.tokens) - request.computed, self._engine.chunk, budget)
            if self.grow(request, request.computed + count):
                work.append(Work(request=request, tokens=count))
                budget -= count
        return admitted

    def note_admitted(self, request: Request, answer: Answer) -> None:
        """Record the decision under which a request was admitted."""
        del request  # for whoever watches admissions
        self.records.append(answer.record)

    def try_reuse(self, request: Request, step: int) -> Answer | None:
        """Look a request up and bind it, in one critical section; None where it must wait."""
        # The fault lets others in between check and bind, as an engine does that looks up first and allocates later.
        unguarded = self._pages.faults.active(Fault.UNGUARDED_BIND)
        with nullcontext() if unguarded else self._pages.lock:
            answer = self._reuser.look_up(request, step, tier=request.tier_attempts < ATTEMPTS)
            if answer.plan.load:
                if self._prefetcher.start(request, answer.plan.load, step):
                    request.promised = answer.plan.boundary
                    self.records.append(answer.record)
                    return answer
                answer = self._reuser.look_up(request, step, tier=False)
            need = pages_needed(self._pools.specs, len(request.tokens), self._engine.chunk)
            available = {pool: self._pages.available(pool) for pool in self._pages.sizes}
            if not fits(need, available, self._mapped(answer)):
                return None
            for choice in self._fallbacks(answer):
                if self._reuser.bind(request, choice):
                    return choice
            return None

    def _mapped(self, answer: Answer) -> dict[State, int]:
        """Count the pages of a plan that other requests hold, for each pool."""
        counts: dict[State, int] = {}
        for name, spec in answer.held.specs.items():
            for block in range(spec.first_needed(answer.plan.boundary), spec.blocks(answer.plan.boundary)):
                page = answer.held.pages[name][block]
                if page is not None and self._pages.references[page]:
                    counts[spec.state] = counts.get(spec.state, 0) + 1
        return counts

    @staticmethod
    def _fallbacks(answer: Answer) -> list[Answer]:
        """Return the degradation chain from here on: this plan, what is there as it is, nothing."""
        usable = answer.record.usable
        plain = Plan(boundary=usable, routes=(Recovery.MAP,)) if usable else Plan(boundary=0)
        chain = [answer]
        for plan in (plain, Plan(boundary=0)):
            outcome = Outcome.PARTIAL if plan.boundary else Outcome.RECOMPUTE
            record = replace(
                answer.record,
                outcome=outcome,
                reused=plan.boundary,
                routes=plan.routes,
                degraded=False,
                fidelity=Fidelity.EXACT if plan.boundary else Fidelity.RECOMPUTE,
            )
            chain.append(Answer(record=record, plan=plan, held=answer.held))
        return chain
