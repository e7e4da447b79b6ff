"""Hooks of a running vLLM engine: steps, look-ups, admissions. One engine's instances, nothing of its classes.

Invariant: each stand-in calls the original with whatever it was given and returns its result unchanged; what the probe
does around it goes through the guard. Installed and removed by the adapter on the engine's thread.
"""

import time
from collections.abc import Callable
from typing import Any

from ...probe.patches import Patches


def install_step_hooks(adapter: Any, probe: Any, patches: Patches, *, served: bool) -> None:
    """Put in the hooks that the capabilities allow."""
    scheduler = adapter.scheduler
    if adapter.off("decisions") is None or adapter.off("feed") is None:
        _hook_steps(adapter, probe, patches, scheduler)
    if adapter.off("decisions") is None:
        _hook_lookups(adapter, probe, patches, scheduler.kv_cache_manager)
    if adapter.off("external") is None:
        _hook_connector(probe, patches, scheduler.connector)
    if adapter.off("safe_point") is None:
        _hook_safe_points(adapter, probe, patches, served=served)


def _hook_steps(adapter: Any, probe: Any, patches: Patches, scheduler: Any) -> None:
    guard = probe.guard
    original = scheduler.schedule

    quarantine = adapter.quarantine

    def scheduled(output: Any) -> None:
        if quarantine:
            quarantine.sweep()
        probe.end_schedule(output, output.num_scheduled_tokens)

    def schedule(*args: Any, **kwargs: Any) -> Any:
        if not guard.on:
            return original(*args, **kwargs)
        guard.call(probe.begin_schedule)
        output = original(*args, **kwargs)
        guard.call(scheduled, output)
        return output

    patches.set(scheduler, "schedule", schedule)
    if adapter.off("feed") is None:
        update = scheduler.update_from_output

        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if not guard.on:
                return update(scheduler_output, *args, **kwargs)
            guard.call(probe.begin_update, scheduler_output)
            outputs = update(scheduler_output, *args, **kwargs)
            guard.call(probe.end_update, scheduler_output)
            return outputs

        patches.set(scheduler, "update_from_output", update_from_output)
    if adapter.off("shadow") is None:
        # Not called for pooling models and empty batches; the probe then catches up before the update.
        bitmask = scheduler.get_grammar_bitmask
        patches.set(
            scheduler, "get_grammar_bitmask", guard.before(bitmask, lambda *_a, **_k: probe.dispatched(), timed=True)
        )


def _hook_lookups(adapter: Any, probe: Any, patches: Patches, manager: Any) -> None:
    recorder = probe.recorder
    guard = probe.guard
    quarantine = adapter.quarantine
    depth = [0]

    def before() -> None:
        if quarantine:
            quarantine.sweep()
        recorder.before_lookup()

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def looked_up(request: Any, *args: Any, **kwargs: Any) -> Any:
            # One of the two look-ups calls the other: the outer one counts.
            if depth[0] or not guard.on:
                return original(request, *args, **kwargs)
            guard.call(before)
            depth[0] += 1
            begin = time.perf_counter_ns()
            try:
                result = original(request, *args, **kwargs)
            finally:
                depth[0] -= 1
            guard.call(_note_lookup, recorder, request, time.perf_counter_ns() - begin)
            return result

        return looked_up

    patches.set(manager, "get_computed_blocks", watch(manager.get_computed_blocks))
    if hasattr(manager, "get_computed_blocks_for_connector"):
        patches.set(manager, "get_computed_blocks_for_connector", watch(manager.get_computed_blocks_for_connector))

    def leaves(request: Any, *_args: Any, **_kwargs: Any) -> None:
        # Ended or preempted: what it registered stays cached, what it looked up does not count for the next one.
        if quarantine:
            quarantine.sweep()
        recorder.forget(request.request_id)

    for name in ("free", "pop_blocks_for_free"):
        if hasattr(manager, name):
            patches.set(manager, name, guard.before(getattr(manager, name), leaves, timed=True))

    record = manager.record_prefix_cache_stats

    def record_prefix_cache_stats(request: Any, num_hits: int, *args: Any, **kwargs: Any) -> Any:
        if guard.on:
            guard.call(_note_admission, recorder, quarantine, request, num_hits)
        return record(request, num_hits, *args, **kwargs)

    patches.set(manager, "record_prefix_cache_stats", record_prefix_cache_stats)


def _note_lookup(recorder: Any, request: Any, duration_ns: int) -> None:
    recorder.looked_up(request.request_id, duration_ns)


def _note_admission(recorder: Any, quarantine: Any, request: Any, usable: int) -> None:
    if quarantine:
        quarantine.admitted(request.request_id)
    recorder.admitted(
        request.request_id,
        tokens=request.num_tokens,
        usable=usable,
        resumed=getattr(request, "num_preemptions", 0) > 0,
        skipped=bool(getattr(request, "skip_reading_prefix_cache", False)),
        hashes=request.block_hashes,
        trace=getattr(request, "trace_headers", None),
    )


def _hook_connector(probe: Any, patches: Patches, connector: Any) -> None:
    recorder = probe.recorder

    def brought(_result: Any, request: Any, _blocks: Any = None, external: int = 0, *_a: Any, **kwargs: Any) -> None:
        recorder.brought(request.request_id, kwargs.get("num_external_tokens", external) or 0)

    original = connector.update_state_after_alloc
    patches.set(connector, "update_state_after_alloc", probe.guard.after(original, brought, timed=True))


def _hook_safe_points(adapter: Any, probe: Any, patches: Patches, *, served: bool) -> None:
    engine = adapter.core
    guard = probe.guard
    if not served:
        # A caller drives this engine: safe points are in the entry hooks, under the turn lock.
        return

    def passed(*_args: Any, **_kwargs: Any) -> None:
        safe_point = probe.safe_point
        if safe_point.waiting or safe_point.idle_work is not None:
            probe.between_steps(idle=adapter.idle())

    patches.set(engine, "_handle_client_request", guard.after(engine._handle_client_request, passed))
    patches.set(engine, "post_step", guard.after(engine.post_step, passed))
