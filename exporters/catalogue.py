"""The one catalogue of metrics, and the values that fill it.

Invariant: Prometheus, OpenTelemetry, the dashboard, the alert rules and the documentation take names, kinds, units,
help and labels from here only. Base units, counters end in ``_total``; of a ratio both counters are exported.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

PREFIX: Final = "kvctl_"

ENGINE_LABELS: Final = ("engine", "model")
"""Labels that every series of an engine carries first."""


class Kind(StrEnum):
    """What kind of metric it is."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """What a series belongs to."""

    ENGINE = "engine"
    """One engine: carries :data:`ENGINE_LABELS`."""
    EXPORTER = "exporter"
    """The exporter itself, or the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    """Without prefix and without ``_total``."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Labels with closed sets of values, the engine's not among them."""
    unit: str = ""
    """Unit for OpenTelemetry (UCUM): ``s``, ``By``, ``{token}`` ..."""
    scope: Scope = Scope.ENGINE
    start_at: str = "engine"
    """What a counter counts from: the start of the ``engine`` or of the ``exporter``."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Labels in the order of :attr:`Sample.labels`, with those of the engine in front."""
        return (*ENGINE_LABELS, *self.labels) if self.scope is Scope.ENGINE else self.labels

    @property
    def prometheus_name(self) -> str:
        """The name that a scrape shows (histograms: without ``_bucket``, ``_sum`` and ``_count``)."""
        return f"{PREFIX}{self.name}{'_total' if self.kind is Kind.COUNTER else ''}"

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry: Prometheus' translation of it is :attr:`prometheus_name` again."""
        suffix = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return "kvctl." + self.name.removesuffix(suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The value of a histogram."""

    bounds: tuple[float, ...]
    """Upper bounds of the buckets, rising, without the infinite one."""
    counts: tuple[int, ...]
    """Observations in each bucket, not cumulative; the last one is that without an upper bound."""
    sum: float

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one series."""

    metric: Metric
    labels: tuple[str, ...] = ()
    """Values of ``metric.labels``, cleaned."""
    value: float | Distribution = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one engine (or the exporter itself) says at one moment."""

    engine: str = ""
    """Value of the label; empty for the exporter itself."""
    model: str = ""
    start_ns: int = 0
    """Wall clock at which the engine started; its counters began there. Nanoseconds since the epoch."""
    exporter_start_ns: int = 0
    taken_ns: int = 0
    samples: tuple[Sample, ...] = ()
    attributes: tuple[tuple[str, str], ...] = field(default=())
    """Further resource attributes for OpenTelemetry."""

    def labels_of(self, sample: Sample) -> tuple[str, ...]:
        """Values of ``sample.metric.all_labels``."""
        return (self.engine, self.model, *sample.labels) if sample.metric.scope is Scope.ENGINE else sample.labels

    def start_of(self, metric: Metric) -> int:
        """When a counter of this reading began."""
        return self.start_ns if metric.start_at == "engine" and self.start_ns else self.exporter_start_ns


def _counter(name: str, text: str, *labels: str, unit: str = "", start_at: str = "engine") -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=labels, unit=unit, start_at=start_at)


def _gauge(name: str, text: str, *labels: str, unit: str = "", scope: Scope = Scope.ENGINE) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=labels, unit=unit, scope=scope)


_TOKEN: Final = "{token}"  # noqa: S105 - a unit
_PAGE: Final = "{page}"
_DECISION: Final = "{decision}"

METRICS: Final[tuple[Metric, ...]] = (
    _counter(
        "reuse_lookup_tokens", "Tokens of admitted requests at their look-up, explained or not.", "phase", unit=_TOKEN
    ),
    _counter("reuse_engine_tokens", "Tokens that the engine reused from its own pool.", "phase", unit=_TOKEN),
    _counter("reuse_external_tokens", "Tokens that a connector brought from another tier.", "phase", unit=_TOKEN),
    _counter("reuse_admissions", "Admitted look-ups, explained or not.", "phase", unit=_DECISION),
    _counter(
        "reuse_explained_tokens",
        "Looked-up tokens of explained decisions: the denominator of logical and usable.",
        "phase",
        unit=_TOKEN,
    ),
    _counter("reuse_logical_tokens", "Tokens of the logical hits of explained decisions.", "phase", unit=_TOKEN),
    _counter("reuse_usable_tokens", "Tokens of the usable hits of explained decisions.", "phase", unit=_TOKEN),
    _counter("reuse_decisions", "Decisions in the books by what became of them.", "outcome", "phase", unit=_DECISION),
    _counter(
        "reuse_unexplained_decisions",
        "Decisions without a logical and usable hit: nobody followed the page table.",
        unit=_DECISION,
    ),
    _counter(
        "reuse_disagreements",
        "Explained decisions in which the engine reused more, or less, than the page table allows.",
        "kind",
        unit=_DECISION,
    ),
    _counter(
        "reuse_lost_tokens",
        "Tokens of explained decisions that were not reused, by the state and group that caused it, and why.",
        "state",
        "group",
        "reason",
        unit=_TOKEN,
    ),
    _counter(
        "degradations",
        "Explained decisions that lost cached tokens, and not by design, by limiting group.",
        "state",
        "group",
        unit=_DECISION,
    ),
    _counter("decisions_dropped", "Decisions that did not reach a reader of the feed.", unit=_DECISION),
    Metric(
        name="decision_duration_seconds",
        kind=Kind.HISTOGRAM,
        help="Time in the look-up that was admitted.",
        unit="s",
    ),
    _gauge("pages", "Cached pages by group, main state and status.", "group", "state", "status", unit=_PAGE),
    _gauge("stale_pages", "Cached pages that must not be used: older weights, or never computed.", "group", unit=_PAGE),
    _gauge(
        "stranded_bytes",
        "Memory of cached pages that cannot be part of any usable hit now.",
        "state",
        "tier",
        unit="By",
    ),
    _gauge("pool_pages", "Pages of the pool, the null page included.", unit=_PAGE),
    _gauge("pool_free_pages", "Free pages by the engine's own counter, cached ones among them.", unit=_PAGE),
    _gauge(
        "admission_headroom_pages",
        "Free pages that can be promised to the next request: without those that running requests still need and "
        "those that an admission leaves free. Groups that share a pool share the number.",
        "group",
        unit=_PAGE,
    ),
    _counter(
        "prefetch",
        "Loads from other tiers that requests waited for, by how they ended. Reference engine only: vLLM keeps no such "
        "count.",
        "result",
        unit="{load}",
    ),
    Metric(
        name="prefetch_wait_seconds",
        kind=Kind.HISTOGRAM,
        help="Time that requests waited for a load from another tier, whatever came of it. Reference engine only.",
        unit="s",
    ),
    _counter(
        "recovered_tokens",
        "Tokens of admitted requests that were not computed again, by the recovery route that won them; those that had "
        "to work together are joined by +. Reference engine only: vLLM keeps no such count.",
        "route",
        unit=_TOKEN,
    ),
    _counter(
        "invalidated_pages",
        "Pages that were taken out of the cache on purpose, by the kind of selector that named them.",
        "selector",
        unit=_PAGE,
    ),
    _counter("gate_checks", "Runs of a gate by verdict.", "gate", "result", start_at="exporter"),
    _gauge(
        "findings", "Findings of the latest run of the gates; absent for codes that could not be looked at.", "code"
    ),
    _counter("toctou_conflicts", "Pages that were not the same when bound as when checked."),
    _gauge(
        "fingerprint_info", "Short ids of the contract and weights in force; the value is 1.", "contract", "weights"
    ),
    _gauge("snapshot_age_seconds", "Age of the page table behind pages and findings.", unit="s"),
    Metric(
        name="capture_pause_seconds",
        kind=Kind.HISTOGRAM,
        help="Time at a safe point for one reading.",
        unit="s",
        start_at="exporter",
    ),
    _counter("probe_overhead_seconds", "Time of the engine's thread in the probe's hooks.", unit="s"),
    _gauge("probe_breaker_open", "1 when the probe took its hooks out of the engine."),
    _gauge("following", "1 while the exporter follows the page table, so that decisions are explained."),
    _gauge("accounting", "1 while this exporter holds the lease on the engine's books."),
    _gauge("up", "1 while the exporter reads this engine."),
    _gauge("build_info", "Version of the exporter; the value is 1.", "version", scope=Scope.EXPORTER),
    Metric(
        name="spans_dropped",
        kind=Kind.COUNTER,
        help="Spans that the exporter gave up because the receiver was too slow or refused them.",
        scope=Scope.EXPORTER,
        start_at="exporter",
        unit="{span}",
    ),
    _gauge("gpu_memory_used_bytes", "Memory in use on a device.", "gpu", unit="By", scope=Scope.EXPORTER),
    Metric(
        name="gpu_ecc_errors",
        kind=Kind.COUNTER,
        help="Memory errors of a device since its driver was loaded.",
        labels=("gpu", "kind"),
        scope=Scope.EXPORTER,
        start_at="exporter",
        unit="{error}",
    ),
)
"""Every metric, in the order of the documentation."""

CATALOGUE: Final[dict[str, Metric]] = {metric.name: metric for metric in METRICS}
"""The metrics by name."""


def markdown_table() -> str:
    """Return the catalogue as a Markdown table for the documentation."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{metric.prometheus_name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.all_labels)} "
        f"| {metric.help} |"
        for metric in METRICS
    ]
    return "\n".join(lines) + "\n"
