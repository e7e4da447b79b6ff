"""The ghost set: which keys were registered once, so that "evicted" can be told from "never there".

Invariant: bounded; what it forgot is admitted (:attr:`Ghost.complete` is then False and an unknown key means "cannot
tell"). The engine's thread fills it in the one loop that stamps pages (``PoolPort.stamp``), with the engine's own key
objects, whose hash is computed already: about 40 ns a page. All other work lies with who asks, on the probe's thread.

Keys stand in a few generations, each a dictionary; the oldest goes as a whole. So forgetting costs no search, and a key
that is registered again and again is remembered longest.
"""

from collections.abc import Iterable

from ..model.states import KEY_BYTES
from .port import Keys

GROUP_BYTES = 4
GENERATIONS = 16
GENERATION_KEYS = 16384
"""A generation holds a sixteenth of the capacity, but no more than this: it is freed at once, 60 ns a key."""

Names = dict[bytes, int]
"""First 16 bytes of a key and its group -> stamp."""


class Ghost:
    """First registrations by key, a generation at a time.

    Args:
        capacity: Registrations remembered over all groups; 0 turns it off.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.complete = capacity > 0
        """No key was ever forgotten, left out, or registered before the probe came."""
        self.forgotten = 0
        """Registrations that were forgotten."""
        self.current: Keys | None = {} if capacity else None
        """Where registrations go now: key -> stamp of the first in this generation."""
        self._sealed: list[Keys] = []
        self._indexes: dict[int, tuple[Keys, Names]] = {}

    # ------------------------------------------------------- engine's thread

    def turn(self) -> Keys | None:
        """Begin a new generation where the current one is full. Call it between two folds.

        Returns:
            Where registrations go from now on.
        """
        current = self.current
        if current is None or len(current) < min(self.capacity // GENERATIONS, GENERATION_KEYS):
            return current
        sealed = [*self._sealed, current]
        # At most two a turn: a lowered capacity is reached over some turns, not in one step of the engine.
        for _ in range(2):
            if len(sealed) > 1 and sum(map(len, sealed)) > self.capacity - len(sealed[-1]):
                self.forgotten += len(sealed.pop(0))
                self.complete = False
        self._sealed = sealed
        self.current = {}
        return self.current

    def resize(self, capacity: int) -> Keys | None:
        """Change the capacity; what is remembered stays until newer keys push it out.

        Returns:
            Where registrations go from now on.
        """
        self.capacity = capacity
        if not capacity:
            self.complete = False
            self.forgotten += len(self)
            self.current, self._sealed = None, []
        elif self.current is None:
            self.current = {}
        return self.current

    # -------------------------------------------------------- probe's thread

    def seen(self, group: int, keys: Iterable[bytes], *, before: int) -> str:
        """Tell for each key whether ``group`` registered it before a stamp: ``1`` yes, ``0`` no, ``?`` unknown."""
        indexes = self._names()
        suffix = group.to_bytes(GROUP_BYTES, "big")
        absent = "0" if self.complete else "?"
        answers = []
        for key in keys:
            name = key[:KEY_BYTES] + suffix
            stamps = [index[name] for index in indexes if name in index]
            answers.append(absent if not stamps else "1" if min(stamps) < before else "0")
        return "".join(answers)

    def _names(self) -> list[Names]:
        """Return every generation by short names; a sealed one is read once, and only when somebody asks."""
        current, sealed = self.current, self._sealed
        known = self._indexes
        fresh = {id(keys): known.get(id(keys)) or (keys, _index(keys)) for keys in sealed}
        self._indexes = fresh
        names = [index for _, index in fresh.values()]
        if current is not None:
            names.append(_index(current))
        return names

    def __len__(self) -> int:
        current = self.current
        return sum(map(len, self._sealed)) + (len(current) if current is not None else 0)


def _index(keys: Keys) -> Names:
    """Read a generation. The copy is one step of the interpreter, so the engine cannot write in the middle of it."""
    names: Names = {}
    for key, stamp in keys.copy().items():
        if key is not None:
            name = key[:KEY_BYTES] + key[-GROUP_BYTES:]
            names[name] = min(stamp, names.get(name, stamp))
    return names
