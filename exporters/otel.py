"""The OpenTelemetry face: where to send what (``OTEL_*``), resources, and metrics built by hand from readings.

Invariant: sending happens on threads of its own and is bounded; a receiver that is slow, gone or refusing costs the
exporter spans and metric reports, which are counted, and the engine nothing. Called by ``kvctl export``.

Metrics are not made with the API's instruments: the counters and histograms live in the engine, and the API has no
observable histogram. They are always cumulative, from the start of the engine.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from agent.errors import UsageError

from .catalogue import CATALOGUE, METRICS, Distribution, Kind, Reading, Sample
from .catalogue import Metric as Entry
from .source import Identity
from .spans import SpanQueue, Spans, env_int

CLOSE_S: Final = 5.0
"""How long the end of the exporter waits for a receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where spans and metrics go."""

    traces: bool
    metrics: bool
    traces_url: str | None = None
    """None: as ``OTEL_EXPORTER_OTLP_*`` says."""
    metrics_url: str | None = None


def receiver_of(url: str | None) -> Receiver | None:
    """Return where to send, from ``--otlp`` or else from ``OTEL_*``; None where nobody asked for it.

    Args:
        url: Base address of an OTLP/HTTP receiver; ``/v1/traces`` and ``/v1/metrics`` are appended.

    Raises:
        UsageError: The address makes no sense, or the environment asks for a protocol other than HTTP.
    """
    env = os.environ
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    common = url or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    traces = bool(common or env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) and env.get("OTEL_TRACES_EXPORTER") != "none"
    metrics = bool(common or env.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")) and (
        env.get("OTEL_METRICS_EXPORTER") != "none"
    )
    if not traces and not metrics:
        return None
    protocol = env.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if url is None and protocol != "http/protobuf":
        raise UsageError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}",
            why="kvctl speaks OTLP over HTTP with protobuf only",
            next_step="give --otlp URL of a receiver for http/protobuf (port 4318 by custom)",
        )
    if url is None:
        return Receiver(traces=traces, metrics=metrics)
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise UsageError(f"--otlp is {url!r}", next_step="give an address such as http://localhost:4318")
    base = url.rstrip("/")
    return Receiver(traces=traces, metrics=metrics, traces_url=f"{base}/v1/traces", metrics_url=f"{base}/v1/metrics")


def resource_of(identity: Identity, version: str) -> Resource:
    """Describe one engine; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win."""
    return _resource(identity.engine, identity.model, version, identity.attributes)


def _resource(engine: str, model: str, version: str, more: tuple[tuple[str, str], ...]) -> Resource:
    own = {"service.name": "kvctl", "service.version": version}
    if engine:
        own |= {"service.instance.id": engine, "kvctl.engine": engine, "kvctl.model": model}
    return Resource({**own, **dict(more)}).merge(OTELResourceDetector().detect())


def metrics_data(readings: Iterable[Reading], version: str) -> MetricsData:
    """Return readings as OTLP metric data: one resource for each engine, one for the exporter."""
    scope = InstrumentationScope("kvctl", version)
    return MetricsData(
        resource_metrics=[
            ResourceMetrics(
                resource=_resource(reading.engine, reading.model, version, reading.attributes),
                scope_metrics=[ScopeMetrics(scope=scope, metrics=_metrics(reading), schema_url="")],
                schema_url="",
            )
            for reading in readings
        ]
    )


def _metrics(reading: Reading) -> list[Metric]:
    by_name: dict[str, list[Sample]] = {}
    for sample in reading.samples:
        by_name.setdefault(sample.metric.name, []).append(sample)
    return [_metric(entry, reading, by_name[entry.name]) for entry in METRICS if entry.name in by_name]


def _metric(entry: Entry, reading: Reading, samples: list[Sample]) -> Metric:
    data: Sum | Gauge | Histogram
    if entry.kind is Kind.HISTOGRAM:
        points = [_distribution(reading, sample) for sample in samples]
        data = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
    elif entry.kind is Kind.COUNTER:
        data = Sum(
            data_points=[_number(reading, sample) for sample in samples],
            aggregation_temporality=AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
    else:
        data = Gauge(data_points=[_number(reading, sample) for sample in samples])
    return Metric(name=entry.otel_name, description=entry.help, unit=entry.unit, data=data)


def _attributes(reading: Reading, sample: Sample) -> dict[str, str]:
    return dict(zip(sample.metric.all_labels, reading.labels_of(sample), strict=True))


def _number(reading: Reading, sample: Sample) -> NumberDataPoint:
    value = sample.value
    return NumberDataPoint(
        attributes=_attributes(reading, sample),
        start_time_unix_nano=reading.start_of(sample.metric),
        time_unix_nano=reading.taken_ns,
        value=0.0 if isinstance(value, Distribution) else value,
    )


def _distribution(reading: Reading, sample: Sample) -> HistogramDataPoint:
    value = cast("Distribution", sample.value)
    unknown = cast("float", None)  # left out of the message: the engine keeps no smallest and largest
    return HistogramDataPoint(
        attributes=_attributes(reading, sample),
        start_time_unix_nano=reading.start_of(sample.metric),
        time_unix_nano=reading.taken_ns,
        count=value.count,
        sum=value.sum,
        bucket_counts=value.counts,
        explicit_bounds=value.bounds,
        min=unknown,
        max=unknown,
    )


class MetricsPush:
    """Send metrics every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds (a minute by default).

    Args:
        exporter: Sends them.
        readings: Returns the latest readings.
        version: Version of this exporter.
    """

    def __init__(self, exporter: MetricExporter, readings: Callable[[], Iterable[Reading]], *, version: str) -> None:
        self._exporter = exporter
        self._readings = readings
        self._version = version
        self._interval_s = env_int("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
        self._timeout_ms = env_int("OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
        self._stop = threading.Event()
        self.failed = 0
        """Reports that the receiver did not take."""
        self._thread = threading.Thread(target=self._run, name="kvctl-metrics", daemon=True)

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Send a last report, but do not wait for it longer than ``timeout_s``."""
        self._stop.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._push()
        self._push()

    def _push(self) -> None:
        data = metrics_data(self._readings(), self._version)
        if self._exporter.export(data, timeout_millis=self._timeout_ms) is not MetricExportResult.SUCCESS:
            self.failed += 1


