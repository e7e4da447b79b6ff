"""Serve metrics to Prometheus and push OTLP until stopped; assets writes dashboards and alerts.

Invariant: the main thread finds engines and waits for signals; everything else has threads of its own.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.errors import UsageError
from kvctl import __version__
from kvctl.options import Options, Part, new_app, with_options
from kvctl.output import say, say_what_libraries_log

if TYPE_CHECKING:
    from agent.model.snapshot import Snapshot
    from exporters.catalogue import Sample
    from exporters.fleet import Fleet
    from exporters.otel import Telemetry

app = new_app()

_TICK_S = 2.0
"""Pause between two looks for engines that came or went."""


@app.callback(invoke_without_command=True)
@with_options(Part.TARGET)
def export(
    options: Options,
    context: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Serve /metrics here; 'off': do not.")
    ] = "127.0.0.1:9464",
    otlp: Annotated[
        str | None, typer.Option("--otlp", metavar="URL", help="Push spans and metrics to this OTLP/HTTP receiver.")
    ] = None,
    pages_every: Annotated[
        float, typer.Option("--pages-every", metavar="SECONDS", min=0, help="Read the page table; 0: never.")
    ] = 15.0,
    gates_every: Annotated[
        float, typer.Option("--gates-every", metavar="SECONDS", min=0, help="Run the gates on it; 0: never.")
    ] = 60.0,
) -> None:
    """Serve the metrics of all engines of this host, or of the one that is named, until stopped.

    Engines may come, go and restart meanwhile. Counters live in the engine: they survive a restart of the exporter, and
    two exporters never count twice. OTEL_* variables are honoured; without --otlp they also say where to push.
    """
    if context.invoked_subcommand is not None:
        return
    from exporters.otel import Telemetry, receiver_of

    say_what_libraries_log()
    receiver = receiver_of(otlp)
    if listen == "off" and receiver is None:
        raise UsageError("there is nothing to do", next_step="leave out --listen off, or give --otlp URL")
    telemetry = None if receiver is None else Telemetry(receiver, version=__version__)
    fleet = _fleet(options, telemetry, pages_every or None, gates_every or None)
    with _stop_event() as stop, contextlib.ExitStack() as stack:
        if listen != "off":
            stack.callback(_serve(fleet, listen).close)
        if telemetry is not None:
            stack.callback(telemetry.close)
            telemetry.start(fleet.readings)
        stack.callback(fleet.close)
        fleet.tick()
        if not fleet.count:
            say("no engine with an agent runs here yet; waiting for one")
        while not stop.wait(_TICK_S):
            fleet.tick()


def _fleet(options: Options, telemetry: "Telemetry | None", pages_s: float | None, gates_s: float | None) -> "Fleet":
    from agent.discovery import Endpoint
    from agent.session import Session
    from exporters.choice import choose
    from exporters.fleet import Fleet
    from exporters.source import Rhythm

    def opener(endpoint: Endpoint) -> Session:
        return Session.open(endpoint)

    def own_samples() -> "list[Sample]":
        return [] if telemetry is None else telemetry.samples()

    target = options.target
    return Fleet(
        choose(opener, pid=target.pid, name=target.engine, socket=target.socket),
        opener,
        version=__version__,
        sink=None if telemetry is None else telemetry.spans,
        analyse=_stranded,
        rhythm=Rhythm(pages_s=pages_s, gates_s=gates_s),
        note=say,
        own_samples=own_samples,
    )


def _stranded(snapshot: "Snapshot") -> "list[Sample]":
    """Return the memory of stranded pages by state; nothing where it cannot be told."""
    from exporters.catalogue import CATALOGUE, Sample
    from inspector.prefixes import Prefixes

    pages = None if snapshot.pages is None else Prefixes(snapshot).stranded
    if pages is None:
        return []
    pool = snapshot.pool.page_bytes if snapshot.pool is not None else None
    sums: dict[str, int] = {}
    unknown: set[str] = set()
    for group in snapshot.geometry.groups:
        page_bytes = group.page_bytes if group.page_bytes is not None else pool
        stranded = pages[group.id]
        if page_bytes is None or stranded is None:
            unknown.add(group.state.value)
            continue
        sums[group.state.value] = sums.get(group.state.value, 0) + stranded * page_bytes
    metric = CATALOGUE["stranded_bytes"]
    return [
        Sample(metric=metric, labels=(state, "pool"), value=number)
        for state, number in sums.items()
        if state not in unknown
    ]


def _serve(fleet: "Fleet", listen: str) -> Any:
    from exporters.prometheus import Endpoint

    endpoint = Endpoint(fleet.readings, listen)
    endpoint.start()
    host, port = endpoint.address
    say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
    return endpoint


@contextlib.contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets: what stops a service is no error."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def assets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write into; it is created.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> None:
    """Write the Grafana dashboard, the Prometheus rules with their unit tests, and a README."""
    from exporters.assets import write
    from inspector.format import clean
    from kvctl.output import Output

    written = write(folder, force=force)
    Output().write("".join(f"{clean(str(path))}\n" for path in written))
