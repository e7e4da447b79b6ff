"""Hooks of a running vLLM engine: steps, look-ups, admissions. One engine's instances, nothing of its classes.

Invariant: each stand-in calls the original with whatever it was given and returns its result unchanged; what the probe
does around it goes through the guard. Installed and removed by the adapter on the engine's thread.
"""

import time
from collections.abc import Callable
from typing import Any

from ...probe.decisions import UNKNOWN_TABLE
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
    guard, recorder = probe.guard, probe.recorder
    original = scheduler.schedule
    call, quiet, begin_schedule, end_schedule = guard.call, guard.quiet, probe.begin_schedule, probe.end_schedule
    dispatched, quarantine, log = probe.dispatched, adapter.quarantine, _log(probe)
    held = quarantine.held
    updates = adapter.off("feed") is None

    def schedule(*args: Any, **kwargs: Any) -> Any:
        # On the critical path, and cold: a frame costs microseconds here. What has nothing to do is not called, and
        # what only notes something is not timed.
        if not guard.on:
            return original(*args, **kwargs)
        if probe.unsettled or log or probe.ahead != recorder.step + 1:
            call(begin_schedule)
        else:
            recorder.step += 1
        done = False
        try:
            output = original(*args, **kwargs)
            done = True
        finally:
            if not done and probe.before_shadow is not None:  # no batch, no shadow
                call(probe.before_shadow)
        if held:
            call(quarantine.sweep)
        quiet(end_schedule, output, getattr(output, "num_scheduled_tokens", ()))
        if not updates:  # nothing else is sure to come after this call
            call(dispatched)
        return output

    patches.set(scheduler, "schedule", schedule)
    if updates:
        _hook_updates(probe, patches, scheduler)
    if adapter.off("shadow") is None:
        # Not called for pooling models and empty batches; the probe then catches up before the update.
        bitmask = scheduler.get_grammar_bitmask

        def get_grammar_bitmask(*args: Any, **kwargs: Any) -> Any:
            if probe.unsettled:
                call(dispatched)
            return bitmask(*args, **kwargs)

        patches.set(scheduler, "get_grammar_bitmask", get_grammar_bitmask)


def _log(probe: Any) -> Any:
    """Registrations that wait to be folded; the same object as long as the probe is there."""
    return () if probe.feed is None else probe.feed.stamps.log


def _hook_updates(probe: Any, patches: Patches, scheduler: Any) -> None:
    guard = probe.guard
    update = scheduler.update_from_output
    call, quiet, begin_update, end_update = guard.call, guard.quiet, probe.begin_update, probe.end_update
    log = _log(probe)

    def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not guard.on:
            return update(scheduler_output, *args, **kwargs)
        if log or probe.unsettled:
            call(begin_update, scheduler_output)
        outputs = update(scheduler_output, *args, **kwargs)
        (call if log else quiet)(end_update, scheduler_output)
        return outputs

    patches.set(scheduler, "update_from_output", update_from_output)


def _hook_lookups(adapter: Any, probe: Any, patches: Patches, manager: Any) -> None:
    recorder, guard = probe.recorder, probe.guard
    quarantine, held = adapter.quarantine, adapter.quarantine.held
    call, clock = guard.call, time.perf_counter_ns
    depth = [0]
    noted = Noted(adapter, probe)
    events, settle = noted.events, noted.settle

    def before() -> None:
        if held:
            quarantine.sweep()
        feed = recorder.feed
        if recorder.explaining and feed is not None:
            events.append((None, (UNKNOWN_TABLE, 0), None))  # should the capture fail
            events[-1] = (None, (feed.capture(), feed.stamps.latest), None)

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def looked_up(request: Any, *args: Any, **kwargs: Any) -> Any:
            # One of the two look-ups calls the other: the outer one counts.
            if depth[0] or not guard.on:
                return original(request, *args, **kwargs)
            if held or recorder.explaining:
                call(before)
            depth[0] += 1
            begin = clock()
            try:
                result = original(request, *args, **kwargs)
            finally:
                depth[0] -= 1
            events.append((request, result, clock() - begin))
            return result

        return looked_up

    patches.set(manager, "get_computed_blocks", watch(manager.get_computed_blocks))
    if hasattr(manager, "get_computed_blocks_for_connector"):
        patches.set(manager, "get_computed_blocks_for_connector", watch(manager.get_computed_blocks_for_connector))

    probe.before_shadow = settle
    guard.on_open(events.clear)  # nobody settles them any more, and they hold requests
    _hook_admissions(probe, patches, manager, noted)
    _hook_ends(probe, patches, manager, noted)


