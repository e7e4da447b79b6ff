"""What one gate looked at, could not look at, and found, while it runs.

Invariant: each code ends exactly one way: looked at with a number of objects, found empty, or abstained with a reason;
a finding exists only for a code that was looked at. Used by the gates only.
"""

import re
from collections.abc import Iterable

from ..model.finding import Finding, GateName, GateResult, Severity, Verdict
from ..model.snapshot import Consistency, Snapshot
from ..model.states import GroupId, PageId, Tokens
from .catalogue import CATALOGUE, codes_of
from .record import RECORD, CleanRecord, severity_of

MAX_PAGES = 4096
"""Pages named in one finding; its values say how many there are."""

_GROUP_FIELDS = {"group", "raised"}
"""Values that are group ids: a sentence shows the group's name."""

_AMOUNTS = frozenset(
    {"count", "value", "expected", "lost", "from_tokens", "to_tokens", "engine", "size", "median", "kernel", "external",
     "keys", "carried", "table", "required", "holders", "usable", "counter", "distinct"}
)  # fmt: skip
"""Values that are numbers of tokens, bytes, pages or times, never ids: a sentence shows their thousands."""

_NUMBERED = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")
"""``[page is|pages are]`` in a sentence: the words for one, and for any other number."""

_TORN_STEP = {Severity.ERROR: Severity.WARNING, Severity.WARNING: Severity.INFO, Severity.INFO: Severity.INFO}
_TORN = "the capture is torn: parts of it are from different moments, so this may be no fault; read again"


class GateReport:
    """Collects the outcome of one gate.

    Args:
        gate: Which one.
        snapshot: What it looks at: engine and consistency decide severities.
        record: Configurations on record as clean.
    """

    def __init__(self, gate: GateName, snapshot: Snapshot, record: tuple[CleanRecord, ...] = RECORD) -> None:
        self._gate = gate
        self._engine = snapshot.engine
        self._groups = snapshot.geometry.groups
        self._torn = snapshot.capture.consistency is Consistency.TORN
        self._record = record
        self._findings: list[Finding] = []
        self._looked: dict[str, int] = {}
        self._abstained: dict[str, str] = {}
        self._blind: set[str] = set()

    def looked(self, code: str, objects: int, *, empty: str = "there was nothing to look at") -> None:
        """Say that a code was looked at; without any object it abstains because of ``empty``."""
        if objects > 0:
            self._looked[code] = self._looked.get(code, 0) + objects
            self._abstained.pop(code, None)
        elif code not in self._looked:
            self._abstained[code] = empty

    def cannot(self, codes: Iterable[str], reason: str) -> None:
        """Say that codes could not be looked at, and why; unless another way to look at them succeeded."""
        for code in codes:
            if code not in self._looked:
                self._abstained[code] = reason
                self._blind.add(code)

    def add(
        self,
        code: str,
        *,
        pages: Iterable[int] = (),
        group: int | None = None,
        tokens: tuple[Tokens, Tokens] | None = None,
        harmless: bool = False,
        command: str | None = None,
        **values: str | float | None,
    ) -> None:
        """Add a finding; the catalogue's sentence is filled in with ``values`` (and with ``page``, ``group``).

        Args:
            code: Which one.
            pages: Pages that it is about.
            group: Group that it is about.
            tokens: Range of tokens that it is about.
            command: In the place of the catalogue's command.
            harmless: Output is right in this instance of an error: a warning, whatever is on record.
            values: What the sentence needs, and more.
        """
        entry = CATALOGUE[code]
        named = tuple(PageId(int(page)) for page, _ in zip(pages, range(MAX_PAGES), strict=False))
        filled: dict[str, str | int | float | None] = dict(values)
        if named:
            filled.setdefault("page", named[0])
            filled.setdefault("count", len(named))
        if group is not None:
            filled.setdefault("group", group)
        shown = {name: "unknown" if value is None else value for name, value in filled.items()}
        for name in _AMOUNTS & shown.keys():
            shown[name] = f"{shown[name]:,}" if isinstance(shown[name], int) else shown[name]
        for name in _GROUP_FIELDS & shown.keys():
            shown[name] = self._group_name(shown[name])
        severity, experimental = severity_of(entry, self._engine, self._record)
        if harmless and entry.severity is Severity.ERROR:
            severity, experimental = Severity.WARNING, False
        if self._torn:
            severity, experimental = _TORN_STEP[severity], True
            filled["torn"] = _TORN
        self._findings.append(
            Finding(
                code=code,
                severity=severity,
                sentence=_numbered(entry.sentence, filled.get("count")).format(**shown),
                pages=named,
                group=None if group is None else GroupId(group),
                tokens=tokens,
                values=filled,
                remedy=_command(command or entry.command, named),
                experimental=experimental,
            )
        )

    def _group_name(self, group: str | float) -> str | float:
        known = isinstance(group, int) and 0 <= group < len(self._groups)
        return self._groups[int(group)].name if known else group

    def result(self, duration_ns: int) -> GateResult:
        """Close the report.

        A gate fails on any error or warning. It passes when it looked at something and at all its essential codes;
        an essential code without objects (no request runs) does not stop it. Otherwise it abstains.
        """
        for entry in codes_of(self._gate):
            if entry.code not in self._looked and entry.code not in self._abstained:
                self.cannot([entry.code], "not implemented for this engine")
        checked = sum(self._looked.values())
        essential_blind = any(entry.essential and entry.code in self._blind for entry in codes_of(self._gate))
        if any(finding.severity is not Severity.INFO for finding in self._findings):
            verdict = Verdict.FAIL
        elif self._findings and self._torn:
            verdict = Verdict.ABSTAIN
        else:
            verdict = Verdict.ABSTAIN if essential_blind or checked == 0 else Verdict.PASS
        return GateResult(
            gate=self._gate,
            verdict=verdict,
            checked=checked,
            findings=tuple(self._findings),
            abstained=dict(sorted(self._abstained.items())),
            looked=dict(sorted(self._looked.items())),
            duration_ns=duration_ns,
        )


def _numbered(sentence: str, count: str | float | None) -> str:
    """Choose between the words for one and for many."""
    return _NUMBERED.sub(r"\1" if count == 1 else r"\2", sentence)


def _command(pattern: str | None, pages: tuple[PageId, ...]) -> str | None:
    """Put the finding's pages into a command; without pages there is no command to give."""
    if pattern is None or "PAGE" not in pattern:
        return pattern
    if not pages:
        return None
    return pattern.replace("PAGES", ",".join(str(page) for page in pages)).replace("PAGE", str(pages[0]))
