"""Hooks of a running vLLM engine: steps, look-ups, admissions. One engine's instances, nothing of its classes.

Invariant: each stand-in calls the original with whatever it was given and returns its result unchanged; what the probe
does around it goes through the guard. Installed and removed by the adapter on the engine's thread.
"""

import time
from collections.abc import Callable, Iterator
from operator import length_hint
from types import SimpleNamespace
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
        _hook_connector(adapter, probe, patches, scheduler.connector)
    if adapter.off("safe_point") is None:
        _hook_safe_points(adapter, probe, patches, served=served)


def _hook_steps(adapter: Any, probe: Any, patches: Patches, scheduler: Any) -> None:
    guard, recorder, outputs = probe.guard, probe.recorder, probe.outputs
    original = scheduler.schedule
    call, begin_schedule, dispatched = guard.call, probe.begin_schedule, probe.dispatched
    quarantine, log = adapter.quarantine, _log(probe)
    held = quarantine.held
    updates = adapter.off("feed") is None

    def schedule(*args: Any, **kwargs: Any) -> Any:
        # On the critical path, and cold: a frame costs microseconds here. What has nothing to do is not called, and
        # what cannot fail is written out.
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
        outputs[id(output)] = recorder.step  # as Probe.end_schedule
        probe.scheduled = getattr(output, "num_scheduled_tokens", ())
        probe.unsettled = True
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


def _marks(probe: Any) -> Any:
    """What counts registrations: without a feed there are none."""
    return SimpleNamespace(mark=0) if probe.feed is None else probe.feed.stamps


def _hook_updates(probe: Any, patches: Patches, scheduler: Any) -> None:
    guard, feed, outputs, log = probe.guard, probe.feed, probe.outputs, _log(probe)
    stamps, call = _marks(probe), guard.call
    update = scheduler.update_from_output

    def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        # Like Probe.begin_update and Probe.end_update, without a frame for an update that registers nothing.
        if not guard.on:
            return update(scheduler_output, *args, **kwargs)
        if log or probe.unsettled:
            call(probe.begin_update, scheduler_output)
        result = update(scheduler_output, *args, **kwargs)
        step = outputs.pop(id(scheduler_output), None)
        if step is not None and feed is not None:
            if log:
                call(feed.updated, step)
            elif step > stamps.committed:
                stamps.committed = step
        return result

    patches.set(scheduler, "update_from_output", update_from_output)


def _hook_lookups(adapter: Any, probe: Any, patches: Patches, manager: Any) -> None:
    recorder, guard = probe.recorder, probe.guard
    quarantine, held = adapter.quarantine, adapter.quarantine.held
    call, clock = guard.call, time.perf_counter_ns
    depth = [0]
    noted = Noted(adapter, probe)
    events, found, marks = noted.events, noted.found, _marks(probe)

    def before() -> None:
        if held:
            quarantine.sweep()
        feed = recorder.feed
        if recorder.explaining and feed is not None:
            events.append((None, None, None))  # should it fail
            events[-1] = (None, feed.point(), None)

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
            events.append((request, None, clock() - begin))
            found[0] = (request, result, marks.mark)
            return result

        return looked_up

    patches.set(manager, "get_computed_blocks", watch(manager.get_computed_blocks))
    if hasattr(manager, "get_computed_blocks_for_connector"):
        patches.set(manager, "get_computed_blocks_for_connector", watch(manager.get_computed_blocks_for_connector))

    adapter.noted, probe.before_shadow = noted, noted.before_shadow
    guard.on_open(noted.clear)
    _hook_admissions(probe, patches, manager, noted)
    _hook_ends(probe, patches, manager, noted)


def _hook_admissions(probe: Any, patches: Patches, manager: Any, noted: "Noted") -> None:
    guard, held, call, quiet = probe.guard, noted.quarantine.held, probe.guard.call, probe.guard.quiet
    events, settle, found, bind = noted.events, noted.settle, noted.found, noted.bind
    record = manager.record_prefix_cache_stats

    def record_prefix_cache_stats(request: Any, num_hits: int, *args: Any, **kwargs: Any) -> Any:
        if guard.on:
            events.append((request, num_hits, None))
            if num_hits:
                if found[0] is not None:
                    quiet(bind, request, num_hits)
            else:
                found[0] = None
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
        """A look-up: request, None, nanoseconds; an admission: request, tokens that it reuses, None; or before a
        look-up that somebody compares, the point of the feed where it stands: None, point, None."""
        self.found: list[Any] = [None]
        """The latest look-up until its admission: request, answer, last stamp before it."""
        self.quarantine = adapter.quarantine
        self._bound = adapter.bound
        self._recorder = probe.recorder
        self._guard = probe.guard

    def clear(self) -> None:
        """Nobody settles them any more, and they hold requests."""
        self.events.clear()
        self.found[0] = None

    def bind(self, request: Any, usable: int) -> None:
        """Compare what the latest look-up found with what the request holds: at once, while both are in the caches."""
        found, self.found[0] = self.found[0], None
        if usable > 0 and found[0] is request and self._bound is not None:
            self._bound.admitted(request, usable, getattr(found[1][0], "blocks", ()), found[2])

    def before_shadow(self) -> None:
        """The batch is on its way: what was looked up and not admitted until now is looked up again."""
        self.settle()
        self.found[0] = None

    def settle(self) -> None:
        """Work out what was noted, in its order; one that fails takes no other along."""
        events = iter(self.events[:])
        self.events.clear()
        while length_hint(events):
            self._guard.quiet(self._work_out, events)

    def _work_out(self, events: Iterator[tuple[Any, Any, int | None]]) -> None:
        recorder = self._recorder
        for request, answer, duration_ns in events:
            if request is None:
                recorder.saw(answer)
            elif duration_ns is None:
                self._admitted(request, answer)
            else:
                recorder.looked_up(request.request_id, duration_ns)

    def _admitted(self, request: Any, usable: int) -> None:
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


def _hook_connector(adapter: Any, probe: Any, patches: Patches, connector: Any) -> None:
    recorder = probe.recorder

    def brought(_result: Any, request: Any, _blocks: Any = None, external: int = 0, *_a: Any, **kwargs: Any) -> None:
        if adapter.noted is not None:
            adapter.noted.settle()
        recorder.brought(request.request_id, kwargs.get("num_external_tokens", external) or 0)

    original = connector.update_state_after_alloc
    patches.set(connector, "update_state_after_alloc", probe.guard.after(original, brought, timed=True))


def _hook_safe_points(adapter: Any, probe: Any, patches: Patches, *, served: bool) -> None:
    engine, guard, safe_point = adapter.core, probe.guard, probe.safe_point
    if not served:
        # A caller drives this engine: safe points are in the entry hooks, under the turn lock.
        return
    jobs, quiet = safe_point.jobs, guard.quiet

    def passed() -> None:
        idle = adapter.idle()
        probe.between_steps(idle=idle)
        if not idle and safe_point.idle_work is not None and not engine.scheduler.has_requests():
            # A data parallel rank that steps along with others, without a batch and so without a shadow.
            guard.call(probe.feed.shadow)

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if (jobs or safe_point.idle_work is not None) and guard.on:
                quiet(passed)
            return result

        return stand_in

    for name in ("_handle_client_request", "post_step"):
        patches.set(engine, name, watch(getattr(engine, name)))