class Telemetry:
    """Everything that is sent to an OTLP receiver.

    Args:
        receiver: Where to.
        readings: Returns the latest readings.
        version: Version of this exporter.
    """

    def __init__(self, receiver: Receiver, *, version: str) -> None:
        self._receiver = receiver
        self._version = version
        self._queue: SpanQueue | None = None
        self._push: MetricsPush | None = None
        self.spans: Spans | None = None
        """Takes decisions; None where no spans are wanted."""
        if receiver.traces:
            self._queue = SpanQueue(OTLPSpanExporter(endpoint=receiver.traces_url))
            self.spans = Spans(self._queue, lambda identity: resource_of(identity, version), version=version)

    def start(self, readings: Callable[[], Iterable[Reading]]) -> None:
        """Begin to send."""
        if self._queue is not None:
            self._queue.start()
        if self._receiver.metrics:
            exporter = OTLPMetricExporter(endpoint=self._receiver.metrics_url)
            self._push = MetricsPush(exporter, readings, version=self._version)
            self._push.start()

    def samples(self) -> list[Sample]:
        """Return the samples about sending itself."""
        if self._queue is None:
            return []
        return [Sample(metric=CATALOGUE["spans_dropped"], value=self._queue.dropped)]

    def close(self) -> None:
        """Send what waits, for a moment, and end."""
        until = time.monotonic() + CLOSE_S
        if self._queue is not None:
            self._queue.close(CLOSE_S)
        if self._push is not None:
            self._push.close(max(0.1, until - time.monotonic()))
