"""List the engines on this host that have an agent."""

from typing import TYPE_CHECKING

from agent.errors import KvctlError
from kvctl.options import READ, Options, new_app, with_options
from kvctl.targets import FileSource, Need, pause

if TYPE_CHECKING:
    from agent.discovery import Endpoint
    from inspector.report import Report
    from inspector.views.engines import Row

app = new_app()

_EMPTY = "no engine with an agent on this host; start one with: kvctl run -- vllm serve MODEL"


@app.command()
@with_options(*READ)
def ps(options: Options) -> None:
    """List the engines on this host that have an agent.

    USED is the share of pages that requests hold. USABLE/LOGICAL is the share of logically cached tokens that could
    really be reused, over the last decisions: 100% is an engine that loses nothing. (kvctl inspect shows shares of all
    tokens that were looked up.)
    """
    shown = 0
    while True:
        options.output.show(_listed(options))
        shown += 1
        if options.watch is None or shown == options.watch.count:
            return
        pause(options.watch.interval_s)


def _listed(options: Options) -> "Report":
    from inspector.views.engines import Row, engines

    target = options.target
    if target.snapshot is not None:
        snapshot = FileSource(target.snapshot).read(Need.OVERVIEW, lambda _: None)
        return engines([Row(pid=snapshot.engine.pid, snapshot=snapshot)], empty=_EMPTY)
    from agent import paths
    from agent.discovery import EndpointState, discover, endpoint_at
    from agent.lineage import standing_for
    from inspector.format import plural

    found = [endpoint_at(target.socket)] if target.socket is not None else discover()
    live = [item for item in found if item.state is EndpointState.LIVE]
    live = live if target.pid is None else standing_for(target.pid, live)
    rows = [_asked(endpoint, options.timeout_s) for endpoint in live]
    if target.engine is not None:
        rows = [
            row
            for row in rows
            if row.snapshot and target.engine in {row.snapshot.engine.name, row.snapshot.engine.model}
        ]
    dead = sum(item.state is EndpointState.DEAD for item in found)
    others = sum(item.state in {EndpointState.FOREIGN, EndpointState.UNSAFE} for item in found)
    notes = []
    if dead:
        notes.append(f"note: leftovers of {plural(dead, 'dead engine')}; kvctl doctor --fix removes them")
    if others:
        notes.append(f"note: {plural(others, 'socket')} not used; kvctl doctor says why")
    if not rows and target.socket is None and (deaf := paths.deaf()) is not None:
        notes.append(f"note: no agent can listen here: {deaf}; kvctl doctor says how to mend it")
    return engines(rows, empty=_EMPTY, notes=notes)


def _asked(endpoint: "Endpoint", timeout_s: float) -> "Row":
    from agent.session import Session
    from inspector.views.engines import Row

    try:
        with Session.open(endpoint, deadline_s=timeout_s) as session:
            return Row(pid=endpoint.pid, snapshot=session.overview())
    except KvctlError as error:
        return Row(pid=endpoint.pid, error=error.why or error.what)
