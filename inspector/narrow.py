"""Findings about one prefix: what the gates said, without what concerns other pages.

Invariant: a gate that could not look still abstains, and one that passed still passes; only findings are left out, and
how many is said. Read by ``kvctl validate --prefix``.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.errors import InconclusiveError
from agent.model.finding import Finding, GateResult, Severity, Verdict
from agent.model.snapshot import Snapshot

from .format import plural
from .prefixes import Prefixes
from .selector import SelectorKind, find, parse


def narrow(
    snapshot: Snapshot, results: Sequence[GateResult], selector: str
) -> tuple[tuple[GateResult, ...], tuple[str, ...]]:
    """Keep the findings that name a page of the prefix, or the request that the selector names.

    Returns:
        The results, and a remark on what was left out.

    Raises:
        UsageError: The selector names no prefix, or several.
        InconclusiveError: There is no page table to find it in.
    """
    wanted = parse(selector)
    if snapshot.pages is None:
        raise InconclusiveError("the page table was not read", why="a prefix is found through its pages")
    prefixes = Prefixes(snapshot)
    nodes = set(find(prefixes, wanted).values())
    pages = {page for page, node in enumerate(prefixes.nodes.of_page.tolist()) if node in nodes}
    request = wanted.value if wanted.kind is SelectorKind.REQUEST else None
    left_out = 0
    kept: list[GateResult] = []
    for result in results:
        found = tuple(finding for finding in result.findings if _concerns(finding, pages, request))
        left_out += len(result.findings) - len(found)
        kept.append(replace(result, findings=found, verdict=_verdict(result, found)))
    remark = (f"note: {plural(left_out, 'finding')} about other prefixes or the whole engine left out",)
    return tuple(kept), remark if left_out else ()


def _concerns(finding: Finding, pages: set[int], request: str | None) -> bool:
    if request is not None and finding.values.get("request") == request:
        return True
    return any(page in pages for page in finding.pages)


def _verdict(result: GateResult, found: tuple[Finding, ...]) -> Verdict:
    if any(finding.severity is not Severity.INFO for finding in found):
        return Verdict.FAIL
    return Verdict.PASS if result.verdict is Verdict.FAIL else result.verdict
