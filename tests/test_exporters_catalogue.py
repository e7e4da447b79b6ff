"""One catalogue feeds everything: names, labels, assets."""

import json
import re
from pathlib import Path

import pytest

from agent.errors import RefusedError
from exporters.assets import HERE, METRICS_FILE, content, write
from exporters.catalogue import CATALOGUE, METRICS, Kind, Scope, markdown_table
from exporters.labels import MAX_LABEL, clean_label, key_of, parse_key
from exporters.readings import SOURCES

CLOSED = {
    *("engine", "model", "group", "state", "status", "tier", "gate", "result", "code", "reason", "outcome", "phase"),
    *("fidelity", "selector", "gpu", "kind", "contract", "weights", "version", "route"),
}
"""Labels whose values come from closed sets, or are short ids of versions."""


def _names() -> set[str]:
    """Every name that a scrape can show."""
    found = set()
    for metric in METRICS:
        name = metric.prometheus_name
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        found |= {name + suffix for suffix in suffixes}
    return found


def test_labels_come_from_closed_sets() -> None:
    """No metric has a label that a client could fill: no hashes, no request ids."""
    assert {label for metric in METRICS for label in metric.all_labels} <= CLOSED


def test_names_are_unique_and_in_base_units() -> None:
    """Names are unique, durations are seconds, sizes are bytes, and no ratio is exported."""
    assert len(CATALOGUE) == len(METRICS)
    for metric in METRICS:
        assert not metric.name.endswith(("_ratio", "_total", "_ms", "_ns")), metric.name
        assert (metric.unit == "s") == metric.name.endswith("_seconds"), metric.name
        assert (metric.unit == "By") == metric.name.endswith("_bytes"), metric.name


def test_counters_of_the_probe_reach_a_metric() -> None:
    """Every counter of the probe that is exported has a metric of its own in the catalogue."""
    assert set(SOURCES.values()) <= set(CATALOGUE)
    assert len(set(SOURCES.values())) == len(SOURCES)


@pytest.mark.parametrize("name", ["kvctl-dashboard.json", "kvctl-alerts.yml", "kvctl-alerts.test.yml", "README.md"])
def test_assets_name_only_metrics_that_exist(name: str) -> None:
    """A dashboard panel or a rule never asks for a metric that no exporter shows."""
    text = (HERE / name).read_text(encoding="utf-8")
    mentioned = set(re.findall(r"\bkvctl_[a-z_]+", text))
    assert mentioned, "the file names no metric at all"
    assert mentioned <= _names()


def test_the_dashboard_shows_every_engine_metric_of_reuse() -> None:
    """The dashboard is valid JSON, and its panels use the labels that the metrics have."""
    dashboard = json.loads((HERE / "kvctl-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for expression in expressions:
        used = set(re.findall(r"kvctl_[a-z_]+", expression))
        allowed = {label for metric in METRICS if metric.prometheus_name in used for label in metric.all_labels}
        allowed |= {"engine", "le"}
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in labels.split(",")} <= allowed | {"phase"}, expression


def test_assets_are_written_and_not_overwritten_unasked(tmp_path: Path) -> None:
    """Writing twice is fine; a rule that an operator changed is kept unless replacing was asked for."""
    folder = tmp_path / "new" / "assets"
    paths = write(folder)
    assert {path.name for path in paths} == set(content())
    assert METRICS_FILE in content()
    write(folder)
    changed = folder / "kvctl-alerts.yml"
    changed.write_text("mine", encoding="utf-8")
    with pytest.raises(RefusedError, match="differs"):
        write(folder)
    assert changed.read_text(encoding="utf-8") == "mine"
    write(folder, force=True)
    assert changed.read_text(encoding="utf-8") != "mine"


def test_the_table_of_metrics_has_one_line_for_each() -> None:
    """The documentation's table is the catalogue."""
    lines = markdown_table().splitlines()[2:]
    assert len(lines) == len(METRICS)
    assert all(metric.prometheus_name in line for metric, line in zip(METRICS, lines, strict=True))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain/name-7b", "plain/name-7b"),
        ("\x1b[31mred\x1b[0m\r\n\x00", "[31mred[0m"),
        ("evil\u202ename\u200b", "evilname"),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
        ("\x07", "unknown"),
        ("\ud800", "unknown"),
        ("", "unknown"),
    ],
)
def test_hostile_names_become_plain_labels(text: str, shown: str) -> None:
    """Control, format and half characters never reach a label."""
    assert clean_label(text) == shown


def test_long_names_are_cut() -> None:
    """Ten kilobytes of a name become one short label."""
    assert len(clean_label("m" * 10_000)) == MAX_LABEL
    assert clean_label("\x00" * 10_000_000) == "unknown"


@pytest.mark.parametrize("value", ['a"b', "back\\slash", "a,b=c", "{}", 'x\\"'])
def test_keys_are_read_back(value: str) -> None:
    """A label value survives the way into a counter's key and back."""
    assert parse_key(key_of("name", {"group": value, "kind": "k"})) == ("name", {"group": value, "kind": "k"})


@pytest.mark.parametrize("key", ["name{", 'name{a="b}', "name{a=b}", 'name{a="b"}x'])
def test_a_key_that_is_none_is_no_sample(key: str) -> None:
    """What cannot be read as a key is left out, not guessed."""
    assert parse_key(key) is None


def test_own_metrics_carry_no_engine() -> None:
    """What belongs to the exporter or the host has no engine label."""
    assert all("engine" not in metric.all_labels for metric in METRICS if metric.scope is Scope.EXPORTER)
