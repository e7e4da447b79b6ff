"""What one reading of a watch found that the reading before did not.

Invariant: a finding is the same one while it has its code, group, tokens and request and names no further page: a count
that falls, because pages were evicted, makes nothing new. Read by the findings view; filled by ``kvctl validate``.
"""

from collections.abc import Sequence

from agent.model.finding import Finding, GateResult

Mark = tuple[object, ...]


class Watched:
    """The readings of one watch so far."""

    def __init__(self) -> None:
        self._before: dict[Mark, frozenset[int]] = {}
        self._codes: set[str] = set()

    def is_new(self, finding: Finding) -> bool:
        """Return whether the reading before this one did not have a finding."""
        pages = self._before.get(_mark(finding))
        return pages is None or not pages.issuperset(finding.pages)

    def gone(self, results: Sequence[GateResult]) -> list[str]:
        """Return the codes that any reading before found and this one does not."""
        return sorted(self._codes - {finding.code for result in results for finding in result.findings})

    def take(self, results: Sequence[GateResult]) -> None:
        """A reading was shown."""
        findings = [finding for result in results for finding in result.findings]
        self._before = {}
        for finding in findings:
            pages = self._before.get(_mark(finding), frozenset())
            self._before[_mark(finding)] = pages.union(finding.pages)
        self._codes.update(finding.code for finding in findings)


def _mark(finding: Finding) -> Mark:
    return finding.code, finding.group, finding.tokens, finding.values.get("request")
