"""Readings with one sample of every metric in the catalogue. Used by the tests of the exporters."""

from exporters.catalogue import METRICS, Distribution, Kind, Reading, Sample, Scope

START_NS = 1_790_000_000_000_000_000


def full_reading(engine: str = "gemma") -> list[Reading]:
    """Return the reading of one engine and that of the exporter."""
    distribution = Distribution(bounds=(0.001, 0.01), counts=(3, 0, 2), sum=0.5)
    by_scope: dict[Scope, list[Sample]] = {Scope.ENGINE: [], Scope.EXPORTER: []}
    for at, metric in enumerate(METRICS):
        value: float | Distribution = distribution if metric.kind is Kind.HISTOGRAM else at + 0.5
        labels = tuple(f"{label}-{at}" for label in metric.labels)
        by_scope[metric.scope].append(Sample(metric=metric, labels=labels, value=value))
    own, engines = by_scope[Scope.EXPORTER], by_scope[Scope.ENGINE]
    later = START_NS + 10**9
    return [
        Reading(engine=engine, model="m", start_ns=START_NS, exporter_start_ns=later, samples=tuple(engines)),
        Reading(exporter_start_ns=later, samples=tuple(own)),
    ]
