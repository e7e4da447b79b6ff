"""The long-lived reader of an engine: restarts on either side, several engines, absent values."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agent.discovery import Endpoint, EndpointState
from agent.errors import TargetError
from agent.model.decision import Decision
from agent.model.finding import Finding, GateName, GateResult, Severity, Verdict
from agent.model.snapshot import Snapshot
from agent.model.states import PageId
from exporters.catalogue import CATALOGUE, Distribution, Reading, Sample
from exporters.choice import choose
from exporters.fleet import Fleet, started_ns
from exporters.gpu import Devices
from exporters.readings import GateTotals, of_counters, of_snapshot
from exporters.source import Identity, Rhythm
from tests.support import snapshots
from tests.support.recorded import RecordedEngine
from tests.support.waiting import wait_for

FAST = Rhythm(pages_s=0.05, gates_s=None, poll_s=0.01, look_s=0.02, first_retry_s=0.01)


class NoDevices(Devices):
    """A host without GPUs."""

    def samples(self) -> list[Any]:
        """Return none."""
        return []


@contextmanager
def fleet_of(*engines: RecordedEngine, **more: Any) -> Iterator[Fleet]:
    """Run a fleet over recorded engines."""
    listed = list(engines)

    def opener(endpoint: Endpoint) -> Any:
        return next(one for one in listed if one.endpoint.path == endpoint.path).open()

    discover = more.pop("discover", lambda: [one.endpoint for one in listed])
    fleet = Fleet(discover, opener, version="1.2", devices=NoDevices(), rhythm=more.pop("rhythm", FAST), **more)
    try:
        fleet.tick()
        yield fleet
    finally:
        fleet.close()


def values(readings: Iterable[Reading]) -> dict[tuple[str, ...], float | Distribution]:
    """Samples by name and labels."""
    return {
        (sample.metric.name, *reading.labels_of(sample)): sample.value
        for reading in readings
        for sample in reading.samples
    }


def value(fleet: Fleet, name: str, *labels: str, engine: str = "gemma") -> float | None:
    """One value; None where the series is absent."""
    found = values(fleet.readings()).get((name, engine, "google/gemma-3-4b-it", *labels))
    assert not isinstance(found, Distribution)
    return found


def logical(decisions: Iterable[Decision]) -> int:
    return sum(one.logical or 0 for one in decisions if one.phase.value == "first")


def test_logical_and_usable_follow_the_decision_log() -> None:
    """What a scrape shows is the sum over the log of explained decisions, while decisions keep coming."""
    engine = RecordedEngine()
    with fleet_of(engine) as fleet:
        wait_for(lambda: value(fleet, "up") == 1, "the engine to be read")
        for _ in range(3):
            engine.decide()
            wait_for(
                lambda: value(fleet, "reuse_logical_tokens", "first") == logical(engine.log), "the books to follow"
            )
        assert value(fleet, "reuse_usable_tokens", "first") == sum(one.usable or 0 for one in engine.log)
        assert value(fleet, "reuse_admissions", "resumed") == 3
        assert value(fleet, "following") == value(fleet, "accounting") == 1


def test_counters_survive_a_restart_of_the_exporter() -> None:
    """A second exporter goes on where the first one ended: nothing is lost, and nothing is counted twice."""
    engine = RecordedEngine()
    with fleet_of(engine) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the first exporter to follow")
        engine.decide()
        wait_for(lambda: value(fleet, "reuse_logical_tokens", "first") == logical(engine.log), "the first books")
    between = engine.decide()
    with fleet_of(engine) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the second exporter to follow")
        engine.decide()
        expected = logical(engine.log) - logical(between)
        wait_for(lambda: value(fleet, "reuse_logical_tokens", "first") == expected, "the second books")
        assert value(fleet, "reuse_unexplained_decisions") == len(between) + 2
        assert value(fleet, "reuse_admissions", "first") == 15


def test_restart_of_the_engine_starts_anew_under_the_same_label() -> None:
    """A new process of the same name gets the label of the one that ended, new counters, and a later start."""
    old, new = RecordedEngine(100, start_ticks=5), RecordedEngine(101, start_ticks=9_000)
    listed = [old]
    with fleet_of(old, new, discover=lambda: [one.endpoint for one in listed]) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the first engine to be followed")
        old.decide()
        wait_for(lambda: value(fleet, "reuse_logical_tokens", "first") == logical(old.log), "its books")
        before = fleet.readings()[0].start_ns
        old.alive = False
        wait_for(lambda: value(fleet, "up") == 0, "the engine to be shown as down")
        assert value(fleet, "reuse_logical_tokens", "first") is None, "a dead engine has no values, not zeros"
        listed[:] = [new]
        fleet.tick()
        wait_for(lambda: value(fleet, "up") == 1, "the new engine to be read")
        assert value(fleet, "reuse_logical_tokens", "first") == 0
        assert fleet.readings()[0].start_ns > before
        assert [reading.engine for reading in fleet.readings()] == ["gemma", ""]


def test_a_lost_connection_is_taken_up_again() -> None:
    """An engine that stops answering and comes back is read on, with its books right."""
    engine = RecordedEngine()
    notes: list[str] = []
    with fleet_of(engine, discover=lambda: [replace_live(engine)], note=notes.append) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the engine to be followed")
        engine.alive = False
        wait_for(lambda: value(fleet, "up") == 0, "the loss to be noticed")
        engine.alive = True
        wait_for(lambda: value(fleet, "following") == 1, "the engine to be followed again")
        engine.decide()
        wait_for(lambda: value(fleet, "reuse_logical_tokens", "first") == logical(engine.log), "the books")
    assert any("trying again" in note for note in notes)
    assert any("again" in note for note in notes[1:])


def replace_live(engine: RecordedEngine) -> Endpoint:
    return replace(engine.endpoint, state=EndpointState.LIVE)


def test_engines_of_one_name_get_labels_of_their_own() -> None:
    """Two engines that serve the same model are told apart, and keep their own counters."""
    engines = [RecordedEngine(100), RecordedEngine(101)]
    with fleet_of(*engines) as fleet:
        wait_for(lambda: len(fleet.readings()) == 3, "both engines to be read")
        names = {reading.engine for reading in fleet.readings()[:-1]}
        assert "gemma" in names
        assert names - {"gemma"} <= {"gemma@100", "gemma@101"}


def test_engine_without_a_feed_is_counted_but_not_explained() -> None:
    """Without a page table the engine's own numbers are there, and every decision is unexplained."""
    engine = RecordedEngine(feed=False)
    engine.decide()
    with fleet_of(engine) as fleet:
        wait_for(lambda: value(fleet, "up") == 1, "the engine to be read")
        engine.decide()
        wait_for(lambda: value(fleet, "reuse_unexplained_decisions") == len(engine.log), "the books")
        assert value(fleet, "following") == 0
        assert value(fleet, "pages", "compressed16#2", "compressed", "ready") is None
        assert value(fleet, "reuse_logical_tokens", "first") == 0
        tokens = sum(one.lookup_tokens for one in engine.log if one.phase.value == "first")
        wait_for(lambda: value(fleet, "reuse_lookup_tokens", "first") == tokens, "the engine's own numbers")


