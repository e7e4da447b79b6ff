"""``try_reuse``: check, choose and bind in one critical section, and the record of what was decided.

Invariant: between the check and the bind nobody else can change a page (the allocator's lock is held), and what is
bound carries the generation it was checked under, so that use can be revalidated (``Binding violations``). Called by
the scheduler.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..model.decision import Fidelity, Outcome, Phase, Reason
from ..model.states import State
from .config import Recovery
from .faults import Fault
from .geometry import GroupName, hash_unit_of
from .keys import Chain
from .lookup import Held, TierStatus, check_on_disk, read_held
from .pages import NULL, IllegalMoveError, OutOfPagesError, Pages
from .plan import Plan, Planner
from .pools import Pools
from .recovery import map_in_place
from .request import Request
from .use import Violation

_HOLE = {
    GroupName.WINDOW: Reason.WINDOW_HOLE,
    GroupName.CSA_TAIL: Reason.TAIL_MISSING,
    GroupName.HCA_TAIL: Reason.TAIL_MISSING,
    GroupName.INDEXER: Reason.INDEXER_UNSYNCED,
    GroupName.CHECKPOINT: Reason.CHECKPOINT_MISSING,
}
_SPARSE = frozenset({GroupName.WINDOW, GroupName.CSA_TAIL, GroupName.HCA_TAIL, GroupName.CHECKPOINT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseRecord:
    """One look-up and what was decided."""

    id: int
    time_ns: int
    step: int
    request: str
    phase: Phase
    outcome: Outcome
    admitted: bool
    """False for a look-up that only started a prefetch: rates count admissions."""
    lookup_tokens: int
    logical: int
    usable: int
    """Largest boundary at which everything was there."""
    reused: int
    """Tokens not computed through all layers: ``usable``, or more where something was recovered."""
    external: int
    """Tokens beyond ``usable`` that are being brought from another tier."""
    limiting: GroupName | None
    reason: Reason | None
    routes: tuple[Recovery, ...]
    degraded: bool
    fidelity: Fidelity
    per_group: tuple[int, ...]
    lookups: int
    duration_ns: int
    chain: tuple[bytes, ...]
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One bind: the pages of a plan, under the generations of the check and of the moment after it."""

    step: int
    request: str
    checked: tuple[tuple[int, int], ...]
    found: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of ``try_reuse``."""

    record: ReuseRecord
    plan: Plan
    held: Held


def _own_hit(held: Held, name: GroupName, alignment: int) -> int:
    """Return the largest aligned boundary at which one group alone could resume."""
    spec, pages = held.specs[name], held.pages[name]
    for boundary in range(held.limit // alignment * alignment, 0, -alignment):
        blocks = range(spec.first_needed(boundary), spec.blocks(boundary))
        if (held.run[name] >= len(blocks)) if spec.needs_all else all(pages[b] is not None for b in blocks):
            return boundary
    return 0


class Reuser:
    """Looks requests up and binds what they can reuse.

    Args:
        pages: The allocator.
        pools: Groups.
        planner: The rules of choice.
        ask: Asks the other tiers for (group, key); None without tiers.
    """

    def __init__(
        self, pages: Pages, pools: Pools, planner: Planner, ask: Callable[[int, bytes], TierStatus] | None
    ) -> None:
        self._pages, self._pools, self._planner, self._ask = pages, pools, planner, ask
        self._serial = 0
        self.violations: deque[Violation] = deque(maxlen=256)
        """Pages that were not what had been checked, found at the bind or later at use."""
        self.bound: deque[Bound] = deque(maxlen=64)
        """The latest binds that went through."""
        self.moved = 0
        """Binds that found a checked page gone; always 0 while check and bind are one critical section."""
        self.between: Callable[[], None] | None = None
        """Called between check and bind when the guard is off (fault injection)."""

    def look_up(self, request: Request, step: int, *, tier: bool = True) -> Answer:
        """Check a request and choose; call it with the lock held and bind before giving it back."""
        began = time.perf_counter_ns()
        request.lookups += 1
        chain, specs = request.keys(), self._pools.by_name
        held = read_held(self._pages, specs, chain, 0 if request.skip_cache else request.limit)
        logical = held.logical()
        deepest = max(logical, self._tier_depth(held, request))
        usable = self._planner.usable(held) if logical else 0
        fifth = None if self._ask is None or not tier else partial(check_on_disk, held, chain, self._ask)
        plan = self._planner.choose(held, len(request.tokens), deepest, fifth)
        record = self._record(request, step, held, plan, logical, usable, time.perf_counter_ns() - began)
        return Answer(record=record, plan=plan, held=held)

    def usable(self, keys: Sequence[bytes], limit: int) -> int:
        """Return the largest boundary at which a chain of keys could be resumed now, without any effect."""
        chain = Chain.of(hash_unit_of(self._pools.specs), keys)
        bound = min(limit, len(keys) * chain.unit)
        with self._pages.lock:
            return self._planner.usable(read_held(self._pages, self._pools.by_name, chain, bound))

    def _tier_depth(self, held: Held, request: Request) -> int:
        """Return the largest boundary of which another tier holds anything."""
        if self._ask is None or request.skip_cache:
            return 0
        best, chain = 0, request.keys()
        for name, spec in held.specs.items():
            for block in range(len(held.pages[name]) - 1, best // spec.block - 1, -1):
                if self._ask(spec.id, chain.at((block + 1) * spec.block)) is not TierStatus.ABSENT:
                    best = max(best, (block + 1) * spec.block)
                    break
        return best

    def bind(self, request: Request, answer: Answer) -> bool:
        """Bind a plan: map what is there, allocate what will be recovered; False when the pools are too full.

        The caller holds the lock since ``look_up``.
        """
        plan, held = answer.plan, answer.held
        request.tables = {name: [] for name in held.specs}
        request.generations = {name: [] for name in held.specs}
        request.filled = dict.fromkeys(held.specs, 0)
        request.computed = 0
        if not plan.boundary:
            return True
        found: dict[GroupName, list[tuple[int, int]]] = {}
        for name, spec in held.specs.items():
            first, row = spec.first_needed(plan.boundary), [(0, 0)] * spec.blocks(plan.boundary)
            extra = plan.extra_window if name is GroupName.WINDOW else ()
            for block in {*range(first, len(row)), *extra}:
                page = held.pages[name][block]
                if page is not None:
                    row[block] = (page, held.generations[page])
            found[name] = row
        if self._pages.faults.active(Fault.UNGUARDED_BIND) and self.between is not None:
            self.between()
        try:
            map_in_place(self._pages, request, found)
            self._reserve(request, plan)
        except OutOfPagesError:
            self.release(request)
            return False
        except IllegalMoveError:
            # Only without the guard: a page that was checked is not in the cache any more.
            self.moved += 1
            self._note_moved(request, answer.record.step, found)
            self.release(request)
            return False
        checked = tuple(pair for row in found.values() for pair in row if pair[0])
        now = tuple((page, self._pages.generation[page]) for page, _ in checked)
        self.bound.append(Bound(step=answer.record.step, request=request.id, checked=checked, found=now))
        request.computed = plan.boundary
        request.approximate = plan.fidelity is Fidelity.REPLAY_APPROXIMATE
        return True

    def _note_moved(self, request: Request, step: int, found: dict[GroupName, list[tuple[int, int]]]) -> None:
        """Keep which of the checked pages are not what they were: other generation, or not under the key any more."""
        pages, chain = self._pages, request.keys()
        moved, exchanged = [], []
        for name, row in found.items():
            spec = self._pools.by_name[name]
            for block, (page, then) in enumerate(row):
                key = chain.at((block + 1) * spec.block)
                if page and pages.generation[page] != then:
                    moved.append((page, then, pages.generation[page]))
                if page and pages.key[page] != key:
                    exchanged.append((page, pages.find(spec.id, key) or NULL))
        violation = Violation(step=step, request=request.id, moved=tuple(moved), exchanged=tuple(exchanged))
        self.violations.append(violation)

    def _reserve(self, request: Request, plan: Plan) -> None:
        """Allocate the pages that recovery will write."""
        for name, blocks in plan.missing.items():
            spec = self._pools.by_name[name]
            for block in sorted(blocks):
                page = self._pages.take(spec.id, spec.state, 1)[0]
                request.tables[name][block] = page
                request.generations[name][block] = self._pages.generation[page]

    def release(self, request: Request) -> None:
        """Give back every page of a request."""
        with self._pages.lock:
            for table in request.tables.values():
                for block in range(len(table) - 1, -1, -1):
                    # Last block first: the beginning of a prefix is worth most and is evicted last.
                    if table[block]:
                        self._pages.release(table[block])
                        table[block] = 0
        request.tables, request.generations, request.filled = {}, {}, {}
        request.computed = 0

    # --- the record --------------------------------------------------------------------------------------------

    def _record(
        self, request: Request, step: int, held: Held, plan: Plan, logical: int, usable: int, duration_ns: int
    ) -> ReuseRecord:
        self._serial += 1
        alignment = self._planner.alignment
        per_group = tuple(_own_hit(held, name, alignment) if logical else 0 for name in held.specs)
        target = logical // alignment * alignment
        limiting = None
        if usable < target:
            limiting = min(held.specs, key=lambda name: (per_group[held.specs[name].id], held.specs[name].id))
        prefetching = bool(plan.load)
        if prefetching:
            outcome = Outcome.PREFETCHING
        elif not plan.boundary:
            outcome = Outcome.RECOMPUTE
        else:
            whole = plan.boundary == usable and usable == target
            outcome = Outcome.REUSE if whole else Outcome.PARTIAL
        return ReuseRecord(
            id=self._serial,
            time_ns=time.time_ns(),
            step=step,
            request=request.id,
            phase=Phase.RESUMED if request.preemptions else Phase.FIRST,
            outcome=outcome,
            admitted=not prefetching,
            lookup_tokens=len(request.tokens),
            logical=logical,
            usable=usable,
            reused=0 if prefetching else plan.boundary,
            external=plan.boundary - usable if prefetching else 0,
            limiting=limiting,
            reason=self._reason(request, held, plan, logical, limiting),
            routes=plan.routes,
            degraded=plan.degraded,
            fidelity=plan.fidelity if plan.boundary else Fidelity.RECOMPUTE,
            per_group=per_group,
            lookups=request.lookups,
            duration_ns=duration_ns,
            chain=tuple(request.keys().keys),
            skipped=request.skip_cache,
        )

    def _reason(
        self, request: Request, held: Held, plan: Plan, logical: int, limiting: GroupName | None
    ) -> Reason | None:
        alignment = self._planner.alignment
        if request.skip_cache:
            return Reason.SKIPPED
        if held.limit < alignment:
            return Reason.BELOW_GRANULARITY
        if held.stale:
            return Reason.FINGERPRINT
        if plan.waiting or plan.load:
            return Reason.NOT_READY
        if limiting is not None:
            return self._lost(request, held, limiting, logical // alignment * alignment)
        if not logical:
            return self._lost(request, held, None, held.limit // alignment * alignment)
        return None if logical % alignment == 0 else Reason.ALIGNMENT

    def _lost(self, request: Request, held: Held, limiting: GroupName | None, boundary: int) -> Reason:
        """Name what became of the first page that a group lacks for a boundary."""
        names = list(held.specs) if limiting is None else [limiting]
        for name in names:
            spec = held.specs[name]
            for block in range(spec.first_needed(boundary), spec.blocks(boundary)):
                if held.pages[name][block] is None:
                    cause = self._pages.ghosts.get((spec.id, request.keys().at((block + 1) * spec.block)))
                    if cause == "invalidated":
                        return Reason.INVALIDATED
                    if cause == "evicted":
                        return _HOLE.get(name, Reason.EVICTED) if limiting is not None else Reason.EVICTED
                    if limiting is not None:
                        return Reason.NOT_RETAINED if name in _SPARSE else Reason.COLD
        return Reason.COLD


def pool_counts(pages: Pages, request: Request) -> dict[State, int]:
    """Return how many pages of a request's tables other requests hold as well, for each pool."""
    shared: dict[State, int] = {}
    for page, _ in request.bound():
        if pages.references[page] > 1:
            pool = pages.pool_of[page]
            shared[pool] = shared.get(pool, 0) + 1
    return shared
