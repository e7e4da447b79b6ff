"""What a scraper gets: formats, refusals, and an address that is taken."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

from agent.errors import UsageError
from exporters.catalogue import CATALOGUE, METRICS, Kind, Reading, Sample
from exporters.prometheus import Endpoint, listen_address
from tests.support.exporting import START_NS, full_reading

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@contextmanager
def endpoint_of(readings: list[Reading]) -> Iterator[str]:
    """Run the endpoint on a free port; yield its base address."""
    endpoint = Endpoint(lambda: readings, "127.0.0.1:0")
    endpoint.start()
    host, port = endpoint.address
    try:
        yield f"http://{host}:{port}"
    finally:
        endpoint.close()


def parse_text(text: str) -> list[Metric]:
    """Read the text format."""
    return list(parser.text_string_to_metric_families(text))


def parse_openmetrics(text: str) -> list[Metric]:
    """Read OpenMetrics, strictly."""
    return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def scrape(url: str, accept: str = "text/plain") -> tuple[str, str]:
    """Return body and content type."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return answer.read().decode(), answer.headers["Content-Type"]


def test_every_metric_is_shown_under_its_name() -> None:
    """A scrape shows every metric of the catalogue with its labels, in both formats."""
    with endpoint_of(full_reading()) as base:
        text, plain = scrape(f"{base}/metrics")
        openmetrics, content_type = scrape(f"{base}/metrics", OPENMETRICS)
    assert plain.startswith("text/plain")
    assert content_type.startswith("application/openmetrics-text")
    assert openmetrics.endswith("# EOF\n")
    for parsed in (parse_text(text), parse_openmetrics(openmetrics)):
        samples = {sample.name: sample for family in parsed for sample in family.samples}
        for metric in METRICS:
            name = f"{metric.prometheus_name}_count" if metric.kind is Kind.HISTOGRAM else metric.prometheus_name
            assert set(samples[name].labels) == set(metric.all_labels)


def test_histograms_are_cumulative() -> None:
    """Buckets add up, and the last one is the count."""
    with endpoint_of(full_reading()) as base:
        text, _ = scrape(f"{base}/metrics")
    family = next(one for one in parse_text(text) if one.name == "kvctl_decision_duration_seconds")
    buckets = [(one.labels["le"], one.value) for one in family.samples if one.name.endswith("_bucket")]
    assert buckets == [("0.001", 3.0), ("0.01", 3.0), ("+Inf", 5.0)]


def test_counters_carry_the_start_of_the_engine() -> None:
    """A counter that lives in the engine began with the engine, one of the exporter with the exporter."""
    with endpoint_of(full_reading()) as base:
        text, _ = scrape(f"{base}/metrics", OPENMETRICS)
    created = {
        s.name: s.value for family in parse_openmetrics(text) for s in family.samples if s.name.endswith("_created")
    }
    assert created["kvctl_reuse_lookup_tokens_created"] == START_NS / 1e9
    assert created["kvctl_gate_checks_created"] == START_NS / 1e9 + 1


def test_hostile_labels_do_not_break_the_format() -> None:
    """Quotes, backslashes and braces of a model's name are escaped and read back as they were."""
    hostile = "a\"b\\c}{d'e 你好"
    with endpoint_of(full_reading(hostile)) as base:
        for accept, parse in (("text/plain", parse_text), (OPENMETRICS, parse_openmetrics)):
            text, _ = scrape(f"{base}/metrics", accept)
            up = next(one for one in parse(text) if one.name == "kvctl_up")
            assert up.samples[0].labels["engine"] == hostile


def test_absent_values_have_no_series() -> None:
    """A metric without a sample is not mentioned at all."""
    one = Reading(engine="e", model="m", samples=(Sample(metric=CATALOGUE["up"], value=0),))
    with endpoint_of([one]) as base:
        text, _ = scrape(f"{base}/metrics")
    assert {family.name for family in parse_text(text)} == {"kvctl_up"}


@pytest.mark.parametrize("path", ["/other", "/metrics/", "/../metrics"])
def test_other_paths_are_not_found(path: str) -> None:
    """There is nothing but the metrics and a page that points at them."""
    with endpoint_of([]) as base:
        assert "/metrics" in scrape(f"{base}/")[0]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(base + path)


def test_nothing_can_be_sent() -> None:
    """The endpoint is read-only: other methods are refused."""
    with endpoint_of([]) as base:
        request = urllib.request.Request(f"{base}/metrics", data=b"x", method="POST")  # noqa: S310 - loopback
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=10)  # noqa: S310


def test_garbage_does_not_stop_the_endpoint() -> None:
    """A client that talks nonsense, or goes away in the middle, leaves the endpoint as it was."""
    with endpoint_of(full_reading()) as base:
        port = int(base.rsplit(":", 1)[1])
        for garbage in (b"\x00\xff\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(garbage)
        assert "kvctl_up" in scrape(f"{base}/metrics")[0]


def test_a_taken_address_is_a_clear_error() -> None:
    """An address that is in use is a usage error with the next step, not a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match="cannot listen on") as caught:
            Endpoint(list, address)
    assert "in use" in (caught.value.why or "")
    assert "--listen" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:1", ("::1", 1)), (":80", ("", 80)), ("host:0", ("host", 0))],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    """Host and port, an IPv6 address in brackets, or a port alone."""
    assert listen_address(text) == expected


@pytest.mark.parametrize("text", ["", "9464", "host:", "host:x", "host:70000"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """What is no address is a usage error that shows one."""
    with pytest.raises(UsageError, match="--listen"):
        listen_address(text)
