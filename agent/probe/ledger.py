"""What exporters found out about decisions, kept in the engine so that it survives every restart of an exporter.

Invariant: each decision is counted at most once, and the books never fall. A post covers the decisions after the last
accounted one, without a gap, and is taken whole or not at all; one exporter at a time holds the lease. Posts come on
the probe's thread only; :meth:`Ledger.read` may be called by any.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import UsageError

LEASE_S: Final = 10.0
"""How long a lease lasts without being renewed. Seconds."""

MAX_SERIES: Final = 2048
MAX_KEY: Final = 512

NAMES: Final = frozenset(
    {
        "reuse_outcomes",
        "reuse_explained_decisions",
        "reuse_explained_tokens",
        "reuse_logical_tokens",
        "reuse_usable_tokens",
        "reuse_lost_tokens",
        "reuse_unexplained_decisions",
        "reuse_disagreements",
        "degradations",
    }
)
"""Counters that are made outside; none of them is counted by the probe itself."""

_FROM_ZERO: Final = (
    "reuse_unexplained_decisions",
    'reuse_disagreements{kind="more"}',
    'reuse_disagreements{kind="less"}',
    *(
        f'{name}{{phase="{phase}"}}'
        for name in (
            "reuse_explained_decisions",
            "reuse_explained_tokens",
            "reuse_logical_tokens",
            "reuse_usable_tokens",
        )
        for phase in ("first", "resumed")
    ),
)
"""Keys that begin at 0: whoever watches a counter must see its first rise, and nothing was counted until then."""


class Ledger:
    """Books of one engine instance.

    Args:
        clock: Seconds that only rise.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.accounted = 0
        """Number of the last decision that is in the books."""
        self._clock = clock
        self._values: dict[str, float] = dict.fromkeys(_FROM_ZERO, 0.0)
        self._holder: str | None = None
        self._until = 0.0

    def account(self, plain: Mapping[str, Any], *, last: int) -> dict[str, Any]:
        """Answer the operation ``account``: take or renew the lease, and perhaps a post.

        Args:
            plain: ``holder``: a random name of the exporter; ``release``: give the lease back. With a post: ``after``
                and ``upto``, the decisions in (after, upto], and ``adds``, what they add to each key
                ``name{label="value"}``.
            last: Number of the probe's latest decision.

        Returns:
            ``granted``: the caller holds the lease; ``applied``: the post is in the books now; ``accounted``: the last
            decision in the books; ``last``.

        Raises:
            UsageError: The post makes no sense; nothing of it was taken.
        """
        holder = plain.get("holder")
        if not isinstance(holder, str) or not 0 < len(holder) <= 64:
            raise UsageError("account needs the name of the exporter as holder")
        granted = self._lease(holder)
        applied = False
        if granted and plain.get("upto") is not None:
            applied = self._post(plain, last)
        if granted and plain.get("release"):
            self._holder = None
        return {"granted": granted, "applied": applied, "accounted": self.accounted, "last": last}

    def read(self) -> dict[str, float]:
        """Return everything that was accounted, by key."""
        return {"reuse_accounted_decisions": float(self.accounted), **self._values}

    def _lease(self, holder: str) -> bool:
        now = self._clock()
        if self._holder not in {None, holder} and now < self._until:
            return False
        self._holder, self._until = holder, now + LEASE_S
        return True

    def _post(self, plain: Mapping[str, Any], last: int) -> bool:
        after, upto, adds = plain.get("after"), plain["upto"], plain.get("adds")
        if not isinstance(after, int) or not isinstance(upto, int) or not isinstance(adds, dict):
            raise UsageError("a post to the ledger needs after, upto and adds")
        if not after < upto <= last:
            raise UsageError(f"there are no decisions ({after}, {upto}] here", why=f"the latest is number {last}")
        for key, value in adds.items():
            _check(key, value)
        # Somebody else's post, or this very one before a lost answer, has moved the books on: the exporter sorts it
        # out.
        if after != self.accounted:
            return False
        if len(self._values.keys() | adds.keys()) > MAX_SERIES:
            raise UsageError(f"the ledger holds at most {MAX_SERIES} series")
        for key, value in adds.items():
            self._values[key] = self._values.get(key, 0.0) + value
        self.accounted = upto
        return True


def _check(key: object, value: object) -> None:
    if not isinstance(key, str) or len(key) > MAX_KEY or key.partition("{")[0] not in NAMES:
        raise UsageError("a post names a counter that the ledger does not keep", why=str(key)[:80])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise UsageError(f"a post adds no number to {key[:80]}", why=str(value)[:40])
