"""What becomes of pages after tokens were computed: filled, offered to the cache, given back once out of the window.

Invariant: a page is registered only when every token of it is computed, under the key of exactly those tokens.
Called by the engine after each step.
"""

from .config import EngineConfig
from .geometry import GroupSpec, alignment_of
from .pages import Pages, PageState
from .pools import Pools
from .request import Request


def retained(spec: GroupSpec, block: int, boundary: int) -> bool:
    """Tell whether resuming at a boundary needs a block."""
    return spec.first_needed(boundary) <= block < spec.blocks(boundary)


class Committer:
    """Moves pages of requests through fill, register and release.

    Args:
        pages: The allocator.
        pools: Groups.
        engine: Retention policy.
    """

    def __init__(self, pages: Pages, pools: Pools, engine: EngineConfig) -> None:
        self._pages, self._pools, self._interval = pages, pools, engine.retention_interval
        self._alignment = alignment_of(pools.specs)

    def _kept(self, spec: GroupSpec, block: int, request: Request) -> bool:
        """Tell whether the retention policy keeps a block: all, or only what some kept boundary needs."""
        if spec.needs_all or self._interval is None:
            return True
        replay = (len(request.prompt) - 1) // self._alignment * self._alignment
        if retained(spec, block, replay):
            return True
        if not self._interval:
            return False
        end = (block + 1) * spec.block
        return retained(spec, block, -(-end // self._interval) * self._interval)

    def commit(self, request: Request) -> None:
        """Fill and register every block that is complete by now; release those that no later token reads."""
        chain = request.keys()
        with self._pages.lock:
            for name, spec in self._pools.by_name.items():
                table = request.tables[name]
                complete = request.computed // spec.block
                for block in range(request.filled[name], complete):
                    page = table[block]
                    if not page or self._pages.state(page) is not PageState.ALLOCATED:
                        continue
                    self._pages.fill(page)
                    if not request.approximate and self._kept(spec, block, request):
                        end = (block + 1) * spec.block
                        self._pages.register(page, chain.at(end), end, request)
                request.filled[name] = max(request.filled[name], complete)
                if not spec.needs_all:
                    self._drop(table, spec.first_needed(request.computed))

    def _drop(self, table: list[int], first: int) -> None:
        for block in range(min(first, len(table)) - 1, -1, -1):
            if not table[block]:
                break
            self._pages.release(table[block])
            table[block] = 0
