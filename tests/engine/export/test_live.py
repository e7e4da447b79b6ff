"""A real Prometheus and an OTLP receiver on ``kvctl export`` on a real server.

One server with windows and full attention whose client spans go to our receiver; the tests share it.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.model.decision import Decision, Phase
from agent.session import Session
from exporters.assets import write
from tests.support import otlp
from tests.support.monitoring import Exporter, exporting, prometheus, promtool
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, free_port, serve
from tests.support.waiting import wait_for

BLOCK = 32
PAGES = 420
"""About four long prompts: other traffic pushes pages out soon."""

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def receiver() -> Iterator[otlp.Receiver]:
    """Receive the spans of the server and of the exporters."""
    with otlp.receiver() as received:
        yield received


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], receiver: otlp.Receiver) -> Iterator[Server]:
    """Serve the model, with trace headers handed to the engine core."""
    arguments = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(PAGES), "--max-model-len", "4096")
    tracing = ("--otlp-traces-endpoint", f"{receiver.url}/v1/traces")
    variables = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    with serve(model("gemma3"), *arguments, *tracing, environment=variables) as running:
        yield running


@dataclass(slots=True)
class Log:
    """The decision log, followed by a session of our own."""

    session: Session
    decisions: list[Decision]

    def upto(self, count: int) -> list[Decision]:
        """Wait for ``count`` decisions."""

        def enough() -> bool:
            self.decisions.extend(self.session.poll())
            return len(self.decisions) >= count

        wait_for(enough, f"{count} decisions in the log")
        return self.decisions


@pytest.fixture
def log(server: Server) -> Iterator[Log]:
    """Follow the decisions of the server."""
    with server.session() as session:
        session.follow()
        session.poll()
        yield Log(session, [])


def total(decisions: list[Decision], field: str) -> int:
    """Sum of a field over first admissions."""
    return sum(getattr(one, field) or 0 for one in decisions if one.phase is Phase.FIRST)


def following(exporter: Exporter) -> None:
    """Wait until the exporter explains decisions."""
    exporter.follows()


def traffic(server: Server, name: str) -> int:
    """Send prompts of every kind: cold, identical, siblings, and enough others to push pages out; return how many."""
    stem = prompt(name, 1_000)
    asked = [stem, stem, sibling(stem, 600, "a", 40), sibling(stem, 600, "b", 40)]
    asked += [prompt(f"{name}-{at}", 1_500) for at in range(6)]
    asked += [stem, prompt(f"{name}-short", 20)]
    for ids in asked:
        server.http.complete(ids)
    return len(asked)


def test_prometheus_scrapes_the_sums_of_the_decision_log(server: Server, log: Log, tmp_path: Path) -> None:
    """Logical and usable in Prometheus equal the sums over the decision log, and the engine's own count of hits."""
    write(tmp_path / "assets")
    rules = [tmp_path / "assets" / name for name in ("kvctl-alerts.yml", "kvctl-aliases.yml")]
    with exporting(server.runtime, tmp_path, "--pages-every", "1", "--gates-every", "1") as exporter:
        following(exporter)
        target = exporter.base.removeprefix("http://")
        before = {name: exporter.value(f"kvctl_reuse_{name}_tokens_total", phase="first") or 0 for name in SUMS}
        hits_before = server.http.metric("vllm:prefix_cache_hits_total")
        with prometheus(tmp_path, [target], rules, free_port()) as scraping:
            decisions = log.upto(traffic(server, "sums"))
            assert all(one.logical is not None for one in decisions)
            assert total(decisions, "usable") < total(decisions, "logical")
            for name, field in SUMS.items():
                query = f'kvctl_reuse_{name}_tokens_total{{phase="first",engine="m"}}'
                expected = before[name] + total(decisions, field)
                wait_for(lambda: scraping.number(query) == expected, f"{query} to be {expected}")  # noqa: B023
            hits = server.http.metric("vllm:prefix_cache_hits_total") - hits_before
            assert total(decisions, "engine_usable") == hits
            assert scraping.number('sum(kvctl_reuse_disagreements_total{engine="m"})') == 0
            assert scraping.number("kvctl_up") == 1
            lost = scraping.number('sum(kvctl_reuse_lost_tokens_total{state="swa"})')
            assert lost is not None
            assert lost > 0
            wait_for(lambda: scraping.number("sum(kvctl_pages) > 0"), "pages of the table")
            wait_for(lambda: scraping.number("sum(kvctl_gate_checks_total) > 0"), "a run of the gates")
            loaded = scraping.ask("rules")["groups"]
            assert {group["name"] for group in loaded} >= {"kvctl-reuse", "kvctl-integrity", "kvctl-agent"}
            assert all(rule["health"] in {"ok", "unknown"} for group in loaded for rule in group["rules"])
        assert promtool("check", "metrics", text=exporter.text()) == ""


