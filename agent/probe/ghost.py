"""The ghost set: which keys were registered once, so that "evicted" can be told from "never there".

Invariant: bounded; what it forgot is admitted (:attr:`Ghost.complete` is then False and an unknown key means "cannot
tell"). The engine's thread hands in the plain bytes of all hashes of a fold, which are kept as they come: some 10 ns a
page, 32 bytes each, and nothing for the garbage collector to look at. All other work lies with who asks, on the
probe's thread: the index by short names is made when somebody asks for the first time, and grows with each question.

Keys stand in a few generations; the oldest goes as a whole, so forgetting costs no search.
"""

from collections.abc import Iterable, Sequence

from ..model.states import KEY_BYTES
from .port import GROUP_BYTES, Remember

GENERATIONS = 16
GENERATION_KEYS = 16384
"""A generation holds a sixteenth of the capacity, but no more than this: so much is forgotten at once."""

NEVER = 1 << 64
TAKEN_KEYS = 1 << 16
"""Keys taken out on purpose that are remembered."""


class Generation:
    """Registrations of one stretch of time; the engine's thread appends, the probe's thread reads."""

    __slots__ = ("_read", "count", "folds", "names")

    def __init__(self) -> None:
        self.count = 0
        """Registrations."""
        self.folds: list[tuple[Sequence[int], Sequence[int], Sequence[int], bytes]] = []
        """Stamps of calls, bytes of hashes of each, group of each, hashes of all pages."""
        self.names: dict[bytes, int] = {}
        """First 16 bytes of a hash and its group -> its least stamp, as far as it was read."""
        self._read = 0

    def read(self, width: int, taken: dict[bytes, tuple[int, int]]) -> dict[bytes, int]:
        """Index what was appended since the last question; hashes are ``width`` bytes long.

        Note in ``taken`` what was registered again.
        """
        names = self.names
        fresh = self.folds[self._read :]
        self._read += len(fresh)
        for marks, lengths, groups, hashes in fresh:
            end = 0
            for mark, length, group in zip(marks, lengths, groups, strict=True):
                suffix = group.to_bytes(GROUP_BYTES, "big")
                begin, end = end, end + length
                for start in range(begin, end, width):
                    name = hashes[start : start + KEY_BYTES] + suffix
                    known = names.get(name)
                    if known is None or mark < known:
                        names[name] = mark
                    if taken and name in taken and taken[name][0] < mark < taken[name][1]:
                        taken[name] = taken[name][0], mark
        return names


class Ghost:
    """First registrations by key, a generation at a time.

    Args:
        capacity: Registrations remembered over all groups; 0 turns it off.
        width: Bytes of a hash.
    """

    def __init__(self, capacity: int, *, width: int = 32) -> None:
        self.capacity = capacity
        self.width = width
        self.complete = capacity > 0
        """No key was ever forgotten, left out, or registered before the probe came."""
        self.forgotten = 0
        """Registrations that were forgotten."""
        self._current = Generation()
        self._sealed: list[Generation] = []
        self._taken: dict[bytes, tuple[int, int]] = {}
        """Keys taken out on purpose: last stamp before that, and first one of those that brought them back."""

    # ------------------------------------------------------- engine's thread

    @property
    def sink(self) -> Remember | None:
        """What registrations are to be handed to; None while it is off."""
        return self.add if self.capacity else None

    def add(self, marks: Sequence[int], lengths: Sequence[int], groups: Sequence[int], hashes: bytes) -> None:
        """Remember registrations.

        Args:
            marks: The stamp of each call.
            lengths: Bytes of the hashes of its pages.
            groups: The group of its pages.
            hashes: The hashes of all these pages, equally long, one after the other.
        """
        current = self._current
        if current.count >= min(self.capacity // GENERATIONS, GENERATION_KEYS):
            current = self._turn()
        # No lists, which the garbage collector would look at each time: it does not track these for long.
        current.folds.append((marks if type(marks) is range else tuple(marks), tuple(lengths), tuple(groups), hashes))
        current.count += len(hashes) // self.width

    def _turn(self) -> Generation:
        """Begin a new generation."""
        sealed = [*self._sealed, self._current]
        # At most two a turn: a lowered capacity is reached over some turns, not in one step of the engine.
        for _ in range(2):
            if len(sealed) > 1 and sum(one.count for one in sealed) > self.capacity - sealed[-1].count:
                self.forgotten += sealed.pop(0).count
                self.complete = False
        self._sealed = sealed
        self._current = Generation()
        return self._current

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is remembered stays until newer keys push it out. Then :attr:`sink` is another."""
        self.capacity = capacity
        if not capacity:
            self.complete = False
            self.forgotten += len(self)
            self._current, self._sealed = Generation(), []

    # -------------------------------------------------------- probe's thread

    def seen(self, group: int, keys: Iterable[bytes], *, before: int) -> str:
        """Tell for each key whether ``group`` registered it before a stamp: ``1`` yes, ``0`` no, ``?`` unknown."""
        current = self._current  # read first: a generation that is sealed meanwhile is then asked twice, not missed
        indexes = [one.read(self.width, self._taken) for one in (*self._sealed, current)]
        suffix = group.to_bytes(GROUP_BYTES, "big")
        absent = "0" if self.complete else "?"
        answers = []
        for key in keys:
            name = key[:KEY_BYTES] + suffix
            stamps = [index[name] for index in indexes if name in index]
            answers.append(absent if not stamps else "1" if min(stamps) < before else "0")
        return "".join(answers)

    def take_out(self, keys: Iterable[tuple[int, bytes]], mark: int) -> None:
        """Remember keys that somebody took out of the cache; ``mark`` is the last stamp before that."""
        taken = self._taken
        for group, key in keys:
            name = key[:KEY_BYTES] + group.to_bytes(GROUP_BYTES, "big")
            taken.pop(name, None)
            taken[name] = mark, NEVER
        while len(taken) > TAKEN_KEYS:
            del taken[next(iter(taken))]

    def taken(self, group: int, keys: Iterable[bytes], *, before: int) -> str:
        """Tell for each key whether it was taken out before a stamp, and not registered in between: ``1`` yes.

        To be asked after :meth:`seen`, which reads what was registered.
        """
        if not self._taken:
            return ""
        suffix = group.to_bytes(GROUP_BYTES, "big")
        found = [self._taken.get(key[:KEY_BYTES] + suffix, (NEVER, NEVER)) for key in keys]
        return "".join("1" if mark < before <= back else "0" for mark, back in found)

    def __len__(self) -> int:
        return sum(one.count for one in self._sealed) + self._current.count
