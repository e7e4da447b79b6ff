"""What the threads tell the app.

Invariant: frozen content, no widget in it; of two pictures that wait the newer one supersedes the older one, so that a
slow terminal is never behind by more than one. Posted by the reading thread and by jobs, handled by the app.
"""

from textual.message import Message

from agent.errors import KvctlError

from ..invalidation import Plan
from ..report import Report
from .picture import Picture


class Drawn(Message):
    """A new picture."""

    def __init__(self, picture: Picture, arriving: float | None = None) -> None:
        """Carry it, and how much of the page table is there, 0 to 1; None: all of it, or none will come."""
        super().__init__()
        self.picture = picture
        self.arriving = arriving

    def can_replace(self, message: Message) -> bool:
        """Give way to a newer picture."""
        return isinstance(message, Drawn)


class Arriving(Message):
    """The page table arrives."""

    def __init__(self, ratio: float) -> None:
        """Carry how far it is, 0 to 1."""
        super().__init__()
        self.ratio = ratio

    def can_replace(self, message: Message) -> bool:
        """Give way to a newer ratio."""
        return isinstance(message, Arriving)


class Lost(Message):
    """The engine cannot be read; the last picture stays."""

    def __init__(self, error: KvctlError, retry_s: float | None) -> None:
        """Carry the reason, and the seconds until the next try; None: there will be none."""
        super().__init__()
        self.error = error
        self.retry_s = retry_s

    def can_replace(self, message: Message) -> bool:
        """Give way to a newer reason."""
        return isinstance(message, Lost)


class Judged(Message):
    """The gates have spoken."""

    def __init__(self, report: Report) -> None:
        """Carry what they said."""
        super().__init__()
        self.report = report


class Planned(Message):
    """A plan to invalidate is ready to be looked at."""

    def __init__(self, plan: Plan, report: Report, *, allowed: bool) -> None:
        """Carry the plan, how it reads, and whether this engine lets it be carried out."""
        super().__init__()
        self.plan = plan
        self.report = report
        self.allowed = allowed


class Told(Message):
    """A job ended with something to read."""

    def __init__(self, title: str, report: Report) -> None:
        """Carry it."""
        super().__init__()
        self.title = title
        self.report = report


class Remark(Message):
    """A job ended with one sentence."""

    def __init__(self, text: str) -> None:
        """Carry it."""
        super().__init__()
        self.text = text


class Failed(Message):
    """A job failed."""

    def __init__(self, error: KvctlError) -> None:
        """Carry the reason."""
        super().__init__()
        self.error = error
