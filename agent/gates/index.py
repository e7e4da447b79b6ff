"""Find pages by key, vectorised: a table of page numbers addressed by the first bits of the key.

Invariant: exact. Two keys that share those bits do not lose each other: the second goes to a small sorted rest. Keys
are hashes, so the rest is small; were they not, answers would be slow but the same. Gates only.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

_MIX = np.arange(256, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
"""A word for each group (multiples of the golden ratio) that keeps equal hashes of different groups apart."""


class KeyIndex:
    """Pages of one snapshot by group and key.

    Args:
        pages: Pages that carry a key.
        key: Keys of all pages, n x 2 halves of 8 bytes.
        group: Groups of all pages.
    """

    def __init__(self, pages: Ints, key: Words, group: NDArray[np.uint8]) -> None:
        self.pages = pages
        """Pages that carry a key; everything below counts in places of this array."""
        self._full = key[pages]
        self._group = group[pages]
        self._keys: Words = self._full[:, 0] ^ _MIX[self._group]
        bits = min(max(len(self.pages).bit_length() + 2, 8), 24)
        self._shift = np.uint64(64 - bits)
        places = np.arange(len(self.pages), dtype=np.int32)
        slots = self._keys >> self._shift
        self._table = np.full(1 << bits, -1, dtype=np.int32)
        self._table[slots] = places
        lost = np.flatnonzero(self._table[slots] != places)
        order = np.argsort(self._keys[lost], kind="stable")
        self._rest = self._keys[lost][order]
        self._rest_places = lost[order]

    def find(self, heads: Words, group: int) -> Ints:
        """Find a place for each key of one group, by its first 8 bytes; -1 where there is none.

        Pages with one key have one place that stands for all of them.
        """
        return self._find(heads ^ _MIX[group])

    @cached_property
    def canonical(self) -> Ints:
        """For each place, the one that stands for its key."""
        return self._find(self._keys)

    def _find(self, keys: Words) -> Ints:
        if not len(self.pages):
            return np.full(len(keys), -1, dtype=np.int64)
        found: Ints = self._table[keys >> self._shift].astype(np.int64)
        found[self._keys[found] != keys] = -1
        missed = np.flatnonzero(found < 0)
        if len(self._rest) and len(missed):
            place = np.minimum(np.searchsorted(self._rest, keys[missed]), len(self._rest) - 1)
            hit = self._rest[place] == keys[missed]
            found[missed[hit]] = self._rest_places[place[hit]]
        return found

    def same(self, places: Ints, others: Ints) -> Flags:
        """Tell where two places carry the same whole key of the same group."""
        equal = (self._full[places] == self._full[others]).all(axis=1) & (self._group[places] == self._group[others])
        return np.asarray(equal, dtype=np.bool_)

    def carries(self, places: Ints, tails: Words) -> Flags:
        """Tell where a place (-1: none) carries a key that ends with these 8 bytes."""
        if not len(self.pages):
            return np.zeros(len(places), dtype=np.bool_)
        return np.asarray((places >= 0) & (self._full[places, 1] == tails), dtype=np.bool_)
