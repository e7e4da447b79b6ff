"""Faults that can be switched on to see the gates find them.

Invariant: with no fault switched on this module changes nothing; every fault is acted out at one place, by name.
Used by the engine's parts, which ask at the place where the fault would happen.
"""

import threading
from collections.abc import Mapping
from enum import StrEnum


class Fault(StrEnum):
    """The list of ``--inject``."""

    DROP_WINDOW_PAGE = "drop-window-page"
    DROP_INDEXER_PAGE = "drop-indexer-page"
    TEAR_DISK_FILE = "tear-disk-file"
    FOREIGN_DISK_FILE = "foreign-disk-file"
    CHANGE_WEIGHTS = "change-weights"
    SKIP_GENERATION = "skip-generation"
    UNGUARDED_BIND = "unguarded-bind"
    DIRTY_PADDING = "dirty-padding"
    LOSE_ACKNOWLEDGEMENT = "lose-acknowledgement"
    DOUBLE_FREE = "double-free"
    FULL_DISK = "full-disk"


EXPECTED: Mapping[Fault, tuple[str, ...]] = {
    Fault.DROP_WINDOW_PAGE: ("KV301",),
    Fault.DROP_INDEXER_PAGE: ("KV303",),
    Fault.TEAR_DISK_FILE: ("KV408",),
    Fault.FOREIGN_DISK_FILE: ("KV206",),
    Fault.CHANGE_WEIGHTS: ("KV201",),
    Fault.SKIP_GENERATION: ("KV522",),
    Fault.UNGUARDED_BIND: ("KV521",),
    Fault.DIRTY_PADDING: ("KV532",),
    Fault.LOSE_ACKNOWLEDGEMENT: ("KV308",),
    Fault.DOUBLE_FREE: ("KV103", "KV106", "KV107"),
    Fault.FULL_DISK: ("stores_lost_full_disk",),
}
"""Codes that name each fault. ``full-disk`` loses copies and breaks no rule, so that no gate owns it: the disk tier's
counter names it."""


class Faults:
    """Which faults are on. A fault is permanent (``switch``) or happens a number of times (``once``)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._permanent: set[Fault] = set()
        self._pending: dict[Fault, int] = {}
        self.happened: dict[Fault, int] = {}

    def switch(self, fault: Fault, *, on: bool = True) -> None:
        """Switch a fault on until it is switched off."""
        with self._lock:
            (self._permanent.add if on else self._permanent.discard)(fault)

    def once(self, fault: Fault, times: int = 1) -> None:
        """Let a fault happen the next few times it could."""
        with self._lock:
            self._pending[fault] = self._pending.get(fault, 0) + times

    def active(self, fault: Fault) -> bool:
        """Tell whether a permanent fault is on, and count that it happened."""
        if fault not in self._permanent:
            return False
        self.happened[fault] = self.happened.get(fault, 0) + 1
        return True

    def take(self, fault: Fault) -> bool:
        """Tell whether a fault is to happen now, and use up one time."""
        if fault in self._permanent:
            return self.active(fault)
        if not self._pending.get(fault):
            return False
        with self._lock:
            self._pending[fault] -= 1
            self.happened[fault] = self.happened.get(fault, 0) + 1
            return True
