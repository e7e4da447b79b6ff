"""Hooks on look-up, prefetch and admission: one decision for each admission, with what another tier brings for it.

Invariant: a request that waits for a tier is decided when the load begins, from the table of that look-up, and not
again when it is admitted: what a load that failed did not bring is in the counters of the tier. Called by the adapter.
"""

import time
from typing import Any

from ...probe.patches import Patches


def hook(probe: Any, scheduler: Any, patches: Patches) -> None:
    """Put the hooks on a scheduler."""
    guard, recorder = probe.guard, probe.recorder
    try_reuse, note_admitted = scheduler.try_reuse, scheduler.note_admitted

    def looked_up(request: Any, step: int) -> Any:
        if not guard.on:
            return try_reuse(request, step)
        guard.call(recorder.before_lookup)
        promised, begin = request.promised, time.perf_counter_ns()
        answer = try_reuse(request, step)
        guard.call(recorder.looked_up, request.id, time.perf_counter_ns() - begin)
        if answer is not None and answer.plan.load and not promised:
            guard.call(_fetching, recorder, request, answer.record)
        return answer

    def admitted(request: Any, answer: Any) -> Any:
        if guard.on:
            guard.call(_admitted, recorder, request, answer.record)
        return note_admitted(request, answer)

    patches.set(scheduler, "try_reuse", looked_up)
    patches.set(scheduler, "note_admitted", admitted)


def _fetching(recorder: Any, request: Any, record: Any) -> None:
    recorder.brought(request.id, record.external)
    _note(recorder, request, record, usable=record.usable, moving=True)


def _admitted(recorder: Any, request: Any, record: Any) -> None:
    if request.promised:
        recorder.forget(request.id)  # decided when its load began
        return
    # What was mapped as it was; what a recovery route won beyond that is no claim that the states were there.
    _note(recorder, request, record, usable=min(record.usable, record.reused), moving=False)


def _note(recorder: Any, request: Any, record: Any, *, usable: int, moving: bool) -> None:
    recorder.admitted(
        request.id,
        tokens=record.lookup_tokens,
        usable=usable,
        resumed=request.preemptions > 0,
        skipped=request.skip_cache,
        hashes=record.chain,
        trace=None,
        moving=moving,
    )
