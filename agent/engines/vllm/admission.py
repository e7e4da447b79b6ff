"""What vLLM's admission decides with: free pages, what is spoken for, and what each waiting request needs.

Invariant: asks the engine's own formulas with arguments for which they change nothing, and takes back the empty table
that one of them leaves behind. Engine's thread, between two steps.

A waiting request has to pass two checks in one call: its whole sequence under the cap that recycling groups have (only
where the scheduler reserves whole prompts), and its first chunk without that cap. Either may be the larger one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ...model.evidence import Admission
from ...model.states import GroupId

WAITING: Final = frozenset({"WAITING", "PREEMPTED"})
"""States of requests that hold no page and ask for admission."""

ASKED: Final = 32
"""Waiting requests that are asked for, oldest first: a bound on the time at the safe point."""


BUDGET_NS: Final = 5_000_000
"""Time at the safe point after which no further request is asked for: those with a long prefix to look up take some."""


def read(scheduler: Any) -> Admission:
    """Read what the next admission is decided with."""
    manager = scheduler.kv_cache_manager
    managers = manager.coordinator.single_type_managers
    requests = list(scheduler.requests.values())
    waiting = [request for request in requests if request.status.name in WAITING][:ASKED]
    reserved = getattr(scheduler, "_inflight_prefill_reserved_blocks", None)
    running = bool(scheduler.running)
    needs: dict[str, int] = {}
    begin = time.monotonic_ns()
    for request in waiting:
        needs[str(request.request_id)] = _need(scheduler, managers, request)
        if time.monotonic_ns() - begin > BUDGET_NS:
            break
    return Admission(
        needs=needs,
        returned={str(request.request_id): times for request in requests if (times := request.num_preemptions)},
        free=manager.block_pool.get_num_free_blocks(),
        reserved=None if reserved is None else int(reserved()),
        # As the engine does: with nothing running there is nobody to keep pages for.
        watermark=int(getattr(manager, "watermark_blocks", 0)) if running else 0,
        caps={
            GroupId(number): int(cap)
            for number, one in enumerate(managers)
            if (cap := getattr(one, "max_admission_blocks_per_request", None)) is not None
        },
    )


def _need(scheduler: Any, managers: Sequence[Any], request: Any) -> int:
    """Pages for a request in an engine where nothing else runs; what it can reuse counts where it decides."""
    empty: list[Sequence[Any]] = [()] * len(managers)
    cold = _formulas(scheduler, managers, request, empty, 0)
    pool = scheduler.kv_cache_manager.block_pool
    if cold < len(pool.blocks) or not scheduler.kv_cache_manager.enable_caching:
        return cold
    # Windows of a reused prefix need fewer pages. Another tier may bring up to all of it.
    limit = request.num_tokens - 1
    found, hit, *_ = scheduler.kv_cache_manager.coordinator.find_longest_cache_hit(list(request.block_hashes), limit)
    warm = _formulas(scheduler, managers, request, found, hit)
    if getattr(scheduler, "connector", None) is not None:
        warm = min(warm, _formulas(scheduler, managers, request, empty, limit))
    return min(cold, warm)


def _formulas(
    scheduler: Any, managers: Sequence[Any], request: Any, found: Sequence[Sequence[Any]], computed: int
) -> int:
    longest = scheduler.max_model_len
    whole = min(request.num_tokens, longest)
    gate = 0
    with _nothing_left(managers, request.request_id):
        if getattr(scheduler, "scheduler_reserve_full_isl", False):
            gate = sum(
                _asked(manager, request, whole, whole, found[number], computed, capped=True)
                for number, manager in enumerate(managers)
                if not _left_out(scheduler, manager)
            )
        main = min(whole, computed + _chunk(scheduler, whole - computed))
        slots = min(main + getattr(scheduler, "num_lookahead_tokens", 0), longest)
        first = sum(
            # Recurrent managers note the chunk when they are asked without the cap; they have none.
            _asked(manager, request, slots, main, found[number], computed, capped=hasattr(manager, "_checkpoints"))
            for number, manager in enumerate(managers)
            if not _left_out(scheduler, manager)
        )
    return max(gate, first)


def _asked(
    manager: Any, request: Any, tokens: int, main: int, found: Sequence[Any], computed: int, *, capped: bool
) -> int:
    return int(
        manager.get_num_blocks_to_allocate(
            request.request_id,
            tokens,
            found,
            computed,
            computed if len(found) else 0,
            main,
            apply_admission_cap=capped,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
    )


def _left_out(scheduler: Any, manager: Any) -> bool:
    """Say whether a group does not count, so that needs are lower bounds.

    Pages of an encoder depend on media that only the engine knows at the admission. A group with a pool of its own
    takes none of this one, and answers with more pages than there are while its own pool is short.
    """
    pool = scheduler.kv_cache_manager.block_pool
    return type(manager).__name__ == "CrossAttentionManager" or getattr(manager, "block_pool", pool) is not pool


def _chunk(scheduler: Any, tokens: int) -> int:
    """Tokens of the first step of a request that starts alone."""
    config = scheduler.scheduler_config
    if not getattr(config, "enable_chunked_prefill", True):
        return tokens
    long = getattr(config, "long_prefill_token_threshold", 0)
    limit = min(scheduler.max_num_scheduled_tokens, long) if long > 0 else scheduler.max_num_scheduled_tokens
    return max(1, min(tokens, int(limit)))


@contextmanager
def _nothing_left(managers: Sequence[Any], request: str) -> Iterator[None]:
    """Take back the empty tables that looking up a request makes."""
    before = [request in manager.req_to_blocks for manager in managers]
    try:
        yield
    finally:
        for manager, known in zip(managers, before, strict=True):
            if not known and not manager.req_to_blocks.get(request, True):
                del manager.req_to_blocks[request]
