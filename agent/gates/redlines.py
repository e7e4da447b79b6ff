"""The red lines: admission, one route a state, check and use, static graphs.

Invariant: as for the gates. :func:`plan_conflicts` is also what the execution of a plan asks. Called by
``agent.gates.runner`` and by ``kvctl invalidate``.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

from ..model.evidence import BindConflict, Binds, CapturedBatch, Evidence, PlanRecord
from ..model.states import PageId
from .report import GateReport
from .view import View

MAX_RETURNS = 16
"""Admissions of one request that came to nothing before it is called a loop."""

_LISTED = 8
"""Rows or pages that a sentence names."""

_NOBODY = Evidence()
_SUSPECT = "; answers that read these pages are suspect"


def check(view: View, report: GateReport, plan: Mapping[PageId, int] | None) -> None:
    """Run the red lines.

    Args:
        view: The snapshot.
        report: Where to say it.
        plan: A plan to be judged against this snapshot: stamp of each page when the plan was made.
    """
    evidence = view.snapshot.evidence or _NOBODY
    _admission(view, report, evidence)
    _requeue(view, report, evidence)
    _recovery(report, evidence)
    _plans(view, report, evidence, plan)
    _binds(report, evidence)
    _graphs(view, report, evidence)
    report.cannot(["KV541"], "event streams are not read in this version")


def plan_conflicts(planned: Mapping[PageId, int | None], found: Mapping[PageId, int | None]) -> tuple[PageId, ...]:
    """List the pages whose generation is not the planned one."""
    return tuple(sorted(page for page, stamp in planned.items() if found.get(page) != stamp))


def _admission(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV501, KV502."""
    pool, admission = view.snapshot.pool, evidence.admission
    if admission is None or pool is None:
        report.cannot(("KV501", "KV502"), evidence.missing.get("admission", "admission control was not read"))
        return
    usable = pool.pages - (0 if pool.null_page is None else 1)
    report.looked("KV502", len(admission.needs), empty="no request waits")
    for request, needed in admission.needs.items():
        if needed > usable:
            report.add("KV502", request=request, value=needed, size=usable)
    if admission.cap_ratio is None or admission.pinned is None:
        report.cannot(["KV501"], evidence.missing.get("cap", "this engine has no cap on reusable cache"))
        return
    report.looked("KV501", 1)
    if admission.needs and admission.pinned > admission.cap_ratio * usable:
        report.add("KV501", value=admission.pinned, size=usable, cap=f"{admission.cap_ratio:.0%}")