def test_an_open_breaker_is_shown_and_said_once() -> None:
    """When the probe takes its hooks out, the exporter goes on and shows it, so that an alert can fire."""
    engine = RecordedEngine()
    notes: list[str] = []
    with fleet_of(engine, note=notes.append) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the engine to be followed")
        engine.breaker_open = True
        wait_for(lambda: value(fleet, "probe_breaker_open") == 1, "the open breaker to be shown")
        assert (value(fleet, "up"), value(fleet, "following")) == (1, 0)
    assert sum("cost more than 4 ms" in note for note in notes) == 1


def test_decisions_reach_the_sink_once() -> None:
    """Spans are made of every decision exactly once."""
    engine = RecordedEngine()
    taken: list[Decision] = []

    def sink(_identity: Identity, decisions: tuple[Decision, ...]) -> None:
        taken.extend(decisions)

    with fleet_of(engine, sink=sink) as fleet:
        wait_for(lambda: value(fleet, "following") == 1, "the engine to be followed")
        engine.decide()
        wait_for(lambda: len(taken) >= len(engine.log), "the decisions")
        engine.decide()
        wait_for(lambda: len(taken) >= len(engine.log), "the later decisions")
    assert [one.id for one in taken] == [one.id for one in engine.log]


def test_gates_and_further_analysis_run_on_the_table() -> None:
    """The gates run on the table that was read, and what else is made of it is shown beside them."""
    engine = RecordedEngine()
    more = Sample(metric=CATALOGUE["stranded_bytes"], labels=("swa", "pool"), value=7)
    fast = replace(FAST, gates_s=0.05)
    with fleet_of(engine, analyse=lambda _snapshot: [more], rhythm=fast) as fleet:
        wait_for(lambda: value(fleet, "stranded_bytes", "swa", "pool") == 7, "the analysis")
        assert value(fleet, "gate_checks", "intersection", "pass") or value(
            fleet, "gate_checks", "intersection", "fail"
        )
        assert (value(fleet, "snapshot_age_seconds") or 0) > 0
        pauses = values(fleet.readings())["capture_pause_seconds", "gemma", "google/gemma-3-4b-it"]
        assert isinstance(pauses, Distribution)
        assert pauses.count > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_analysis_that_fails_takes_only_itself_away() -> None:
    """A bug in what is made of a table costs its own series; decisions are read and counted on."""
    engine = RecordedEngine()
    runs: list[Snapshot] = []

    def fail(snapshot: Snapshot) -> list[Sample]:
        runs.append(snapshot)
        raise TypeError("a bug")

    with fleet_of(engine, analyse=fail, rhythm=replace(FAST, gates_s=0.05)) as fleet:
        wait_for(lambda: len(runs) > 2, "several runs")
        engine.decide()
        wait_for(lambda: value(fleet, "reuse_logical_tokens", "first") == logical(engine.log), "the books to follow")
        assert value(fleet, "findings", "KV301") is None


