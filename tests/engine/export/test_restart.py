"""An engine that ends and comes back under the same name, watched by one exporter that runs on."""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import parser

from tests.support import engine_env
from tests.support.monitoring import Exporter, exporting
from tests.support.prompts import prompt
from tests.support.server import serve
from tests.support.waiting import wait_for

LOGICAL = "kvctl_reuse_logical_tokens_total"


def started(exporter: Exporter) -> float:
    """Return the start that the counter carries."""
    value = exporter.value("kvctl_reuse_lookup_tokens_created", phase="first")
    assert value is not None
    return value


def engines(exporter: Exporter) -> set[str]:
    """Return the engine labels that it shows."""
    families = parser.text_string_to_metric_families(exporter.text())
    return {sample.labels["engine"] for family in families for sample in family.samples if "engine" in sample.labels}


def test_restarted_engine_counts_from_zero_with_a_new_start(model: Callable[..., Path], tmp_path: Path) -> None:
    """The label stays, the counters of the new process begin at 0, and their start is later."""
    arguments = ("--block-size", "32", "--num-gpu-blocks-override", "200", "--max-model-len", "2048")
    with engine_env.short_folder() as own:
        runtime = own / "run"
        runtime.mkdir(mode=0o700)
        with exporting(runtime, tmp_path) as exporter:
            with serve(model("llama"), *arguments, runtime=runtime) as server:
                exporter.follows()
                for _ in range(2):
                    server.http.complete(prompt("restart", 300))
                wait_for(lambda: exporter.value(LOGICAL, phase="first") == 288, "its books")
                first = started(exporter)
            wait_for(lambda: exporter.value("kvctl_up") == 0, "the engine to be shown as down")
            assert exporter.value(LOGICAL, phase="first") is None
            with serve(model("llama"), *arguments, runtime=runtime):
                exporter.follows()
                assert exporter.value(LOGICAL, phase="first") == 0
                assert started(exporter) > first
                assert engines(exporter) == {"m"}
