"""The ghost set: which keys were registered once, so that "evicted" can be told from "never there".

Invariant: bounded in entries and in work a step; what it forgot or could not take is admitted (``complete`` is then
False and an unknown key means "cannot tell"). Fed on the engine's thread, asked from the probe's thread.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from ..model.states import KEY_BYTES
from .port import PoolPort, Registration

GROUP_BYTES = 4
PENDING_LIMIT = 4096
"""Registration calls that wait for the next step's shadow; a step has about a hundred."""


class Ghost:
    """First registrations by group and key.

    Args:
        capacity: Keys remembered over all groups; the oldest go first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.complete = True
        """No key was ever forgotten, left out, or registered before the probe came."""
        self.forgotten = 0
        self.left_out = 0
        self._first: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()
        """The same keys, oldest first: a dictionary looks for its first key past every one deleted before it."""
        self._pending: list[tuple[int, list[Any]]] = []

    # ------------------------------------------------------- engine's thread

    def registered(self, stamp: int, calls: Sequence[Registration]) -> None:
        """Put registration calls aside: only page objects, and cheaply."""
        if not self.capacity:
            self.complete = False
            return
        for number, (request, _, pages, mask, *_) in enumerate(calls, stamp + 1):
            if request is None:
                continue
            if len(self._pending) >= PENDING_LIMIT:
                self.leave_out(len(pages))
            else:
                self._pending.append((number, list(pages if mask is None else compress(pages, mask))))

    def take_in(self, port: PoolPort, limit: int) -> None:
        """Remember what was put aside, at most ``limit`` keys; in the shadow of a batch.

        A page that lost its key again in the same step is left out.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for stamp, pages in pending:
            if len(pages) > limit:
                self.leave_out(len(pages) - limit)
                del pages[limit:]
            limit -= len(pages)
            self._take_keys(port.keys(pages), port.key_bytes, stamp)

    def _take_keys(self, joined: bytes, size: int, stamp: int) -> None:
        by_group: dict[int, list[bytes]] = {}
        for start in range(0, len(joined), size):
            group = int.from_bytes(joined[start + size - GROUP_BYTES : start + size], "big")
            key = joined[start : start + KEY_BYTES]
            if any(key):
                by_group.setdefault(group, []).append(key)
        for group, keys in by_group.items():
            self.note(group, keys, stamp)

    def note(self, group: int, keys: Iterable[bytes], stamp: int) -> None:
        """Remember keys (16 bytes or longer) that a group registered under ``stamp``."""
        first = self._first
        suffix = group.to_bytes(1, "little")
        for key in keys:
            name = key[:KEY_BYTES] + suffix
            if name not in first:
                first[name] = stamp
                self._order.append(name)
        while len(first) > self.capacity:
            del first[self._order.popleft()]
            self.forgotten += 1
            self.complete = False

    def leave_out(self, count: int) -> None:
        """Admit that ``count`` keys were not taken."""
        self.left_out += count
        self.complete = False

    def seen(self, group: int, keys: Iterable[bytes], *, before: int) -> str:
        """Tell for each key whether ``group`` registered it before a stamp: ``1`` yes, ``0`` no, ``?`` unknown."""
        first = self._first
        suffix = group.to_bytes(1, "little")
        absent = "0" if self.complete else "?"
        answers = []
        for key in keys:
            stamp = first.get(key[:KEY_BYTES] + suffix)
            answers.append(absent if stamp is None else "1" if stamp < before else "0")
        return "".join(answers)

    def __len__(self) -> int:
        return len(self._first)
