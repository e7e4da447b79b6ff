"""``kvctl export`` as an operator types it: errors, waiting, ending, assets."""

import signal
import socket
from pathlib import Path

import pytest

from agent.model.snapshot import Snapshot
from kvctl.commands.export import _stranded
from kvctl.main import main
from tests.support import snapshots
from tests.support.monitoring import exporting
from tests.support.waiting import wait_for


def test_a_taken_port_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is in use ends the command with code 2 and the next step."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = main(["export", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "cannot listen on" in said.err
    assert "--listen" in said.err


@pytest.mark.parametrize(
    "arguments",
    [["--listen", "off"], ["--listen", "nowhere"], ["--otlp", "localhost:4318"], ["--pid", "x"], ["nonsense"]],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to do, an address that is none, a target that is none: code 2, at once."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert main(["export", *arguments]) == 2


def test_without_an_engine_it_waits_and_ends_in_order(tmp_path: Path) -> None:
    """An exporter that is started before its engine says so, serves what it has, and ends with 0 on SIGTERM."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    with exporting(runtime, tmp_path) as exporter:
        wait_for(lambda: "waiting for one" in exporter.err.read_text(encoding="utf-8"), "it to say that it waits")
        assert exporter.value("kvctl_build_info", version="0.1.0") == 1
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(timeout=30) == 0


def test_assets_are_listed_and_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``kvctl export assets`` prints what it wrote; a changed file is refused with code 5 unless forced."""
    folder = tmp_path / "assets"
    assert main(["export", "assets", str(folder)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {Path(line) for line in listed} == set(folder.iterdir())
    (folder / "kvctl-alerts.yml").write_text("mine", encoding="utf-8")
    assert main(["export", "assets", str(folder)]) == 5
    assert main(["export", "assets", "--force", str(folder)]) == 0


def test_a_folder_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    """A file where the folder should be is named, with code 2."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["export", "assets", str(tmp_path / "file")]) == 2


@pytest.mark.parametrize("snapshot", [snapshots.gemma(), snapshots.deepseek()])
def test_stranded_memory_is_shown_by_state(snapshot: Snapshot) -> None:
    """The recorded tables strand some pages of full history; what cannot be told has no sample."""
    shown = {sample.labels[0]: sample.value for sample in _stranded(snapshot)}
    assert set(shown) == {group.state.value for group in snapshot.geometry.groups}
    assert isinstance(shown["compressed"], int)
    assert shown["compressed"] > 0
    assert _stranded(Snapshot(engine=snapshot.engine, capture=snapshot.capture, geometry=snapshot.geometry)) == []