def test_pages_are_counted_by_group_and_status() -> None:
    """Pages are counted by group; those never computed are stale, those of a later step are in transit."""
    snapshot = snapshots.gemma()
    pages = snapshot.pages
    assert pages is not None
    all_ready = values([Reading(samples=tuple(of_snapshot(snapshot)))])
    total = all_ready["pages", "", "", "compressed16#2", "compressed", "ready"]
    assert isinstance(total, int)
    assert total > 100
    assert all_ready["stale_pages", "", "", "compressed16#2"] == 0
    own = [at for at in range(pages.count) if pages.group[at] == 2]
    stamps = frozenset(memoryview(pages.stamp).cast("Q")[at] for at in own)
    marked = replace(pages, never_computed=stamps, tainted=frozenset({PageId(own[0])}))
    stale = values([Reading(samples=tuple(of_snapshot(replace(snapshot, pages=marked))))])
    assert stale["stale_pages", "", "", "compressed16#2"] == total
    moving = replace(pages, committed_step=(min(stamps - {0}) >> 20) - 1)
    shown = values([Reading(samples=tuple(of_snapshot(replace(snapshot, pages=moving))))])
    assert shown["pages", "", "", "compressed16#2", "compressed", "in_transit"] == total


def test_what_was_not_read_makes_no_sample() -> None:
    """No page table, no pool, an unknown counter: no series, and no zero."""
    bare = replace(snapshots.gemma(), pages=None, pool=None)
    assert of_snapshot(bare) == []
    assert of_counters({"something_new": 3.0, "broken{": 1.0, 'reuse_logical_tokens{other="x"}': 2.0}) == []


def test_durations_become_a_histogram() -> None:
    """The probe's cumulative buckets become counts for each bucket."""
    engine = RecordedEngine()
    engine.decide()
    sample = next(one for one in of_counters(engine.read_counters()) if one.metric.kind.value == "histogram")
    assert isinstance(sample.value, Distribution)
    assert sample.value.count == len(engine.log)
    assert len(sample.value.counts) == len(sample.value.bounds) + 1
    assert sample.value.sum == pytest.approx(sum(one.duration_ns or 0 for one in engine.log) / 1e9)


def test_counts_of_loads_and_of_what_was_taken_out() -> None:
    """Loads by their end with the time that was waited, and pages by selector, come from the probe's own counters."""
    counters = {
        'prefetch{result="arrived"}': 3.0,
        'prefetch{result="failed"}': 1.0,
        'prefetch_wait_seconds_bucket{le="0.1"}': 3.0,
        'prefetch_wait_seconds_bucket{le="+Inf"}': 4.0,
        "prefetch_wait_seconds_sum": 0.7,
        'invalidated_pages{selector="stale"}': 12.0,
    }
    found = {(item.metric.name, item.labels): item.value for item in of_counters(counters)}
    assert found["prefetch", ("arrived",)] == 3
    assert found["prefetch", ("failed",)] == 1
    assert found["invalidated_pages", ("stale",)] == 12
    assert found["prefetch_wait_seconds", ()] == Distribution(bounds=(0.1,), counts=(3, 1), sum=0.7)
    assert len(found) == 4


