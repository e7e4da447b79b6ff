"""Run gates over a snapshot.

Invariant: a gate that fails to run is a bug of kvctl and raises; it never becomes a verdict. The order of results is
the order of the gates. Called by ``kvctl validate``, the dashboard and the exporter.
"""

import time
from collections.abc import Iterable, Mapping

from ..errors import UsageError
from ..model.finding import GateName, GateResult
from ..model.snapshot import Snapshot
from ..model.states import PageId
from . import alignment, block, contract, intersection, redlines
from .record import RECORD, CleanRecord
from .report import GateReport
from .view import View

ALL_GATES: tuple[GateName, ...] = tuple(GateName)

_NAMES = {
    "1": GateName.BLOCK,
    "2": GateName.CONTRACT,
    "3": GateName.INTERSECTION,
    "4": GateName.ALIGNMENT,
    "redlines": GateName.REDLINES,
} | {str(gate): gate for gate in GateName}


def gate_of(text: str) -> GateName:
    """Read a gate's name as an operator writes it: ``1`` to ``4``, ``redlines``, or the name itself.

    Raises:
        UsageError: There is no such gate.
    """
    gate = _NAMES.get(text.strip().lower())
    if gate is None:
        raise UsageError(f"there is no gate {text[:20]!r}", next_step="gates are 1, 2, 3, 4 and redlines")
    return gate


def run(
    snapshot: Snapshot,
    gates: Iterable[GateName] = ALL_GATES,
    previous: Snapshot | None = None,
    *,
    plan: Mapping[PageId, int] | None = None,
    record: tuple[CleanRecord, ...] = RECORD,
) -> tuple[GateResult, ...]:
    """Run gates over one snapshot.

    Args:
        snapshot: What is judged.
        gates: Which gates.
        previous: An earlier snapshot of the same engine that was judged: content that changed under one generation is
            then seen, and decisions that it holds are not compared again.
        plan: A plan to be judged against the snapshot: stamp of each page when it was made.
        record: Configurations on record as clean (decides which errors are experimental).

    Returns:
        One result for each gate asked for, in the order of the gates.
    """
    asked = set(gates)
    view = View(snapshot)
    results = []
    for gate in ALL_GATES:
        if gate not in asked:
            continue
        report = GateReport(gate, snapshot, record)
        started = time.perf_counter_ns()
        _run_one(gate, view, report, previous, plan)
        results.append(report.result(time.perf_counter_ns() - started))
    return tuple(results)


def _run_one(
    gate: GateName,
    view: View,
    report: GateReport,
    previous: Snapshot | None,
    plan: Mapping[PageId, int] | None,
) -> None:
    match gate:
        case GateName.BLOCK:
            block.check(view, report, previous)
        case GateName.CONTRACT:
            contract.check(view, report)
        case GateName.INTERSECTION:
            intersection.check(view, report, previous)
        case GateName.ALIGNMENT:
            alignment.check(view, report)
        case GateName.REDLINES:
            redlines.check(view, report, plan)
