"""Which codes are on record as clean on which engine configuration.

Invariant: a code is an error only where this committed table holds at least 100,000 clean checks of that code on that
configuration; everywhere else it is a warning marked experimental. False errors are worse than none. Add a row only
from a run whose numbers are kept.
"""

from dataclasses import dataclass

from ..model.finding import Severity
from ..model.snapshot import EngineInfo
from .code import Code

REQUIRED_CHECKS = 100_000
"""Clean checks before a code may say error (design, findings)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRecord:
    """One engine configuration and what was checked on it without a false finding."""

    engine: str
    versions: tuple[str, ...]
    """Version prefixes, for example ``0.32.``."""
    scheduler: str
    """Class of the engine's scheduler."""
    executor: str
    """Class of its executor."""
    async_scheduling: str
    """``true`` or ``false``."""
    tier: str
    """Class of the KV connector, or ``none``."""
    checks: int
    """Times each of the codes looked at something and was right to find nothing."""
    codes: frozenset[str]
    evidence: str
    """How to repeat the run."""

    def covers(self, engine: EngineInfo) -> bool:
        """Tell whether this row is about the given engine; what the engine does not say is not covered."""
        details = engine.details
        return (
            engine.engine == self.engine
            and engine.version.startswith(self.versions)
            and details.get("scheduler") == self.scheduler
            and details.get("executor") == self.executor
            and details.get("async_scheduling") == self.async_scheduling
            and details.get("tier") == self.tier
        )


RECORD: tuple[CleanRecord, ...] = (
    CleanRecord(
        engine="vllm",
        versions=("0.32.",),
        scheduler="Scheduler",
        executor="UniProcExecutor",
        async_scheduling="false",
        tier="none",
        checks=157_580,
        codes=frozenset(
            {
                *("KV101", "KV103", "KV104", "KV107", "KV108", "KV109", "KV110", "KV111", "KV112", "KV113", "KV114"),
                *("KV117", "KV118", "KV119", "KV201", "KV207", "KV305", "KV307", "KV522"),
            }
        ),
        evidence="benchmarks/results/clean_checks.md",
    ),
)
"""Where errors are errors; ``checks`` is that of the code that looked least often."""


def severity_of(code: Code, engine: EngineInfo, record: tuple[CleanRecord, ...] = RECORD) -> tuple[Severity, bool]:
    """Give the severity of a code on an engine, and whether it is experimental there."""
    if code.severity is not Severity.ERROR:
        return code.severity, False
    proven = any(row.checks >= REQUIRED_CHECKS and code.code in row.codes and row.covers(engine) for row in record)
    return (Severity.ERROR, False) if proven else (Severity.WARNING, True)


def markdown(record: tuple[CleanRecord, ...] = RECORD) -> str:
    """Write the table for ``docs/findings.md``."""
    lines = ["## Configurations on record", ""]
    if not record:
        return "\n".join([*lines, "None yet: every error is shown as an experimental warning.", ""])
    lines += ["| engine | versions | scheduler | executor | async | tier | checks | codes |", "|" + "---|" * 8]
    for row in record:
        where = f"{row.engine} | {', '.join(row.versions)} | {row.scheduler} | {row.executor} | {row.async_scheduling}"
        lines.append(f"| {where} | {row.tier} | {row.checks} | {', '.join(sorted(row.codes))} |")
    return "\n".join([*lines, ""])
