"""Jobs: what a key asks for and takes longer than a key press - check, plan, carry out, save.

Invariant: each runs in a thread of its own, over a conversation of its own, and ends with exactly one message; one
job at a time. Started by the app.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from textual.message import Message

from agent.collect import MAX_LOOKUPS, collect
from agent.errors import KvctlError
from agent.fingerprint import kept, with_pin
from agent.gates.runner import run
from agent.model.snapshot import Level, Snapshot

from ..invalidation import Plan, apply_plan, holders_of, make_plan
from ..selection import select
from ..selector import Selector
from ..store import save
from ..views.findings import findings
from ..views.plan import plan as view
from .link import Link, aside
from .messages import Failed, Judged, Planned, Remark, Told

Job = Callable[[Link, float], Message]
"""Does it, within a deadline in seconds for each call, and returns the message that ends it."""


class Jobs:
    """Runs one job at a time.

    Args:
        link: What to work on.
        post: Takes messages from any thread.
        timeout_s: For each call.
    """

    def __init__(self, link: Link, post: Callable[[Message], object], timeout_s: float) -> None:
        self._link = link
        self._post = post
        self._timeout_s = timeout_s
        self.running: str | None = None
        """What runs now, in a few words."""

    def start(self, what: str, job: Job) -> bool:
        """Begin a job; False where another one has not ended."""
        if self.running is not None:
            return False
        self.running = what
        threading.Thread(target=self._run, args=(job,), name="kvctl-top-job", daemon=True).start()
        return True

    def _run(self, job: Job) -> None:
        try:
            message: Message = job(self._link, self._timeout_s)
        except KvctlError as error:
            message = Failed(error)
        self.running = None
        self._post(message)


def _whole(link: Link, timeout_s: float, *, to_keep: bool) -> Snapshot:
    """Read everything there is and that gates ask for, over a conversation that ends right after.

    Args:
        link: Where from.
        timeout_s: For all of it.
        to_keep: It goes into a file, which is compared with a pin where it is looked at; else it is compared now.
    """
    if not link.live:
        return link.read(table=True) if to_keep else with_pin(link.read(table=True))
    with aside(link) as session:
        session.borrows = False
        session.follow(Level.REFERENCES, deadline_s=timeout_s)
        session.poll()
        snapshot = session.snapshot(tables=True, free_list=True, lookups=MAX_LOOKUPS, deadline_s=timeout_s)
        found = collect(session, snapshot)
        return kept(session, found, deadline_s=timeout_s) if to_keep else found


def validate(link: Link, timeout_s: float) -> Message:
    """Run all gates."""
    snapshot = _whole(link, timeout_s, to_keep=False)
    return Judged(findings(snapshot, run(snapshot)))


def plan_for(selector: Selector, chain: tuple[bytes, ...] | None) -> Job:
    """Return the job that plans to take out what a selector covers.

    Args:
        selector: What to take.
        chain: The keys of a request at each hash unit, for a selector that means them.
    """

    def job(link: Link, timeout_s: float) -> Message:
        with aside(link) as session:
            session.borrows = False
            session.follow(Level.REFERENCES, deadline_s=timeout_s)
            session.poll()
            snapshot = session.snapshot(tables=True, deadline_s=timeout_s)
            made = make_plan(session, snapshot, select(snapshot, selector, chain=chain), deadline_s=timeout_s)
            report = view(snapshot, made, held_by=holders_of(snapshot, made.pages))
            return Planned(made, report, allowed=session.info.allow_changes)

    return job


def carry_out(plan: Plan) -> Job:
    """Return the job that carries out a plan, exactly as it was shown."""

    def job(link: Link, timeout_s: float) -> Message:
        with aside(link) as session:
            done = apply_plan(session, plan, quarantine=True, deadline_s=timeout_s)
            snapshot = session.overview(deadline_s=timeout_s)
            return Told("invalidated", view(snapshot, plan, held_by=(), applied=done))

    return job


def save_to(path: Path, version: str, shown: Snapshot) -> Job:
    """Return the job that saves a whole snapshot, keys and ids replaced.

    Args:
        path: Where.
        version: Of kvctl.
        shown: What is on the screen: the decisions that were explained there are explained in the file as well.
    """

    def job(link: Link, timeout_s: float) -> Message:
        save(_explained(_whole(link, timeout_s, to_keep=True), shown), path, version=version)
        return Remark(f"saved {path}; keys and request ids were replaced: it can be handed on")

    return job


def _explained(snapshot: Snapshot, shown: Snapshot) -> Snapshot:
    """Add the decisions that were followed so far; whoever joins now has none explained."""
    engines = {(one.engine.pid, one.engine.start_ticks) for one in (snapshot, shown)}
    if len(engines) > 1 or not shown.decisions:
        return snapshot
    known = {item.id: item for item in snapshot.decisions or ()}
    known |= {item.id: item for item in shown.decisions if item.logical is not None or item.id not in known}
    return replace(snapshot, decisions=tuple(known[number] for number in sorted(known)))