def test_gate_runs_are_counted_and_findings_shown() -> None:
    """Runs are counted by verdict; a code that was looked at without a finding is 0, one that was not is absent."""
    totals = GateTotals()
    assert totals.samples() == []
    finding = Finding(code="KV301", severity=Severity.WARNING, sentence="a hole")
    result = GateResult(
        gate=GateName.INTERSECTION,
        verdict=Verdict.FAIL,
        checked=7,
        findings=(finding, finding),
        looked={"KV301": 5, "KV302": 2},
        abstained={"KV303": "no indexer"},
    )
    totals.add([result])
    totals.add([result])
    shown = values([Reading(samples=tuple(totals.samples()))])
    assert shown["gate_checks", "", "", "intersection", "fail"] == 2
    assert (shown["findings", "", "", "KV301"], shown["findings", "", "", "KV302"]) == (2, 0)
    assert ("findings", "", "", "KV303") not in shown


class DriverError(Exception):
    """What the management library raises."""


def driver(*, installed: bool) -> Any:
    """Return a management library with one device that has no counter of memory errors."""

    def refuse(*_args: int) -> int:
        raise DriverError

    return SimpleNamespace(
        NVMLError=DriverError,
        NVML_MEMORY_ERROR_TYPE_CORRECTED=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlInit=(lambda: None) if installed else refuse,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _handle: SimpleNamespace(used=123),
        nvmlDeviceGetTotalEccErrors=refuse,
    )


def test_devices_show_what_they_have() -> None:
    """Without a driver there is no series; a figure that a device does not offer is absent, not 0."""
    assert Devices(driver(installed=False)).samples() == []
    devices = Devices(driver(installed=True))
    assert [(one.metric.name, one.labels, one.value) for one in devices.samples()] == [
        ("gpu_memory_used_bytes", ("0",), 123)
    ]
    devices.close()


def test_engines_are_chosen_by_name_pid_or_all() -> None:
    """A name chooses every engine that serves it, also one that comes later; an engine is asked for its name once."""
    engines = [RecordedEngine(100, name="a"), RecordedEngine(101, name="b")]
    asked: list[int] = []

    def opener(endpoint: Endpoint) -> Any:
        asked.append(endpoint.pid)
        return next(one for one in engines if one.info.pid == endpoint.pid).open()

    def everything() -> list[Endpoint]:
        return [one.endpoint for one in engines]

    by_name = choose(opener, name="b", everything=everything)
    assert [found.pid for found in by_name()] == [101]
    engines.append(RecordedEngine(102, name="b"))
    assert [found.pid for found in by_name()] == [101, 102]
    assert asked == [100, 101, 102]
    assert [found.pid for found in choose(opener, pid=100, everything=everything)()] == [100]
    assert len(choose(opener, everything=everything)()) == 3


def test_an_engine_that_cannot_be_asked_is_asked_again() -> None:
    """An engine that did not answer when its name was asked is not given up."""
    engine = RecordedEngine(100, name="b")
    failures = [TargetError("busy")]

    def opener(_endpoint: Endpoint) -> Any:
        if failures:
            raise failures.pop()
        return engine.open()

    by_name = choose(opener, name="b", everything=lambda: [engine.endpoint])
    assert by_name() == []
    assert len(by_name()) == 1


def test_start_of_an_engine_is_a_moment_in_the_past() -> None:
    """The start that counters carry is the start of the engine's process."""
    info = RecordedEngine(start_ticks=100).info
    later = RecordedEngine(start_ticks=100_100).info
    assert 0 < started_ns(info) < started_ns(later)


def test_hostile_engine_names_are_clean_and_short_labels() -> None:
    """A served name of 10 kB with escape sequences becomes one short, plain label."""
    engine = RecordedEngine(name="\x1b[31m" + "m" * 10_000)
    with fleet_of(engine) as fleet:
        wait_for(lambda: len(fleet.readings()) == 2, "the engine to be read")
        label = fleet.readings()[0].engine
    assert label.startswith("[31mmm")
    assert len(label) == 120
    assert "\x1b" not in label