def _hook_admissions(probe: Any, patches: Patches, manager: Any, noted: "Noted") -> None:
    guard, held, call = probe.guard, noted.quarantine.held, probe.guard.call
    events, settle = noted.events, noted.settle
    record = manager.record_prefix_cache_stats

    def record_prefix_cache_stats(request: Any, num_hits: int, *args: Any, **kwargs: Any) -> Any:
        if guard.on:
            events.append((request, num_hits, None))
            if held:
                call(settle)
        return record(request, num_hits, *args, **kwargs)

    patches.set(manager, "record_prefix_cache_stats", record_prefix_cache_stats)


class Noted:
    """Look-ups and admissions of a step; what they mean is worked out in its shadow, or when somebody compares.

    Nothing that is read then has changed: a request that leaves before is settled before, see :func:`_hook_ends`.
    """

    def __init__(self, adapter: Any, probe: Any) -> None:
        self.events: list[tuple[Any, Any, int | None]] = []
        """A look-up: request, answer, nanoseconds; an admission: request, tokens that it reuses, None; or before a
        look-up that somebody compares, the table that it sees: None, (epoch, last stamp), None."""
        self.quarantine = adapter.quarantine
        self._bound = adapter.bound
        self._recorder = probe.recorder
        self._guard = probe.guard

    def settle(self) -> None:
        """Work out what was noted, in its order."""
        events = self.events[:]
        self.events.clear()
        for request, answer, duration_ns in events:
            if request is None:
                self._guard.quiet(self._recorder.saw, *answer)
            elif duration_ns is None:
                self._guard.quiet(self._admitted, request, answer)
            else:
                self._guard.quiet(self._looked_up, request, answer, duration_ns)

    def _looked_up(self, request: Any, answer: Any, duration_ns: int) -> None:
        if self._bound is not None:
            self._bound.looked_up(request, answer)
        self._recorder.looked_up(request.request_id, duration_ns)

    def _admitted(self, request: Any, usable: int) -> None:
        if self._bound is not None:
            self._bound.admitted(request, usable)
        if self.quarantine.held:
            self.quarantine.admitted(request.request_id)
        self._recorder.admitted(
            request.request_id,
            tokens=request.num_tokens,
            usable=usable,
            resumed=getattr(request, "num_preemptions", 0) > 0,
            skipped=bool(getattr(request, "skip_reading_prefix_cache", False)),
            hashes=request.block_hashes,
            trace=getattr(request, "trace_headers", None),
        )


def _hook_ends(probe: Any, patches: Patches, manager: Any, noted: Noted) -> None:
    """Requests that end or are preempted: what they registered stays cached, their look-ups do not count on."""
    recorder, call, quarantine = probe.recorder, probe.guard.call, noted.quarantine
    held, settle, events = quarantine.held, noted.settle, noted.events

    def leaves(request: Any) -> None:
        settle()
        if probe.unsettled:  # aborted before the batch went out: its pages are judged while it still holds them
            probe.dispatched()
        if held:
            quarantine.sweep()
        recorder.forget(request.request_id)

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(request: Any, *args: Any, **kwargs: Any) -> Any:
            if held or events or recorder.stash or probe.unsettled:
                call(leaves, request)
            return original(request, *args, **kwargs)

        return stand_in

    for name in ("free", "pop_blocks_for_free"):
        if hasattr(manager, name):
            patches.set(manager, name, watch(getattr(manager, name)))


def _hook_connector(probe: Any, patches: Patches, connector: Any) -> None:
    recorder = probe.recorder

    def brought(_result: Any, request: Any, _blocks: Any = None, external: int = 0, *_a: Any, **kwargs: Any) -> None:
        if probe.before_shadow is not None:
            probe.before_shadow()
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
