"""Bringing pages back from another tier: reserve, load, and hand over when acknowledged.

Invariant: a reserved page is under no key until its acknowledged content was written into it; a transfer whose
acknowledgement does not come is given up after a number of steps, and its pages are free again.
Called by the scheduler.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..model.states import State
from .config import EngineConfig
from .lookup import Block
from .pages import Pages
from .pools import Pools
from .recovery import transfer
from .request import Request, RequestStatus
from .tiers import Tiers
from .transfers import Acknowledgement

GIVE_UP_STEPS = 64
ATTEMPTS = 2
"""Prefetches of one admission; after that the request is computed."""
WAIT_BUCKETS_S: Final = (1e-3, 5e-3, 25e-3, 0.1, 0.5, 2.5)
"""Upper bounds of the histogram of waits, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    request: Request
    pages: tuple[int, ...]
    wanted: tuple[tuple[int, bytes, int], ...]
    step: int
    epoch: int
    began: float = field(default_factory=time.monotonic)


class Prefetcher:
    """Loads that requests wait for.

    Args:
        pages: The allocator.
        pools: Tensors.
        tiers: Where pages come from.
        engine: The cap.
    """

    def __init__(self, pages: Pages, pools: Pools, tiers: Tiers, engine: EngineConfig) -> None:
        self._pages, self._pools, self._tiers, self._share = pages, pools, tiers, engine.cached_share
        self._loads: dict[int, _Load] = {}
        self.failed: dict[str, int] = {}
        self.loaded = 0
        self.results = dict.fromkeys(("arrived", "failed", "expired", "dropped"), 0)
        """Loads by their end; dropped: nobody waited any more, or the tiers were lost."""
        self.waits = [0] * (len(WAIT_BUCKETS_S) + 1)
        """Loads by how long a request waited for them, for each of :data:`WAIT_BUCKETS_S` and beyond."""
        self.waited_s = 0.0

    @property
    def given_up(self) -> int:
        """Loads that took longer than a request waits."""
        return self.results["expired"]

    def reserved(self) -> Mapping[State, int]:
        """Return the pages of each pool that wait for an acknowledgement."""
        counts: dict[State, int] = {}
        for load in self._loads.values():
            for page in load.pages:
                pool = self._pages.pool_of[page]
                counts[pool] = counts.get(pool, 0) + 1
        return counts

    def holders(self) -> dict[int, int]:
        """Return references that transfers hold."""
        return {page: 1 for load in self._loads.values() for page in load.pages}

    def start(self, request: Request, blocks: Sequence[Block], step: int) -> bool:
        """Start loading blocks for a request; False where the cap, the pools or the tier do not allow it."""
        specs, chain = self._pools.by_name, request.keys()
        wanted = tuple(
            (specs[name].id, chain.at((block + 1) * specs[name].block), (block + 1) * specs[name].block)
            for name, block in blocks
        )
        counts = dict(self.reserved())
        for group, _, _ in wanted:
            pool = self._pages.pool_for(group)
            counts[pool] = counts.get(pool, 0) + 1
        if any(count > self._pages.sizes[pool] * self._share for pool, count in counts.items()):
            return False
        reserved: list[int] = []

        def load(pages: Sequence[int]) -> int | None:
            reserved.extend(pages)
            return self._tiers.load([(group, key) for group, key, _ in wanted])

        number = transfer(self._pages, wanted, load)
        if number is None:
            return False
        self._loads[number] = _Load(
            request=request,
            pages=tuple(reserved),
            wanted=wanted,
            step=step,
            epoch=self._pages.weights_epoch,
        )
        request.transfer, request.status = number, RequestStatus.PREFETCHING
        request.tier_attempts += 1
        return True

    def acknowledge(self, done: Acknowledgement) -> None:
        """Take the acknowledgement of a load: write, register, and leave the pages to the cache."""
        load = self._loads.pop(done.number, None)
        if load is None:
            return
        good = done.error is None and load.epoch == self._pages.weights_epoch
        with self._pages.lock:
            # Last block first, so that the beginning of the prefix is evicted last.
            for index in range(len(load.pages) - 1, -1, -1):
                page, (_, key, tokens) = load.pages[index], load.wanted[index]
                if good:
                    self._pools.restore(page, done.content[index])
                    self._pages.fill(page)
                    self._pages.register(page, key, tokens, load.request)
                self._pages.release(page)
        if good:
            self.loaded += len(load.pages)
            load.request.fetched = max(load.request.fetched, load.request.promised)
        else:
            reason = done.error or "weights"
            self.failed[reason] = self.failed.get(reason, 0) + 1
        self._end(load, "arrived" if good else "failed")

    def _end(self, load: _Load, result: str) -> None:
        """Count a load, and wake its request."""
        waited_s = time.monotonic() - load.began
        self.results[result] += 1
        self.waits[bisect_left(WAIT_BUCKETS_S, waited_s)] += 1
        self.waited_s += waited_s
        request = load.request
        request.transfer, request.promised = None, 0
        if request.status is RequestStatus.PREFETCHING:
            request.status = RequestStatus.WAITING

    def expire(self, step: int) -> None:
        """Give up transfers whose acknowledgement is overdue."""
        for number in [number for number, load in self._loads.items() if step - load.step > GIVE_UP_STEPS]:
            self._loads[number].request.tier_attempts = ATTEMPTS
            self.drop(number, "expired")

    def drop(self, number: int, result: str = "dropped") -> None:
        """Give up one transfer."""
        load = self._loads.pop(number, None)
        if load is None:
            return
        self._tiers.transfers.abandon(number)
        for page in load.pages:
            self._pages.release(page)
        self._end(load, result)

    def drop_all(self) -> None:
        """Give up every transfer."""
        for number in list(self._loads):
            self.drop(number)
