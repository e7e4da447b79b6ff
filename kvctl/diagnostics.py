"""Exit codes, and the one message an error becomes.

Invariant: the only place where an error is mapped to an exit code. Called by :mod:`kvctl.main`; commands raise
:mod:`agent.errors` or exit with an :class:`ExitCode`.
"""

from enum import IntEnum

from agent.errors import (
    AgentError,
    DeadlineError,
    InconclusiveError,
    KvctlError,
    RefusedError,
    TargetError,
    UsageError,
)


class ReaderGoneError(Exception):
    """Whoever read our output has stopped (``| head``): there is nobody left to tell."""


class ExitCode(IntEnum):
    """What the shell gets. Codes never change meaning."""

    OK = 0
    VERDICT = 1
    USAGE = 2
    TARGET = 3
    AGENT = 4
    REFUSED = 5
    INCONCLUSIVE = 6
    TIMED_OUT = 124
    INTERRUPTED = 130


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done; gates passed, no differences",
    ExitCode.VERDICT: "a verdict: findings, differences",
    ExitCode.USAGE: "usage or configuration",
    ExitCode.TARGET: "no engine, cannot reach or attach",
    ExitCode.AGENT: "agent or engine failed (unsupported version, protocol)",
    ExitCode.REFUSED: "refused: not confirmed, plan outdated, not permitted",
    ExitCode.INCONCLUSIVE: "could not tell: a gate abstained and `--fail-on` includes abstain",
    ExitCode.TIMED_OUT: "timed out",
    ExitCode.INTERRUPTED: "interrupted",
}
"""One sentence for each exit code: the source of the table in the help and in the README."""

_CODES: tuple[tuple[type[KvctlError], ExitCode], ...] = (
    (TargetError, ExitCode.TARGET),
    (AgentError, ExitCode.AGENT),
    (UsageError, ExitCode.USAGE),
    (RefusedError, ExitCode.REFUSED),
    (InconclusiveError, ExitCode.INCONCLUSIVE),
    (DeadlineError, ExitCode.TIMED_OUT),
)


def exit_code_of(error: KvctlError) -> ExitCode:
    """Return the exit code of an error; an error of no known kind counts as a failure of the agent."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.AGENT)


def error_name(error: KvctlError) -> str:
    """Return the stable name of an error's kind for JSON, for example ``target``."""
    return (
        next((kind.__name__ for kind, _ in _CODES if isinstance(error, kind)), "AgentError")
        .removesuffix("Error")
        .lower()
    )
