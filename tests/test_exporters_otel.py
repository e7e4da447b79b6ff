"""Spans and metrics at an OTLP/HTTP receiver: the right parent, the right values, and never a wait."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agent.errors import UsageError
from agent.model.decision import Decision, Outcome, Reason
from exporters.catalogue import METRICS, Kind, Scope
from exporters.fleet import started_ns
from exporters.otel import Telemetry, receiver_of
from exporters.source import Identity
from exporters.spans import SpanQueue, Spans
from tests.support.exporting import full_reading
from tests.support.otlp import attributes, receiver
from tests.support.recorded import RecordedEngine
from tests.support.waiting import wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no variable of the host steer these tests; send soon."""
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")


def identity_of(engine: RecordedEngine, label: str = "gemma") -> Identity:
    return Identity(
        engine=label,
        model="google/gemma-3-4b-it",
        start_ns=started_ns(engine.info),
        info=engine.info,
        geometry=engine.base.geometry,
    )


def send(decisions: list[Decision], label: str = "gemma") -> list[tuple[dict[str, Any], Any]]:
    """Make spans of decisions and return what arrived."""
    with receiver() as received:
        wanted = receiver_of(received.url)
        assert wanted is not None
        telemetry = Telemetry(replace(wanted, metrics=False), version="1.2")
        assert telemetry.spans is not None
        telemetry.start(list)
        telemetry.spans(identity_of(RecordedEngine(), label), tuple(decisions))
        telemetry.close()
        return received.spans("kvctl.reuse_decision")


def recorded(reason: Reason) -> Decision:
    return next(one for one in RecordedEngine().base.decisions or () if one.reason is reason)


def test_a_decision_becomes_one_span_with_its_numbers() -> None:
    """The span has the attributes of the decision, ends at its time and lasts as long as the look-up."""
    decision = replace(recorded(Reason.WINDOW_HOLE), external=32)
    [(resource, span)] = send([decision])
    found = attributes(span.attributes)
    assert found["kvctl.reuse.lookup_tokens"] == decision.lookup_tokens
    assert found["kvctl.reuse.logical_tokens"] == decision.logical
    assert found["kvctl.reuse.usable_tokens"] == decision.usable
    assert found["kvctl.reuse.external_tokens"] == 32
    assert found["kvctl.reuse.outcome"] == "recompute"
    assert found["kvctl.reuse.limiting_group"] == "swa16/w1024#1"
    assert found["kvctl.reuse.limiting_state"] == "swa"
    assert found["kvctl.reuse.reason"] == "window_hole"
    assert found["gen_ai.usage.cache_read.input_tokens"] == decision.engine_usable + 32
    assert span.kind == 1, "SPAN_KIND_INTERNAL"
    assert span.end_time_unix_nano == decision.time_ns
    assert span.end_time_unix_nano - span.start_time_unix_nano == decision.duration_ns
    assert resource["service.name"] == "kvctl"
    assert resource["service.instance.id"] == "gemma"


def test_one_event_for_each_state() -> None:
    """Every group's state has an event with its own hit and what was lost to it."""
    [(_, span)] = send([recorded(Reason.WINDOW_HOLE)])
    events = [attributes(event.attributes) for event in span.events]
    assert [event["kvctl.group"] for event in events] == ["swa16/w1024#0", "swa16/w1024#1", "compressed16#2"]
    assert events[1]["kvctl.hit_tokens"] == 576
    assert events[1]["kvctl.lost_tokens"] == 1_792
    assert events[1]["kvctl.reason"] == "window_hole"
    assert events[0]["kvctl.lost_tokens"] == 0


def test_the_span_belongs_to_the_request_of_the_client() -> None:
    """With trace headers the span is a child of the client's span; without them it is a root."""
    decision = recorded(Reason.WINDOW_HOLE)
    header = ("traceparent", f"00-{TRACE}-{PARENT}-01")
    (_, child), (_, root) = send([replace(decision, trace=(header,)), decision])
    assert child.trace_id.hex() == TRACE
    assert child.parent_span_id.hex() == PARENT
    assert root.parent_span_id == b""
    assert root.trace_id.hex() != TRACE


@pytest.mark.parametrize("header", ["", "garbage", "00-0-0-00", f"00-{'0' * 32}-{PARENT}-01", "\x00" * 4_000])
def test_garbage_in_a_trace_header_makes_a_root(header: str) -> None:
    """A header that is no trace context is ignored."""
    [(_, span)] = send([replace(recorded(Reason.WINDOW_HOLE), trace=(("traceparent", header),))])
    assert span.parent_span_id == b""


def test_what_the_client_does_not_sample_is_not_sent() -> None:
    """A client's choice not to record its trace is kept."""
    header = ("traceparent", f"00-{TRACE}-{PARENT}-00")
    assert send([replace(recorded(Reason.WINDOW_HOLE), trace=(header,))]) == []


