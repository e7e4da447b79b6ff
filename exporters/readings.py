"""Counters, snapshots and gate results turned into samples of the catalogue.

Invariant: pure functions; what was not read makes no sample. Used by :mod:`exporters.source`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from agent import columns
from agent.model.finding import GateResult
from agent.model.snapshot import PageColumns, Snapshot
from agent.model.states import Status

from .catalogue import CATALOGUE, Distribution, Metric, Sample
from .labels import NONE, clean_label, parse_key

PAUSE_BOUNDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1)
"""Upper bounds of the histogram of pauses for a capture, seconds."""

SOURCES: Final[Mapping[str, str]] = {
    "reuse_lookup_tokens": "reuse_lookup_tokens",
    "reuse_engine_usable_tokens": "reuse_engine_tokens",
    "reuse_external_tokens": "reuse_external_tokens",
    "reuse_decisions": "reuse_admissions",
    "reuse_explained_tokens": "reuse_explained_tokens",
    "reuse_logical_tokens": "reuse_logical_tokens",
    "reuse_usable_tokens": "reuse_usable_tokens",
    "reuse_outcomes": "reuse_decisions",
    "reuse_unexplained_decisions": "reuse_unexplained_decisions",
    "reuse_disagreements": "reuse_disagreements",
    "reuse_lost_tokens": "reuse_lost_tokens",
    "degradations": "degradations",
    "decisions_dropped": "decisions_dropped",
    "toctou_conflicts": "toctou_conflicts",
    "probe_overhead_seconds": "probe_overhead_seconds",
    "probe_breaker_open": "probe_breaker_open",
    "invalidated_pages": "invalidated_pages",
    "prefetch": "prefetch",
    "recovered_tokens": "recovered_tokens",
}
"""Counters of the probe and of its ledger, and the metric that each of them fills."""

_HISTOGRAMS: Final = ("decision_duration_seconds", "prefetch_wait_seconds")
"""Histograms that the probe keeps, as cumulative buckets and their sum."""


def of_counters(counters: Mapping[str, float]) -> list[Sample]:
    """Return the samples that the probe's counters make; a key with other labels than its metric makes none."""
    samples = []
    buckets: dict[str, dict[float, float]] = {}
    for key, value in counters.items():
        parsed = parse_key(key)
        if parsed is None:
            continue
        name, labels = parsed
        histogram = name.removesuffix("_bucket")
        if histogram in _HISTOGRAMS and histogram != name and "le" in labels:
            buckets.setdefault(histogram, {})[float(labels["le"])] = value
            continue
        metric = CATALOGUE.get(SOURCES.get(name, ""))
        if metric is not None and set(labels) == set(metric.labels):
            samples.append(Sample(metric=metric, labels=_values(metric, labels), value=value))
    return samples + [
        _histogram(name, found, counters.get(f"{name}_sum", 0.0))
        for name, found in buckets.items()
        if float("inf") in found
    ]


def _values(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(clean_label(labels[name]) for name in metric.labels)


def _histogram(name: str, cumulative: Mapping[float, float], total: float) -> Sample:
    bounds = sorted(cumulative)
    counts, before = [], 0
    for bound in bounds:
        counts.append(max(0, int(cumulative[bound]) - before))
        before = int(cumulative[bound])
    value = Distribution(bounds=tuple(bounds[:-1]), counts=tuple(counts), sum=total)
    return Sample(metric=CATALOGUE[name], value=value)


def of_snapshot(snapshot: Snapshot) -> list[Sample]:
    """Return the samples that a page table and the pool's counters make."""
    samples = []
    pool = snapshot.pool
    if pool is not None:
        samples.append(Sample(metric=CATALOGUE["pool_pages"], value=pool.pages))
        if pool.free is not None:
            samples.append(Sample(metric=CATALOGUE["pool_free_pages"], value=pool.free))
    if snapshot.pages is not None:
        samples += _of_pages(snapshot, snapshot.pages)
    evidence = snapshot.evidence
    headroom = None if evidence is None or evidence.admission is None else evidence.admission.headroom
    if headroom is not None:
        metric = CATALOGUE["admission_headroom_pages"]
        samples += [
            Sample(metric=metric, labels=(clean_label(group.name),), value=headroom)
            for group in snapshot.geometry.groups
        ]
    if evidence is not None and evidence.contract is not None and evidence.contract.fingerprint is not None:
        weights = evidence.weights.digest if evidence.weights is not None else None
        labels = (clean_label(evidence.contract.fingerprint, 16), clean_label(weights, 16) if weights else NONE)
        samples.append(Sample(metric=CATALOGUE["fingerprint_info"], labels=labels, value=1))
    return samples


def _of_pages(snapshot: Snapshot, pages: PageColumns) -> list[Sample]:
    group, cached = columns.groups(pages), columns.cached(pages)
    stale = columns.stale(pages, snapshot.weights)
    moving = columns.in_transit(pages) & ~stale
    samples = []
    for found in snapshot.geometry.groups:
        own = cached & (group == found.id)
        counts = {
            Status.READY: int((own & ~stale & ~moving).sum()),
            Status.IN_TRANSIT: int((own & moving).sum()),
            Status.STALE: int((own & stale).sum()),
        }
        name = clean_label(found.name)
        samples += [
            Sample(metric=CATALOGUE["pages"], labels=(name, found.state.value, status.value), value=number)
            for status, number in counts.items()
        ]
        samples.append(Sample(metric=CATALOGUE["stale_pages"], labels=(name,), value=counts[Status.STALE]))
    return samples


class GateTotals:
    """Counts of gate runs, and the findings of the latest one."""

    def __init__(self) -> None:
        self._checks: Counter[tuple[str, str]] = Counter()
        self._findings: dict[str, int] = {}

    def add(self, results: Iterable[GateResult]) -> None:
        """Take over one run."""
        self._findings = {}
        for result in results:
            self._checks[result.gate.value, result.verdict.value] += 1
            for code in result.looked:
                self._findings.setdefault(code, 0)
            for finding in result.findings:
                self._findings[finding.code] = self._findings.get(finding.code, 0) + 1

    def samples(self) -> list[Sample]:
        """Return the samples; none before the first run."""
        checks = [
            Sample(metric=CATALOGUE["gate_checks"], labels=labels, value=number)
            for labels, number in sorted(self._checks.items())
        ]
        return checks + [
            Sample(metric=CATALOGUE["findings"], labels=(clean_label(code),), value=number)
            for code, number in sorted(self._findings.items())
        ]


class Pauses:
    """The histogram of pauses for captures."""

    def __init__(self) -> None:
        self._counts = [0] * (len(PAUSE_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one pause."""
        self._counts[bisect_left(PAUSE_BOUNDS, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[Sample]:
        """Return the sample; none before the first pause."""
        if not any(self._counts):
            return []
        value = Distribution(bounds=PAUSE_BOUNDS, counts=tuple(self._counts), sum=self._sum)
        return [Sample(metric=CATALOGUE["capture_pause_seconds"], value=value)]
