"""The Prometheus face: a collector over the latest readings, and the read-only HTTP endpoint.

Invariant: a scrape reads what is in memory and waits for no engine; the registry is our own; anything but
``GET /metrics`` and ``GET /`` is refused. Called by ``kvctl export``.
"""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.errors import UsageError

from .catalogue import METRICS, PREFIX, Distribution, Kind, Reading, Sample
from .catalogue import Metric as Entry

DEFAULT_LISTEN: Final = "127.0.0.1:9464"
IDLE_S: Final = 30.0
"""A connection that asks nothing for this long is closed."""

_INDEX: Final = b"<html><head><title>kvctl</title></head><body><a href='/metrics'>metrics</a></body></html>\n"

Readings = Callable[[], Iterable[Reading]]


class ReadingCollector(Collector):
    """Turn readings into metric families.

    Args:
        readings: Returns the latest readings.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def describe(self) -> Iterable[Metric]:
        """Name the families without reading anything."""
        return [_family(entry) for entry in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        by_name: dict[str, list[tuple[Reading, Sample]]] = {}
        for reading in self._readings():
            for sample in reading.samples:
                by_name.setdefault(sample.metric.name, []).append((reading, sample))
        for entry in METRICS:
            if entry.name in by_name:
                family = _family(entry)
                for reading, sample in by_name[entry.name]:
                    _add(family, reading, sample)
                yield family


def _family(entry: Entry) -> Metric:
    kinds: dict[Kind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    return kinds[entry.kind](f"{PREFIX}{entry.name}", entry.help, labels=entry.all_labels)


def _add(family: Metric, reading: Reading, sample: Sample) -> None:
    labels = reading.labels_of(sample)
    if isinstance(family, HistogramMetricFamily) and isinstance(sample.value, Distribution):
        family.add_metric(labels, _buckets(sample.value), sample.value.sum)
    elif isinstance(family, CounterMetricFamily) and not isinstance(sample.value, Distribution):
        family.add_metric(labels, sample.value, created=reading.start_of(sample.metric) / 1e9)
    elif isinstance(family, GaugeMetricFamily) and not isinstance(sample.value, Distribution):
        family.add_metric(labels, sample.value)


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets


def registry_of(readings: Readings) -> CollectorRegistry:
    """Return a registry of our own over the readings."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ReadingCollector(readings))
    return registry


def listen_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[HOST]:PORT`` or ``:PORT`` (all addresses).

    Raises:
        UsageError: It is none of them.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise UsageError(f"--listen is {text!r}", next_step=f"give HOST:PORT, for example {DEFAULT_LISTEN}")
    return host.strip("[]"), int(port)


class _Handler(BaseHTTPRequestHandler):
    """Answer one connection."""

    timeout = IDLE_S
    server_version = "kvctl"
    sys_version = ""
    registry: CollectorRegistry

    def do_GET(self) -> None:
        """Answer a scrape."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._answer(200, encode(self.registry), content_type)
        elif path == "/":
            self._answer(200, _INDEX, "text/html; charset=utf-8")
        else:
            self._answer(404, b"not found; metrics are at /metrics\n", "text/plain; charset=utf-8")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing: requests are no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a scraper that went away is no fault of ours."""


class Endpoint:
    """The HTTP endpoint.

    Args:
        readings: Returns the latest readings.
        listen: ``HOST:PORT``; port 0 takes a free one.

    Raises:
        UsageError: The address makes no sense, or is taken.
    """

    def __init__(self, readings: Readings, listen: str = DEFAULT_LISTEN) -> None:
        host, port = listen_address(listen)
        handler = type("Handler", (_Handler,), {"registry": registry_of(readings)})
        server = type("Server", (_Server,), {"address_family": _family_of(host)})
        try:
            self._server: _Server = server((host, port), handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {listen}",
                why=(error.strerror or str(error)).lower(),
                next_step="choose another address with --listen, or end what uses it",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvctl-http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def _family_of(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
