"""What readers found out about decisions, kept for those that come later, or only look once.

Invariant: bounded in number and in characters, the oldest go first; a decision has one explanation, the first that was
posted or a later one that knows more, however many readers post it. Posts are somebody else's text: each line is judged
whole, and one that is none is counted and left out. Probe's thread only; nothing here is known to the engine's.
"""

from dataclasses import dataclass
from typing import Any, Final

from ..errors import ProtocolError, UsageError
from ..explainedformat import decode, knowledge

MAX_ENTRIES: Final = 1 << 14
MAX_CHARACTERS: Final = 4 << 20
MAX_POST: Final = 128 << 10
"""Characters in one post."""
MAX_LINES: Final = 256
"""Decisions in one post: some 4 ms of the interpreter, which is the engine's, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    line: str
    mark: int
    knows: tuple[bool, bool, int]


class Explained:
    """Explanations of one engine instance.

    Args:
        groups: Its cache groups.
    """

    def __init__(self, *, groups: int) -> None:
        self._groups = groups
        self._entries: dict[int, _Entry] = {}
        """By number of the decision, in the order in which they came."""
        self._characters = 0
        self._mark = 0
        self._refused = 0

    def post(self, text: object, *, first: int, last: int) -> dict[str, Any]:
        """Take explanations.

        Args:
            text: Lines of :mod:`agent.explainedformat`.
            first: The oldest decision that the probe remembers.
            last: Its latest one.

        Returns:
            How many lines were taken, and how many were refused. One that is known already, or whose decision is
            forgotten, is neither.

        Raises:
            UsageError: It is no text, or too much at once; nothing of it was taken.
        """
        if not isinstance(text, str):
            raise UsageError("a post of explanations is text")
        lines = text.split("\n") if text else []
        if len(text) > MAX_POST or len(lines) > MAX_LINES:
            raise UsageError(f"a post has at most {MAX_LINES} explanations and {MAX_POST} characters")
        taken, refused = 0, 0
        for line in lines:
            if self._has(line):
                continue
            try:
                number, explanation = decode(line, groups=self._groups)
            except ProtocolError:
                refused += 1
                continue
            if not 0 < number <= last:
                refused += 1
            elif number >= first:
                taken += self._take(number, line, knowledge(explanation))
        self._refused += refused
        self._forget(first)
        return {"taken": taken, "refused": refused}

    def told(self, *, since: int, after: int) -> dict[str, Any]:
        """Return what is known of decisions after number ``after``, as far as it came after the mark ``since``."""
        lines = []
        for number, entry in reversed(self._entries.items()):
            if entry.mark <= since:
                break
            if number > after:
                lines.append(entry.line)
        return {"lines": "\n".join(reversed(lines)), "mark": self._mark}

    def state(self) -> dict[str, int]:
        """Describe it in numbers."""
        return {"kept": len(self._entries), "characters": self._characters, "refused": self._refused}

    def _has(self, line: str) -> bool:
        """Whether another reader posted this very line, as most are where several follow: it is judged already."""
        number = line[1:21].partition(",")[0]
        known = self._entries.get(int(number)) if number.isascii() and number.isdigit() else None
        return known is not None and known.line == line

    def _take(self, number: int, line: str, knows: tuple[bool, bool, int]) -> bool:
        known = self._entries.get(number)
        if known is not None:
            if known.knows >= knows:
                return False
            self._drop(number)
        self._mark += 1
        self._entries[number] = _Entry(line=line, mark=self._mark, knows=knows)
        self._characters += len(line)
        return True

    def _forget(self, first: int) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if oldest >= first and len(self._entries) <= MAX_ENTRIES and self._characters <= MAX_CHARACTERS:
                return
            self._drop(oldest)

    def _drop(self, number: int) -> None:
        self._characters -= len(self._entries.pop(number).line)