def test_unknown_is_left_out() -> None:
    """A decision without a page table has no logical and usable attribute, rather than 0."""
    plain = replace(recorded(Reason.WINDOW_HOLE), logical=None, usable=None, outcome=Outcome.UNKNOWN, per_group=None)
    [(_, span)] = send([plain])
    found = attributes(span.attributes)
    assert "kvctl.reuse.logical_tokens" not in found
    assert "kvctl.reuse.usable_tokens" not in found
    assert all("kvctl.hit_tokens" not in attributes(event.attributes) for event in span.events)


def test_no_request_id_and_no_key_leaves() -> None:
    """Nothing of what a client sent stands in a span: no request id, no key."""
    decision = replace(recorded(Reason.WINDOW_HOLE), request="secret-request", chain=(b"k" * 16,))
    [(_, span)] = send([decision])
    message = span.SerializeToString()
    assert b"secret-request" not in message
    assert b"k" * 16 not in message


def test_engines_have_resources_of_their_own() -> None:
    """Spans of two engines arrive under two resources; the environment's service name wins."""
    first, second = send([recorded(Reason.WINDOW_HOLE)], "one"), send([recorded(Reason.WINDOW_HOLE)], "two")
    assert [spans[0][0]["kvctl.engine"] for spans in (first, second)] == ["one", "two"]


def test_names_of_the_environment_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES describe the resource."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    [(resource, _)] = send([recorded(Reason.WINDOW_HOLE)])
    assert (resource["service.name"], resource["deployment.environment"]) == ("mine", "test")


class Stuck(SpanExporter):
    """A receiver that does not answer until it is let go."""

    def __init__(self) -> None:
        self.called, self.let_go = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        """Wait."""
        self.called.set()
        self.let_go.wait(30.0)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing to do."""


def test_a_stuck_receiver_costs_spans_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the receiver does not answer, the queue fills up to its limit, the rest is dropped and counted."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    stuck = Stuck()
    queue = SpanQueue(stuck)
    queue.start()
    spans = Spans(queue, lambda _identity: TracerProvider().resource, version="1")
    identity, decision = identity_of(RecordedEngine()), recorded(Reason.WINDOW_HOLE)
    spans(identity, (decision, decision))
    assert stuck.called.wait(30.0)
    spans(identity, (decision,) * 20)
    assert queue.dropped == 12
    stuck.let_go.set()
    queue.close(30.0)
    assert queue.sent == 10


def test_a_refusing_receiver_is_counted() -> None:
    """Spans that the receiver refused are counted as dropped."""
    with receiver() as received:
        received.status = 400
        wanted = receiver_of(received.url)
        assert wanted is not None
        telemetry = Telemetry(replace(wanted, metrics=False), version="1")
        assert telemetry.spans is not None
        telemetry.start(list)
        telemetry.spans(identity_of(RecordedEngine()), (recorded(Reason.WINDOW_HOLE),))
        wait_for(lambda: telemetry.samples()[0].value == 1, "the refused span to be counted")
        telemetry.close()


def test_metrics_arrive_with_kinds_starts_and_histograms() -> None:
    """Every metric of the catalogue arrives: sums cumulative from the engine's start, histograms with their buckets."""
    readings = full_reading()
    with receiver() as received:
        wanted = receiver_of(received.url)
        assert wanted is not None
        telemetry = Telemetry(replace(wanted, traces=False), version="1")
        telemetry.start(lambda: readings)
        wait_for(lambda: received.metrics, "a report")
        telemetry.close()
        latest = received.latest()
    assert set(latest) == {metric.otel_name for metric in METRICS}
    for metric in METRICS:
        [found] = latest[metric.otel_name]
        data = getattr(found, {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}[metric.kind])
        point = data.data_points[0]
        assert set(attributes(point.attributes)) == set(metric.all_labels)
        if metric.kind is not Kind.GAUGE:
            expected = readings[0 if metric.scope is Scope.ENGINE else 1].start_of(metric)
            assert point.start_time_unix_nano == expected
            assert data.aggregation_temporality == 2, "cumulative"
    histogram = latest["kvctl.decision_duration"][0].histogram.data_points[0]
    assert (list(histogram.bucket_counts), list(histogram.explicit_bounds)) == ([3, 0, 2], [0.001, 0.01])
    assert (histogram.count, histogram.sum) == (5, 0.5)
    assert not histogram.HasField("min")


def test_nobody_asked_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --otlp and OTEL_* nothing is pushed, and OTEL_SDK_DISABLED beats both."""
    assert receiver_of(None) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert receiver_of("http://localhost:4318") is None


def test_the_environment_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_ENDPOINT alone is enough; either signal can be switched off."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    wanted = receiver_of(None)
    assert wanted is not None
    assert (wanted.traces, wanted.metrics, wanted.traces_url) == (True, False, None)


def test_what_kvctl_cannot_speak_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that is none, or a protocol other than HTTP, is a usage error."""
    with pytest.raises(UsageError, match="--otlp"):
        receiver_of("localhost:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UsageError, match="grpc"):
        receiver_of(None)
