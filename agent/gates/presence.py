"""Which of some keys a snapshot's page table holds.

Invariant: only the keys that were asked for are looked up. Gates only.
"""

from collections.abc import Iterable

import numpy as np

from ..model.states import KEY_BYTES, GroupId
from .view import View


class KeyPresence:
    """Answers ``has`` for keys of given chains (see ``agent.resume.Presence``).

    Args:
        view: The snapshot.
        keys: Every key that may be asked for, 16 bytes each.
    """

    def __init__(self, view: View, keys: Iterable[bytes]) -> None:
        wanted = list(dict.fromkeys(keys))
        self._held: set[tuple[int, bytes]] = set()
        if not wanted or view.count == 0:
            return
        halves = np.frombuffer(b"".join(wanted), dtype="<u8").reshape(-1, 2)
        index = view.index
        for group in view.groups:
            found = index.carries(index.find(halves[:, 0], group.id), halves[:, 1])
            self._held.update((group.id, wanted[at]) for at in np.flatnonzero(found).tolist())
        asked = set(wanted)
        for extra in view.columns.extra_keys.values():
            for key in extra:
                if key[:KEY_BYTES] in asked:
                    self._held.add((int.from_bytes(key[KEY_BYTES : KEY_BYTES + 4], "big"), key[:KEY_BYTES]))

    def has(self, group: GroupId, key: bytes, /) -> bool:
        """Tell whether a page of this group carries this key, secondary keys included."""
        return (group, key) in self._held
