"""Mixed traffic: what a serving engine meets in a day, in small.

Invariant: a function of its seed; it names requests and says when they are interrupted, and touches no engine.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from .keys import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request to come."""

    name: str
    prompt: tuple[int, ...]
    max_new: int
    identity: Identity = field(default_factory=Identity)
    interrupt_after: int | None = None
    """Steps after which the client goes away; it comes back later with what it had."""


class Workload:
    """An endless mix of requests.

    Shares: documents (a long common prefix, a question of its own), conversations that grow turn by turn, short
    prompts that never come again, and clients that go away and come back. One tenant in eight has a salt of its own.

    Args:
        vocabulary: Token ids run from 0 to below this.
        longest: Longest prompt.
        seed: Fixes everything.
    """

    def __init__(self, *, vocabulary: int, longest: int, seed: int = 0) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - traffic, not secrets
        self._vocabulary, self._longest, self._count = vocabulary, longest, 0
        self._documents = [self._text(longest * 3 // 4) for _ in range(4)]
        self._conversations: dict[int, list[int]] = {}
        self._returning: deque[Arrival] = deque(maxlen=8)

    def _text(self, count: int) -> list[int]:
        return self._dice.choices(range(self._vocabulary), k=count)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def next(self) -> Arrival:
        """Return the next request."""
        share = self._dice.random()
        if self._returning and share < 0.15:
            left = self._returning.popleft()
            return Arrival(name=self._name("again"), prompt=left.prompt, max_new=left.max_new, identity=left.identity)
        if share < 0.55:
            return self._document()
        if share < 0.85:
            return self._turn()
        return Arrival(name=self._name("once"), prompt=tuple(self._text(self._dice.randint(4, 40))), max_new=4)

    def _document(self) -> Arrival:
        text = self._dice.choice(self._documents)
        # Most questions are about the whole document, some about its beginning: they leave it in the middle.
        cut = len(text) if self._dice.random() < 0.7 else self._dice.randint(len(text) // 3, len(text))
        prompt = tuple(text[:cut] + self._text(self._dice.randint(3, 16)))
        salt = "tenant" if self._dice.random() < 0.125 else ""
        interrupt = self._dice.randint(1, 6) if self._dice.random() < 0.15 else None
        arrival = Arrival(
            name=self._name("document"),
            prompt=prompt,
            max_new=self._dice.randint(2, 10),
            identity=Identity(salt=salt),
            interrupt_after=interrupt,
        )
        if interrupt is not None:
            self._returning.append(arrival)
        return arrival

    def _turn(self) -> Arrival:
        number = self._dice.randrange(5)
        history = self._conversations.get(number) or self._text(24)
        if len(history) > self._longest - 40:
            history = self._text(24)
        history = history + self._text(self._dice.randint(4, 20))
        self._conversations[number] = history
        return Arrival(name=self._name("turn"), prompt=tuple(history), max_new=self._dice.randint(2, 8))
