"""``kvctl demo``: from the engine's process to a report, and every fault found by the gate that owns it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agent.reference.faults import EXPECTED
from agent.reference.injection import ACTS
from agent.session import open_target
from kvctl.commands.demo import FAULTS
from tests.support.reference import NIGHTLY
from tests.support.waiting import wait_for

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "demo.json"


def _demo(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    folder.mkdir(mode=0o700)
    env = {**os.environ, "KVCTL_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kvctl", "demo", "--headless", "-o", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.stdout, done.stderr
    left = [path.name for path in folder.iterdir() if path.name.endswith(".sock")]
    assert not left, "a socket was left behind"
    return done.returncode, json.loads(done.stdout)


def test_the_demo_tells_logical_from_usable(tmp_path: Path) -> None:
    """A short run ends with exit code 0, tokens that were found and not usable, restarts, and five gates."""
    code, report = _demo(tmp_path / "run", "--duration", "8s", "--restart-every", "2s")
    assert code == 0
    assert report["kind"] == "demo"
    jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert report["decisions"] > 5
    assert 0 < report["usable_tokens"] < report["logical_tokens"] < report["lookup_tokens"]
    assert report["restarts"] > 0
    assert (report["external_tokens"] > 0) == (report["outcomes"]["prefetching"] > 0)
    assert {entry["reason"] for entry in report["lost"]} & {"not_retained", "window_hole", "evicted"}
    assert [gate["gate"] for gate in report["gates"]] == ["block", "contract", "intersection", "alignment", "redlines"]


def test_an_engine_that_dies_leaves_its_report(tmp_path: Path) -> None:
    """The report of what was seen until then is printed, and the exit code says that the engine was lost."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    env = {**os.environ, "KVCTL_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kvctl", "demo", "--headless", "-o", "json", "--duration", "120s"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    wait_for(lambda: any(folder.glob("engine-*.sock")), "an engine")
    with open_target(socket=next(folder.glob("engine-*.sock"))) as session:
        wait_for(lambda: len(session.decisions()) > 3, "some decisions")
        os.kill(session.info.pid, signal.SIGKILL)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 3, err
    report = json.loads(out)
    jsonschema.validate(report, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert report["ended_early"]
    assert json.loads(err)["error"] == "target"


def test_without_a_terminal_there_is_a_next_step(tmp_path: Path) -> None:
    """The dashboard needs a terminal; without one the command says so, with the way around, and starts nothing."""
    env = {**os.environ, "KVCTL_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "kvctl", "demo"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert "the dashboard needs a terminal" in done.stderr
    assert "--headless" in done.stderr
    assert "starting" not in done.stderr


def test_a_folder_that_others_may_enter_is_said_at_once(tmp_path: Path) -> None:
    """Where the engine's agent could have no socket nothing is started; the sentence says why, and how to mend it."""
    tmp_path.chmod(0o755)
    env = {**os.environ, "KVCTL_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "kvctl", "demo", "--headless"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"{tmp_path}: its mode is 0755; 0700 is needed" in done.stderr
    assert f"next: chmod 0700 {tmp_path}" in done.stderr
    assert "starting" not in done.stderr


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_an_injected_fault_is_found(fault: str, tmp_path: Path) -> None:
    """The gate that owns the fault names it with its code, and the report says so."""
    code, report = _demo(tmp_path / "run", "--duration", "10s" if NIGHTLY else "5s", "--rate", "20", "--inject", fault)
    injection = report["injection"]
    assert injection["fault"] == fault
    assert injection["after_seconds"] is not None, report["gates"]
    named = {finding["code"] for finding in injection["found"]} | set(injection["counted"])
    assert named
    assert named <= set(FAULTS[fault])
    assert code == 0


def test_the_command_knows_the_engines_faults() -> None:
    """The list of the command line is the list of the engine, and each entry can be acted out."""
    assert {fault.value: codes for fault, codes in EXPECTED.items()} == FAULTS
    assert set(ACTS) == set(EXPECTED)
