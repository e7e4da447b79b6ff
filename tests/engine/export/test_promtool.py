"""Prometheus' own tool has no complaint about what kvctl ships and shows.

Runs beside the engine's tests because that job installs Prometheus; no engine is started.
"""

from pathlib import Path

from exporters.assets import write
from exporters.prometheus import Endpoint
from tests.support.exporting import full_reading
from tests.support.monitoring import get, promtool


def test_rules_are_valid_and_their_unit_tests_pass(tmp_path: Path) -> None:
    """``kvctl export assets`` writes rules that promtool accepts, with unit tests that pass."""
    write(tmp_path)
    assert "SUCCESS: 10 rules found" in promtool("check", "rules", str(tmp_path / "kvctl-alerts.yml"))
    assert "SUCCESS: 3 rules found" in promtool("check", "rules", str(tmp_path / "kvctl-aliases.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "kvctl-alerts.test.yml"))


def test_every_metric_of_the_catalogue_passes_the_linter() -> None:
    """With one sample of every metric, ``promtool check metrics`` has nothing to say."""
    endpoint = Endpoint(full_reading, "127.0.0.1:0")
    endpoint.start()
    try:
        text = get(f"http://127.0.0.1:{endpoint.address[1]}/metrics")
    finally:
        endpoint.close()
    assert promtool("check", "metrics", text=text) == ""
