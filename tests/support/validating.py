"""What ``kvctl validate`` does with a live engine, from the test's own process.

Invariant: the same reads and gates as the command, over any session; nothing is changed. Used by the live tests.
"""

from agent.collect import MAX_LOOKUPS, collect
from agent.gates.runner import run
from agent.model.finding import Finding, GateResult
from agent.model.snapshot import Level, Snapshot
from agent.session import Session


def validate(session: Session, previous: Snapshot | None = None) -> tuple[Snapshot, tuple[GateResult, ...]]:
    """Run all gates on an engine as it is now."""
    session.follow(Level.REFERENCES, deadline_s=60.0)
    session.poll()
    snapshot = collect(session, session.snapshot(tables=True, free_list=True, lookups=MAX_LOOKUPS))
    return snapshot, run(snapshot, previous=previous)


def findings(session: Session) -> dict[str, Finding]:
    """Run all gates on an engine as it is now; what they found, by code."""
    _, results = validate(session)
    return {finding.code: finding for result in results for finding in result.findings}
