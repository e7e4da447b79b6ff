"""Errors of kvctl: what failed, why, what to do next.

::

    KvctlError
    ├── TargetError          no engine, cannot reach or attach          exit 3
    ├── AgentError           agent or engine failed                     exit 4
    │   ├── ProtocolError    the other side speaks another language
    │   └── UnsupportedError this engine lacks what the command needs
    ├── UsageError           the request itself makes no sense          exit 2
    │   └── FileError        a file that is truncated, foreign or too new
    ├── RefusedError         not confirmed, plan outdated, read-only    exit 5
    ├── InconclusiveError    could not tell                             exit 6
    └── DeadlineError        timed out                                  exit 124

Exit codes are mapped in one place, ``kvctl.diagnostics``. Standard library only.
"""


class KvctlError(Exception):
    """What failed, why if known, and what to do next.

    Args:
        what: One sentence, lower case start, no period: what failed.
        why: The cause, if known.
        next_step: What the operator can do now.
    """

    def __init__(self, what: str, *, why: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step


class TargetError(KvctlError):
    """No engine, or it cannot be reached or attached to."""


class AgentError(KvctlError):
    """The agent or the engine failed."""


class ProtocolError(AgentError):
    """The other side sent something that is not our protocol, or another version of it."""


class UnsupportedError(AgentError):
    """The engine does not have what the command needs; the reason says what is missing."""


class UsageError(KvctlError):
    """The request itself makes no sense."""


class FileError(UsageError):
    """A file that is missing, truncated, foreign, or written by a newer version."""


class RefusedError(KvctlError):
    """Not confirmed, plan outdated, or not permitted."""


class InconclusiveError(KvctlError):
    """The question could not be answered."""


class DeadlineError(KvctlError):
    """Timed out."""
