"""Counters that live in the probe and so survive a restart of every exporter.

Invariant: they only rise. Written on the engine's thread, read by the probe's thread without a lock (each is one int).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

DURATION_BUCKETS_S: Final = (25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3)
"""Upper bounds of the histogram of look-up durations, seconds."""


def histogram(name: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> dict[str, float]:
    """Return a histogram as counters: cumulative buckets, sum and count.

    Args:
        name: Catalogue name.
        bounds: Upper bounds of the buckets, ascending.
        counts: Observations of each bucket, and of those beyond.
        total: Sum of all observed values.
    """
    values: dict[str, float] = {}
    count = 0
    for bound, more in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
        count += more
        values[f'{name}_bucket{{le="{bound}"}}'] = count
    return values | {f"{name}_sum": total, f"{name}_count": count}


class Counters:
    """Sums over admitted look-ups, first admissions and resumptions apart (index 0 and 1)."""

    def __init__(self) -> None:
        self.decisions = [0, 0]
        self.lookup_tokens = [0, 0]
        self.usable_tokens = [0, 0]
        """What the engine reused from its own pool."""
        self.external_tokens = [0, 0]
        self.skipped = [0, 0]
        self.lookups = 0
        """Look-ups, admitted or not."""
        self.admitted_lookups = 0
        self.chains_omitted = 0
        """Decisions that went to readers without their keys: the step's budget was spent."""
        self.decisions_dropped = 0
        """Decisions that could not be put into the ring."""
        self._durations = [0] * (len(DURATION_BUCKETS_S) + 1)
        self._duration_ns = 0

    def admit(
        self, phase: int, tokens: int, usable: int, external: int, skipped: bool, lookups: int, duration_ns: int | None
    ) -> None:
        """Count one admission, in one call; phase 0 is a first one, 1 a resumption; its look-up may be unknown."""
        self.decisions[phase] += 1
        self.lookup_tokens[phase] += tokens
        self.usable_tokens[phase] += usable
        self.external_tokens[phase] += external
        self.admitted_lookups += lookups
        if skipped:
            self.skipped[phase] += 1
        if duration_ns is not None:
            self._durations[bisect_left(DURATION_BUCKETS_S, duration_ns / 1e9)] += 1
            self._duration_ns += duration_ns

    def read(self, extra: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return all counters by catalogue name, labels in braces."""
        values: dict[str, float] = {}
        by_phase = {
            "reuse_decisions": self.decisions,
            "reuse_lookup_tokens": self.lookup_tokens,
            "reuse_engine_usable_tokens": self.usable_tokens,
            "reuse_external_tokens": self.external_tokens,
            "reuse_skipped": self.skipped,
        }
        for name, pair in by_phase.items():
            values[f'{name}{{phase="first"}}'], values[f'{name}{{phase="resumed"}}'] = pair
            values[name] = sum(pair)
        values["reuse_lookups"] = self.lookups
        values["reuse_lookups_not_admitted"] = max(0, self.lookups - self.admitted_lookups)
        values["decision_chains_omitted"] = self.chains_omitted
        values["decisions_dropped"] = self.decisions_dropped
        durations = histogram("decision_duration_seconds", DURATION_BUCKETS_S, self._durations, self._duration_ns / 1e9)
        values.update(durations)
        values.update(extra or {})
        return values
