"""Findings: one violated expectation with its evidence, and the result of a gate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .states import GroupId, PageId, Tokens


class Severity(StrEnum):
    """What a finding means."""

    ERROR = "error"
    """Wrong output is possible."""
    WARNING = "warning"
    """Reuse or capacity is lost."""
    INFO = "info"


class GateName(StrEnum):
    """The four gates, and the red lines."""

    BLOCK = "block"
    CONTRACT = "contract"
    INTERSECTION = "intersection"
    ALIGNMENT = "alignment"
    REDLINES = "redlines"


class Verdict(StrEnum):
    """How a gate ended."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    ABSTAIN = "abstain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violated expectation."""

    code: str
    severity: Severity
    sentence: str
    pages: tuple[PageId, ...] = ()
    group: GroupId | None = None
    tokens: tuple[Tokens, Tokens] | None = None
    """Token range [from, to) that it concerns."""
    values: Mapping[str, str | int | float | None] = field(default_factory=dict)
    remedy: str | None = None
    """A command that helps, where there is one."""
    experimental: bool = False
    """This code is not yet on record as clean on this engine configuration: it never fails a gate as an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One gate: verdict, what it looked at, what it found."""

    gate: GateName
    verdict: Verdict
    checked: int
    """Objects looked at; zero objects is abstain, not pass."""
    findings: tuple[Finding, ...] = ()
    abstained: Mapping[str, str] = field(default_factory=dict)
    """Codes that could not be looked at, each with its reason."""
    looked: Mapping[str, int] = field(default_factory=dict)
    """Codes that were looked at, each with the number of objects."""
    duration_ns: int = 0