SUMS = {"logical": "logical", "usable": "usable", "explained": "lookup_tokens", "lookup": "lookup_tokens"}
"""Counter, and the field of the decisions whose sum it is."""


def test_counters_survive_a_restart_of_the_exporter(server: Server, log: Log, tmp_path: Path) -> None:
    """Across a restart nothing is lost or counted twice; what nobody followed is unexplained, not zero."""
    names = (
        "kvctl_reuse_logical_tokens_total",
        "kvctl_reuse_usable_tokens_total",
        "kvctl_reuse_explained_tokens_total",
    )
    with exporting(server.runtime, tmp_path) as exporter:
        following(exporter)
        begin = {name: exporter.value(name, phase="first") or 0 for name in names}
        first = list(log.upto(traffic(server, "before")))
        # The last prompt is shorter than a page: it adds to the tokens of look-ups only.
        looked_up = begin[names[2]] + total(first, "lookup_tokens")
        wait_for(lambda: exporter.value(names[2], phase="first") == looked_up, "the first books")
        assert exporter.value(names[0], phase="first") == begin[names[0]] + total(first, "logical")
        before = {name: exporter.value(name, phase="first") for name in names}
        unexplained = exporter.value("kvctl_reuse_unexplained_decisions_total") or 0
    between = traffic(server, "between")
    with exporting(server.runtime, tmp_path) as exporter:
        following(exporter)
        wait_for(
            lambda: exporter.value("kvctl_reuse_unexplained_decisions_total") == unexplained + between,
            "the decisions in between to be counted as unexplained",
        )
        assert {name: exporter.value(name, phase="first") for name in names} == before
        log.upto(len(first) + between)
        after = traffic(server, "after")
        everything = log.upto(len(first) + between + after)
        explained = first + everything[len(first) + between :]
        expected = begin[names[0]] + total(explained, "logical")
        wait_for(lambda: exporter.value(names[0], phase="first") == expected, "the books to go on")


def test_two_exporters_show_the_same_and_count_once(server: Server, log: Log, tmp_path: Path) -> None:
    """Two exporters on one engine agree, and neither counts what the other has counted."""
    name = "kvctl_reuse_logical_tokens_total"
    with exporting(server.runtime, tmp_path) as one, exporting(server.runtime, tmp_path) as two:
        for exporter in (one, two):
            following(exporter)
        begin = one.value(name, phase="first") or 0
        expected = begin + total(log.upto(traffic(server, "twice")), "logical")
        for exporter in (one, two):
            wait_for(lambda: exporter.value(name, phase="first") == expected, "both books")  # noqa: B023
        assert {exporter.value("kvctl_accounting") for exporter in (one, two)} == {0.0, 1.0}


def test_the_span_joins_the_trace_of_the_client(server: Server, receiver: otlp.Receiver, tmp_path: Path) -> None:
    """A client's traceparent comes back as trace and parent of the decision's span."""
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with exporting(server.runtime, tmp_path, "--otlp", receiver.url, environment=soon) as exporter:
        following(exporter)
        body = {"model": "m", "prompt": prompt("traced", 200), "max_tokens": 2}
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{server.http.base}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "traceparent": f"00-{TRACE}-{PARENT}-01"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
            assert answer.status == 200

        def ours() -> list[object]:
            return [span for _, span in receiver.spans("kvctl.reuse_decision") if span.trace_id.hex() == TRACE]

        (span,) = wait_for(ours, "the decision's span in the client's trace")
        assert span.parent_span_id.hex() == PARENT  # type: ignore[attr-defined]
        found = otlp.attributes(span.attributes)  # type: ignore[attr-defined]
        assert (found["kvctl.reuse.lookup_tokens"], found["kvctl.reuse.usable_tokens"]) == (200, 0)
        wait_for(lambda: "kvctl.reuse_usable_tokens" in receiver.latest(), "metrics at the receiver")


def test_a_stopped_engine_does_not_stop_the_scrapes(server: Server, log: Log, tmp_path: Path) -> None:
    """While the engine's process stands still, scrapes are answered and show it as down; then all goes on."""
    name = "kvctl_reuse_logical_tokens_total"
    core = server.engine_pid()
    with exporting(server.runtime, tmp_path) as exporter:
        following(exporter)
        begin = exporter.value(name, phase="first") or 0
        os.kill(core, signal.SIGSTOP)
        try:
            wait_for(lambda: exporter.value("kvctl_up") == 0, "the engine to be shown as down")
            assert exporter.value(name, phase="first") is None
        finally:
            os.kill(core, signal.SIGCONT)
        following(exporter)
        expected = begin + total(log.upto(traffic(server, "stopped")), "logical")
        wait_for(lambda: exporter.value(name, phase="first") == expected, "the books to go on")
