"""The demo's report: what it says of findings at its end."""

from agent.gates.report import GateReport
from agent.model.finding import Finding, GateName, GateResult
from inspector.text import Style, render
from inspector.views.demo import Run, demo
from tests.support.snapshots import gemma


def unsynced(*, harmless: bool) -> GateResult:
    """Gate 3 with one finding of KV303: the indexer is behind; ``harmless``: nothing beyond it was reused."""
    report = GateReport(GateName.INTERSECTION, gemma())
    report.looked("KV303", 1)
    report.add("KV303", value=0, expected=96, where="request a, 1 decision", count=1, harmless=harmless)
    return report.result(1)


def shown(result: GateResult) -> tuple[str, Finding]:
    """The report as text, and the one finding in it."""
    run = Run(seconds=20.0, geometry=gemma().geometry, decisions=gemma().decisions or (), gates=[result])
    return render(demo(run), Style(width=None)), result.findings[0]


def test_a_harmless_finding_is_a_loss() -> None:
    """An indexer that is behind costs a hit where nothing beyond it was reused: that is called a loss."""
    text, finding = shown(unsynced(harmless=True))
    assert not finding.experimental
    assert "intersection  losses" in text
    assert "No rule that answers depend on is broken." in text


def test_a_fault_is_no_loss() -> None:
    """Where the engine reused more than the indexer covers the gate fails, experimental or not."""
    text, finding = shown(unsynced(harmless=False))
    assert finding.experimental
    assert "intersection  fail" in text
    assert "No rule that answers depend on is broken." not in text
