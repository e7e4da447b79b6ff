"""One span for each reuse decision, and the bounded queue that they wait in.

Invariant: nothing here waits: a full queue or a refusing receiver drops spans and counts them. No token, key or request
id leaves with a span. Used by :mod:`exporters.otel`.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Tracer

from agent.model.decision import Decision
from agent.model.groups import Geometry, Group

from .labels import clean_label
from .source import Identity

SPAN_NAME: Final = "kvctl.reuse_decision"
STATE_EVENT: Final = "kvctl.state"
_MINUTE_NS: Final = 60_000_000_000

Attributes = dict[str, str | int | float | bool]


class SpanQueue(SpanProcessor):
    """Batch spans of all engines to one receiver.

    Sizes and times come from ``OTEL_BSP_MAX_QUEUE_SIZE``, ``OTEL_BSP_MAX_EXPORT_BATCH_SIZE`` and
    ``OTEL_BSP_SCHEDULE_DELAY`` (OpenTelemetry specification, "Batch Span Processor").

    Args:
        exporter: Sends them.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._limit = env_int("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
        self._batch = min(self._limit, env_int("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512))
        self._delay_s = env_int("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
        self._waiting: deque[ReadableSpan] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.dropped = 0
        """Spans that were given up."""
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="kvctl-spans", daemon=True)

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it where the queue is full. Never waits for the receiver."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._wake:
            if self._closing or len(self._waiting) >= self._limit:
                self.dropped += 1
                return
            self._waiting.append(span)
            if len(self._waiting) >= self._batch:
                self._wake.notify()

    def shutdown(self) -> None:
        """Providers call this as they end; :meth:`close` ends the queue."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing to force: the queue is emptied by its own thread."""
        del timeout_millis
        return True

    def close(self, timeout_s: float) -> None:
        """Send what waits, but not for longer than ``timeout_s``."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._closing and len(self._waiting) < self._batch:
                    self._wake.wait(self._delay_s)
                batch = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
                if not batch and self._closing:
                    return
            if not batch:
                continue
            if self._exporter.export(batch) is SpanExportResult.SUCCESS:
                self.sent += len(batch)
            else:
                self.dropped += len(batch)


class Spans:
    """Make spans; one provider and resource for each engine.

    Args:
        queue: Where they wait.
        resource_of: Describes an engine.
        version: Version of this exporter, for the instrumentation scope.
    """

    def __init__(self, queue: SpanQueue, resource_of: Callable[[Identity], Resource], *, version: str) -> None:
        self._queue = queue
        self._resource_of = resource_of
        self._version = version
        self._tracers: dict[tuple[str, int], Tracer] = {}
        self._lock = threading.Lock()

    def __call__(self, identity: Identity, decisions: tuple[Decision, ...]) -> None:
        """Make a span of each decision."""
        tracer = self._tracer(identity)
        for decision in decisions:
            _record(tracer, identity.geometry, decision)

    def _tracer(self, identity: Identity) -> Tracer:
        key = (identity.engine, identity.start_ns)
        with self._lock:
            if key not in self._tracers:
                provider = TracerProvider(resource=self._resource_of(identity), shutdown_on_exit=False)
                provider.add_span_processor(self._queue)
                self._tracers = {old: tracer for old, tracer in self._tracers.items() if old[0] != identity.engine}
                self._tracers[key] = provider.get_tracer("kvctl", self._version)
            return self._tracers[key]


def _record(tracer: Tracer, geometry: Geometry, decision: Decision) -> None:
    end_ns = decision.time_ns
    # A look-up takes microseconds; a duration of minutes is a broken clock.
    start_ns = end_ns - min(decision.duration_ns or 0, _MINUTE_NS)
    span = tracer.start_span(
        SPAN_NAME,
        context=propagate.extract(_headers(decision), context=Context()),
        kind=SpanKind.INTERNAL,
        attributes=attributes_of(geometry, decision),
        start_time=start_ns,
    )
    if span.is_recording():
        for group in geometry.groups:
            for state in group.states:
                span.add_event(STATE_EVENT, state_of(group, state.value, decision), timestamp=end_ns)
    span.end(end_time=end_ns)


def _headers(decision: Decision) -> Mapping[str, str]:
    # All of them are ASCII by their standards; what a client made up instead, a propagator may fail on.
    return {name.lower(): value for name, value in decision.trace if value.isascii()}


def attributes_of(geometry: Geometry, decision: Decision) -> Attributes:
    """Return the attributes of a decision's span; what is unknown has none."""
    group = decision.limiting_group
    known = group is not None and 0 <= group < len(geometry.groups)
    optional: dict[str, str | int | None] = {
        "kvctl.reuse.logical_tokens": decision.logical,
        "kvctl.reuse.usable_tokens": decision.usable,
        "kvctl.reuse.limiting_group": clean_label(geometry.groups[group].name) if known and group is not None else None,
        "kvctl.reuse.limiting_state": decision.limiting_state.value if decision.limiting_state else None,
        "kvctl.reuse.reason": decision.reason.value if decision.reason else None,
        "kvctl.reuse.fidelity": decision.fidelity.value if decision.fidelity else None,
    }
    return {
        "kvctl.reuse.decision": decision.id,
        "kvctl.reuse.outcome": decision.outcome.value,
        "kvctl.reuse.phase": decision.phase.value,
        "kvctl.reuse.lookup_tokens": decision.lookup_tokens,
        "kvctl.reuse.engine_tokens": decision.engine_usable,
        "kvctl.reuse.external_tokens": decision.external,
        "kvctl.reuse.lookups": decision.lookups,
        "gen_ai.usage.cache_read.input_tokens": decision.engine_usable + decision.external,
        **{name: value for name, value in optional.items() if value is not None},
    }


def state_of(group: Group, state: str, decision: Decision) -> Attributes:
    """Return the attributes of the event of one state in one group."""
    lost = {reason.value: tokens for reason, where, tokens in decision.lost if where == group.id and tokens}
    attributes: Attributes = {"kvctl.state": state, "kvctl.group": clean_label(group.name)}
    own = decision.per_group[group.id] if decision.per_group and group.id < len(decision.per_group) else None
    if own is not None:
        attributes["kvctl.hit_tokens"] = own
    if decision.usable is not None:
        attributes["kvctl.lost_tokens"] = sum(lost.values())
    if lost:
        attributes["kvctl.reason"] = max(lost, key=lambda reason: lost[reason])
    return attributes


def env_int(name: str, default: int) -> int:
    """Read a positive whole number from the environment; anything else means the default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else default
