"""The self-test: each gate is shown a copy of the snapshot with one fault of each of its codes, and must find it.

Invariant: a plant that finds its own code and nothing new besides passes; anything else makes the gate report itself as
broken. Nothing is planted into an engine. Called by ``kvctl validate --self-test``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..model.evidence import Evidence
from ..model.finding import Finding, GateName
from ..model.snapshot import Consistency, Snapshot
from .catalogue import CATALOGUE, codes_of
from .editor import Editor
from .plants import PAGE_PLANTS, Plant
from .plants_evidence import EVIDENCE_PLANTS
from .runner import ALL_GATES, run

PLANTS: dict[str, Plant] = dict(sorted((PAGE_PLANTS | EVIDENCE_PLANTS).items()))
"""Every fault that can be planted, by code."""

COMPANIONS: dict[str, frozenset[str]] = {
    "KV113": frozenset({"KV521"}),
    "KV205": frozenset({"KV312"}),
    "KV307": frozenset({"KV305"}),
    "KV402": frozenset({"KV405"}),
}
"""Codes that the fault of another one brings along by its nature."""

SHARES = frozenset({"KV310"})
"""Codes about a share of all pages: where it is too high already, a fault in one page may well raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantResult:
    """What became of one planted fault."""

    code: str
    gate: GateName
    planted: bool
    found: bool
    also: tuple[str, ...] = ()
    """Codes that were found as well and should not have been."""
    reason: str | None = None
    """Why the fault could not be planted into this snapshot."""

    @property
    def broken(self) -> bool:
        """Tell whether the gate failed on this fault."""
        return self.planted and (not self.found or bool(self.also))


def selftest(
    snapshot: Snapshot, gates: Iterable[GateName] = ALL_GATES, *, codes: Iterable[str] | None = None
) -> tuple[PlantResult, ...]:
    """Plant every fault that the snapshot can carry, one at a time, and look for it.

    Args:
        snapshot: A snapshot with a page table, live or loaded. A torn one is treated as if it were not.
        gates: Gates to test.
        codes: Only these codes; None: all of the gates.

    Returns:
        One result for each code of these gates.
    """
    # A hash table read beside the pages, or its length, would no longer fit once a page is changed.
    base = replace(
        snapshot,
        pool=None if snapshot.pool is None else replace(snapshot.pool, keys=None),
        capture=replace(snapshot.capture, consistency=Consistency.ATOMIC),
        evidence=replace(snapshot.evidence or Evidence(), hash_table=None),
    )
    before = _found(base)
    asked, only = set(gates), None if codes is None else set(codes)
    return tuple(
        _try(base, before, code.code, gate)
        for gate in ALL_GATES
        if gate in asked
        for code in codes_of(gate)
        if only is None or code.code in only
    )


def _try(snapshot: Snapshot, before: dict[str, list[Finding]], code: str, gate: GateName) -> PlantResult:
    plant = PLANTS.get(code)
    if plant is None:
        return PlantResult(code=code, gate=gate, planted=False, found=False, reason=_UNPLANTABLE.get(code, "no plant"))
    if snapshot.pages is None:
        return PlantResult(code=code, gate=gate, planted=False, found=False, reason="no page table was read")
    editor = Editor(snapshot)
    reason = plant(editor)
    if reason is not None:
        return PlantResult(code=code, gate=gate, planted=False, found=False, reason=reason)
    after = _found(editor.build())
    new = {name for name, findings in after.items() if _pages(findings) > _pages(before.get(name, []))}
    new -= SHARES & before.keys()
    also = new - {code} - COMPANIONS.get(code, frozenset())
    # What was there before the fault was planted does not show that the gate sees it.
    found = code in after and after[code] != before.get(code)
    return PlantResult(code=code, gate=gate, planted=True, found=found, also=tuple(sorted(also)))


_UNPLANTABLE = {
    "KV307": "needs a dense group and a longer hit of another one: planted in the tests",
    "KV310": "needs chains of pages: planted in the tests",
    "KV541": "event streams are not read in this version",
}


def _found(snapshot: Snapshot) -> dict[str, list[Finding]]:
    """Return the findings of each code."""
    found: dict[str, list[Finding]] = {}
    for result in run(snapshot):
        for finding in result.findings:
            found.setdefault(finding.code, []).append(finding)
    return found


def _pages(findings: list[Finding]) -> int:
    """Count the pages that findings name; one without any counts once."""
    return sum(max(len(finding.pages), 1) for finding in findings)


def untested() -> tuple[str, ...]:
    """List the codes without a plant."""
    return tuple(code for code in CATALOGUE if code not in PLANTS)
