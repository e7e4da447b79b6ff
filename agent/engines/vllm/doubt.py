"""A call that may have changed weights, and what it takes to know that it did not.

Invariant: only digests from before the first such call can clear it, only where every adapter whose pages may be cached
is among them or has had its pages declared stale since, and only where no step came between the first such call and the
last: what was changed and changed back is found by no digest. Engine's thread; used by ``weights``.
"""

from collections.abc import Hashable, Iterable, Mapping


class Doubt:
    """Whether every change of weights is known."""

    def __init__(self) -> None:
        self.call: str | None = None
        """The latest call whose effect is not known; None: there was none, or what it did has come out."""
        self._base: dict[str, str] = {}
        self._loras: dict[tuple[str, Hashable], str] = {}
        self._stale: set[Hashable] = set()
        self._first = self._last = 0

    def rise(self, call: str, step: int, base: Mapping[str, str], loras: Mapping[tuple[str, Hashable], str]) -> None:
        """Note a call whose effect is not known.

        Args:
            call: What was called.
            step: Schedule call before it.
            base: Last digest before it by way of reading.
            loras: The same of each adapter, by way of reading and name.
        """
        if self.call is None:
            self._base, self._loras, self._first = dict(base), dict(loras), step
        self.call, self._last = call, step
        self._stale.clear()

    def stale(self, name: Hashable) -> None:
        """All pages of this adapter so far are stale: what the call did to it matters no more."""
        if self.call is None:
            return
        self._stale.add(name)
        self._loras = {key: text for key, text in self._loras.items() if key[1] != name}

    def end(self) -> None:
        """All pages so far are stale, or nothing was changed."""
        self.call = None
        self._base, self._loras = {}, {}
        self._stale.clear()

    def answer(self, mode: str, digest: str, loras: Mapping[Hashable, str], adapters: Iterable[Hashable]) -> None:
        """Compare a reading of every byte with what was read before the call.

        Args:
            mode: Way of reading.
            digest: Of all weights but those of adapters.
            loras: Digest of each adapter in memory, by name.
            adapters: Names of all adapters that pages may be of.
        """
        if self.call is None or self._base.get(mode) != digest or self._first != self._last:
            return
        known = self._loras
        if all(name in self._stale or (name in loras and known.get((mode, name)) == loras[name]) for name in adapters):
            self.end()