def _requeue(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV503: admissions that came to nothing: counted by the probe, or the engine's own count of preemptions."""
    returned: dict[str, int] = {} if evidence.admission is None else dict(evidence.admission.returned)
    for request in view.snapshot.requests or ():
        returned[request.id] = max(returned.get(request.id, 0), request.preemptions)
    if evidence.admission is None and view.snapshot.requests is None:
        report.cannot(["KV503"], "requests were not read")
        return
    report.looked("KV503", len(returned), empty="the engine has no request")
    for name, times in returned.items():
        if times >= MAX_RETURNS:
            report.add("KV503", request=name, value=times)


def _recovery(report: GateReport, evidence: Evidence) -> None:
    """KV511."""
    if evidence.recovery is None:
        report.cannot(["KV511"], evidence.missing.get("recovery", "this engine does not tell its recovery routes"))
        return
    report.looked("KV511", len(evidence.recovery), empty="nothing was recovered")
    for (first, route), (second, other) in combinations(sorted(evidence.recovery.items()), 2):
        if route == other:
            report.add("KV511", first=first, second=second, route=route)


def _plans(view: View, report: GateReport, evidence: Evidence, plan: Mapping[PageId, int] | None) -> None:
    """KV521: plans that were executed or refused, and the one that is to be judged now.

    An engine that tells no plans of its own makes one at each look-up and executes it when it binds the pages.
    """
    records = list(evidence.plans or ())
    executed: list[PlanRecord] = []
    pages = 0
    if evidence.plans is None and evidence.binds is not None:
        executed, pages = _of_binds(evidence.binds), evidence.binds.compared
    if plan is not None and view.snapshot.pages is not None:
        now = {page: int(view.stamp[page]) for page in plan if 0 <= page < view.count}
        records.append(PlanRecord(id="at hand", planned=plan, found=now, executed=False))
    elif evidence.plans is None and evidence.binds is None:
        report.cannot(["KV521"], evidence.missing.get("plans") or evidence.missing.get("binds", "no plan was made"))
        return
    report.looked("KV521", len(records) + pages, empty="no plan was made, and no page was bound yet")
    for record in (*records, *executed):
        moved = plan_conflicts(record.planned, record.found)
        if moved:
            report.add(
                "KV521",
                pages=moved,
                plan=record.id,
                done="executed although" if record.executed else "refused because",
                count=len(moved),
                planned="unknown" if (was := record.planned[moved[0]]) is None else was,
                found=record.found.get(moved[0]),
                then=_SUSPECT if record.executed else "",
                command="kvctl invalidate page:PAGES" if record.executed else None,
            )


def _of_binds(binds: Binds) -> list[PlanRecord]:
    """Plans that admissions executed on pages registered anew since the look-up, one a request."""
    moved: dict[str, list[BindConflict]] = {}
    for item in binds.conflicts:
        if item.checked == item.bound and item.stamp_checked != item.stamp_bound:
            moved.setdefault(item.request, []).append(item)
    return [
        PlanRecord(
            id=f"bind of {request}",
            planned={item.checked: item.stamp_checked for item in items},
            found={item.bound: item.stamp_bound for item in items},
            executed=True,
        )
        for request, items in moved.items()
    ]


def _binds(report: GateReport, evidence: Evidence) -> None:
    """KV522."""
    if evidence.binds is None:
        report.cannot(["KV522"], evidence.missing.get("binds", "binds are not compared by this probe"))
        return
    report.looked("KV522", evidence.binds.compared, empty="no page was bound yet")
    other = [item for item in evidence.binds.conflicts if item.checked != item.bound]
    if other:
        newest = other[-1]
        report.add(
            "KV522",
            # The pages of the request that is named come first.
            pages=[item.bound for item in reversed(other)],
            count=len(other),
            request=newest.request,
            checked=newest.checked,
        )


def _graphs(view: View, report: GateReport, evidence: Evidence) -> None:
    """KV531, KV532."""
    graphs = evidence.graphs
    uncaptured = evidence.missing.get("graphs", "no graph was captured (the engine may run without)")
    if graphs is None:
        report.cannot(["KV531"], uncaptured)
        report.cannot(["KV532"], evidence.missing.get("padding", uncaptured))
        return
    # Batches without buffers: something was captured, or is padded as if it were.
    unread = "the addresses of captured buffers were not read" if graphs.batches else uncaptured
    report.looked("KV531", len(graphs.buffers), empty=evidence.missing.get("graphs", unread))
    for buffer in graphs.buffers:
        if buffer.captured != buffer.now:
            report.add("KV531", name=buffer.name, captured=hex(buffer.captured), now=hex(buffer.now))
    report.looked("KV532", sum(len(batch.rows) - batch.live for batch in graphs.batches), empty="no batch is padded")
    for batch in graphs.batches:
        _padding(view, report, batch)


def _padding(view: View, report: GateReport, batch: CapturedBatch) -> None:
    null = view.snapshot.pool.null_page if view.snapshot.pool is not None else None
    # A negative id writes nothing, and the null page belongs to nobody.
    dirty = {
        row: [page for page in ids if page >= 0 and page != null]
        for row, ids in enumerate(batch.rows)
        if row >= batch.live
    }
    rows = [row for row, ids in dirty.items() if ids]
    if rows:
        pages = [page for row in rows for page in dirty[row]]
        report.add(
            "KV532",
            pages=pages,
            name=batch.name,
            where=f"captured batch ({batch.name})" if batch.captured else batch.name,
            which=_listed("row", rows),
            named=_listed("page", pages),
            writer="the captured graph" if batch.captured else "a dummy batch",
            rows=", ".join(map(str, rows)),
            ids=", ".join(map(str, pages[:32])),
        )


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """Name rows or pages: ``row 3``, ``pages 7, 9``; of many the first ones and how many more."""
    some = ", ".join(map(str, numbers[:_LISTED])) + (f" and {len(numbers) - _LISTED:,} more" * (len(numbers) > _LISTED))
    return f"{noun}{'' if len(numbers) == 1 else 's'} {some}"
