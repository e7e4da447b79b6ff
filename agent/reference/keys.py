"""Prefix identity: chained hashes of a request's tokens.

Invariant: a key proves every token before it, the salt and the adapter; two requests share a key only if they share
all of that. Used by the engine and the tests.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.states import KEY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What separates two requests with the same tokens."""

    salt: str = ""
    adapter: str = ""


def _seed(identity: Identity) -> bytes:
    # Length-prefixed: an adapter named like another tenant's salt must not give the same seed.
    parts = (b"kvctl-reference", identity.salt.encode(), identity.adapter.encode())
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


class Chain:
    """The growing chain of one request: one key at every hash unit.

    Args:
        unit: Tokens between two keys.
        identity: Salt and adapter.
    """

    def __init__(self, unit: int, identity: Identity) -> None:
        self.unit = unit
        self._last = _seed(identity)
        self.keys: list[bytes] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Add keys for all complete units of ``tokens``, the whole sequence so far."""
        while (len(self.keys) + 1) * self.unit <= len(tokens):
            start = len(self.keys) * self.unit
            body = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + self.unit])
            self._last = hashlib.sha256(self._last + body).digest()
            self.keys.append(self._last[:KEY_BYTES])

    def at(self, tokens: int) -> bytes:
        """Return the key of the prefix of so many tokens, a multiple of the unit."""
        return self.keys[tokens // self.unit - 1]

    @classmethod
    def of(cls, unit: int, keys: Sequence[bytes]) -> "Chain":
        """Return a chain of keys that are known without their tokens; it cannot grow."""
        chain = cls(unit, Identity())
        chain.keys = list(keys)
        return chain
