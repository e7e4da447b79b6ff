"""Hooks on look-up, prefetch and admission: one decision for each admission, with what another tier brought for it.

Invariant: a request that waits for a tier is explained from the table at the look-up that began the load, and decided
when it is admitted: with what the load brought, or like any other look-up where it brought nothing. Called by the
adapter.
"""

import time
from typing import Any

from ...probe.patches import Patches
from .gains import gains


def hook(probe: Any, engine: Any, patches: Patches, won: dict[str, int]) -> None:
    """Put the hooks on an engine and its scheduler; ``won`` counts the tokens of each route."""
    guard, recorder, scheduler = probe.guard, probe.recorder, engine.scheduler
    try_reuse, note_admitted = scheduler.try_reuse, scheduler.note_admitted

    def looked_up(request: Any, step: int) -> Any:
        if not guard.on:
            return try_reuse(request, step)
        guard.call(recorder.before_lookup)
        begin = time.perf_counter_ns()
        answer = try_reuse(request, step)
        guard.call(recorder.looked_up, request.id, time.perf_counter_ns() - begin)
        if answer is not None and answer.plan.load and not request.fetched:
            guard.call(_waits, recorder, request, answer.record)
        return answer

    def admitted(request: Any, answer: Any) -> Any:
        if guard.on:
            guard.call(_admitted, recorder, request, answer.record, won)
        return note_admitted(request, answer)

    def cancelled(_result: Any, name: str) -> None:
        recorder.forget(name)

    patches.set(scheduler, "try_reuse", looked_up)
    patches.set(scheduler, "note_admitted", admitted)
    patches.set(engine, "cancel", guard.after(engine.cancel, cancelled))


def _waits(recorder: Any, request: Any, record: Any) -> None:
    recorder.waits(
        request.id,
        tokens=record.lookup_tokens,
        usable=record.usable,
        external=record.external,
        resumed=request.preemptions > 0,
        hashes=record.chain,
    )


def _admitted(recorder: Any, request: Any, record: Any, won: dict[str, int]) -> None:
    before = recorder.waiting.get(request.id)
    brought = 0 if before is None else min(record.reused, request.fetched) - before
    moving = brought > 0
    for route, tokens in gains(record, max(0, brought)).items():
        won[route] = won.get(route, 0) + tokens
    if moving:
        recorder.brought(request.id, brought)
    recorder.admitted(
        request.id,
        tokens=record.lookup_tokens,
        # What was mapped as it was; what a recovery route won beyond that is no claim that the states were there.
        usable=before if moving else min(record.usable, record.reused),
        resumed=request.preemptions > 0,
        skipped=request.skip_cache,
        hashes=() if moving else record.chain,
        trace=None,
        moving=moving,
    )
