"""Gate 3, prefixes in other tiers: registered, acknowledged, and complete in all their parts.

Invariant: a record is judged by what it lists about itself; reuse is clamped to the part that all states have. Called
by ``agent.gates.intersection``.
"""

from ..model.evidence import Evidence, TierEntry, TierReport
from ..model.states import State
from .report import GateReport
from .view import View

_CODES = ("KV303", "KV308", "KV311")


def check_parts(view: View, report: GateReport, evidence: Evidence) -> None:
    """Run KV303, KV308 and KV311 over the entries of other tiers."""
    del view
    if evidence.tiers is None:
        report.cannot(_CODES, evidence.missing.get("tiers", "no other tier was looked through"))
        return
    for tier in evidence.tiers:
        described = [entry for entry in tier.entries if entry.pages or entry.ranks is not None]
        report.looked("KV308", len(tier.entries), empty="no tier holds an entry")
        whole = "entries of the tiers are single pages: none lists its parts"
        for code in ("KV311", "KV303"):
            report.looked(code, len(described), empty=whole if tier.entries else "no tier holds an entry")
        for entry in described:
            _complete(report, tier, entry)
        waiting = [entry for entry in tier.entries if entry.registered and not entry.acknowledged]
        if waiting:
            name = f"{waiting[0].name} in tier {tier.name}"
            report.add("KV308", count=len(waiting), name=name, tier=tier.name)
    if not evidence.tiers:
        for code in ("KV308", "KV311"):
            report.looked(code, 0, empty="there is no other tier")


def _complete(report: GateReport, tier: TierReport, entry: TierEntry) -> None:
    pages = dict(entry.pages or {})
    unit = entry.page_tokens or 0
    shared = min(pages.values(), default=0)
    if len(set(pages.values())) > 1:
        short = min(pages, key=lambda state: (pages[state], state))
        longest = max(pages.values())
        what = f"{short} has {pages[short]} of {longest} pages"
        report.add("KV311", tier=tier.name, name=entry.name, what=what, value=shared * unit)
    indexer, main = pages.get(State.INDEXER), pages.get(State.COMPRESSED)
    if indexer is not None and main is not None and indexer != main:
        report.add(
            "KV303",
            tokens=(min(indexer, main) * unit, max(indexer, main) * unit),
            value=indexer * unit,
            expected=main * unit,
            where=f"{entry.name} in tier {tier.name}",
        )
    if entry.ranks is not None and len(set(entry.ranks)) < tier.ranks:
        absent = sorted(set(range(tier.ranks)) - set(entry.ranks))
        what = "no part of rank " + ", ".join(map(str, absent))
        report.add("KV311", tier=tier.name, name=entry.name, what=what, value=0)
