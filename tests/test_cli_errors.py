"""Errors: one clear message, the right exit code, one JSON object, never a traceback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent import errors
from inspector.store import save
from kvctl.diagnostics import ExitCode, exit_code_of
from tests.support.cli import ROOT, Runner, check_schema
from tests.support.snapshots import gemma
from tests.support.waiting import wait_for

KINDS = {
    errors.TargetError: 3,
    errors.AgentError: 4,
    errors.ProtocolError: 4,
    errors.UnsupportedError: 4,
    errors.UsageError: 2,
    errors.FileError: 2,
    errors.RefusedError: 5,
    errors.InconclusiveError: 6,
    errors.DeadlineError: 124,
    errors.KvctlError: 4,
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    return Runner(capsys)


def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment for a process of its own."""
    return {
        **os.environ,
        "KVCTL_CONFIG": str(tmp_path / "none.toml"),
        "KVCTL_RUNTIME_DIR": str(tmp_path / "runtime"),
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.parametrize(("kind", "code"), KINDS.items(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_error_has_its_exit_code(
    run: Runner, monkeypatch: pytest.MonkeyPatch, kind: type[errors.KvctlError], code: int
) -> None:
    """Each kind of error ends with its exit code and says what, why and what next."""

    def fail(**_: object) -> None:
        raise kind("the thing failed", why="it was broken", next_step="mend it")

    monkeypatch.setattr("agent.session.open_target", fail)
    ran = run("inspect")
    assert ran.code == code == exit_code_of(kind("x"))
    assert ran.out == ""
    assert ran.err.splitlines() == ["kvctl: the thing failed", "  why:  it was broken", "  next: mend it"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_as_json(run: Runner, monkeypatch: pytest.MonkeyPatch, kind: type[errors.KvctlError]) -> None:
    """With -o json an error is exactly one object on stderr that fits its schema; names in it are exact, escaped."""

    def fail(**_: object) -> None:
        raise kind("the thing \x1b[31mfailed")

    monkeypatch.setattr("agent.session.open_target", fail)
    ran = run("inspect", "-ojson")
    data = json.loads(ran.err)
    check_schema(data)
    assert "\x1b" not in ran.err
    assert (data["exit_code"], data["what"], data["why"]) == (ran.code, "the thing \x1b[31mfailed", None)


def test_every_exit_code_has_a_meaning() -> None:
    """The table of exit codes is complete and the codes are those that are promised."""
    from kvctl.diagnostics import MEANING

    assert list(MEANING) == list(ExitCode)
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 6, 124, 130]


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["--nonsense"],
        ["inspect", "nonsense"],
        ["inspect", "prefix"],
        ["inspect", "groups", "hash:00"],
        ["inspect", "-o", "xml"],
        ["inspect", "--interval", "2"],
        ["inspect", "--timeout", "0"],
        ["inspect", "-w", "-i", "-1"],
        ["inspect", "--pid", "1", "--engine", "x"],
        ["decisions", "--where", "reason"],
        ["decisions", "--where", "color=red"],
        ["decisions", "--where", "reason=never"],
        ["explain", "nonsense"],
        ["snapshot", "info", "/nowhere"],
        ["run"],
        ["run", "--", "no-such-program-here"],
        ["completion", "csh"],
    ],
    ids=" ".join,
)
def test_usage_errors(run: Runner, words: list[str]) -> None:
    """A request that makes no sense is exit code 2 with a next step and nothing on stdout."""
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("kvctl: ")
    assert "next: " in ran.err
    assert "Value error" not in ran.err


def test_typo_is_answered_with_the_command(run: Runner) -> None:
    """A mistyped command names the one that was meant."""
    assert "Did you mean 'inspect'" in run("inspekt").err


def test_no_engine_is_exit_3(run: Runner) -> None:
    """With no engine a read command says so and how to start one."""
    ran = run("inspect")
    assert ran.code == 3
    assert "kvctl run" in ran.err


def test_ps_without_engines_is_no_error(run: Runner) -> None:
    """An empty list is a fine answer."""
    ran = run("ps")
    assert ran.code == 0
    assert run("ps", "-o", "json").json["engines"] == []


def test_save_refuses_to_replace(run: Runner, tmp_path: Path) -> None:
    """A capture is not overwritten without being told to: exit code 5."""
    source, copy = tmp_path / "a.kvsnap", tmp_path / "b.kvsnap"
    save(gemma(), source)
    assert run("snapshot", "save", copy, "--snapshot", source).code == 0
    assert run("snapshot", "save", copy, "--snapshot", source).code == 5
    assert run("snapshot", "save", copy, "--snapshot", source, "--force").code == 0


def test_diff_is_a_verdict(run: Runner, tmp_path: Path) -> None:
    """No difference is 0, a difference is 1."""
    from tests.support.snapshots import deepseek

    left, right = tmp_path / "a.kvsnap", tmp_path / "b.kvsnap"
    save(gemma(), left, reveal=True)
    save(deepseek(), right, reveal=True)
    assert run("snapshot", "diff", left, left).code == 0
    ran = run("snapshot", "diff", left, right, "-o", "json")
    assert ran.code == 1
    check_schema(ran.json)


def test_a_bug_is_no_verdict(tmp_path: Path) -> None:
    """An exception that nobody expected ends with 4, not with 1, and asks for a report."""
    program = (
        "import sys, kvctl.app, kvctl.main\n"
        "sys.argv = ['kvctl', 'ps']\n"
        "def broken(): raise ZeroDivisionError('oops')\n"
        "kvctl.app.build = broken\n"
        "kvctl.main.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    assert done.returncode == 4
    assert "internal error: ZeroDivisionError: oops" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_is_130(tmp_path: Path) -> None:
    """^C ends a watch quietly with 130."""
    path = tmp_path / "s.kvsnap"
    save(gemma(), path)
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    listening = ["env", "--default-signal=INT"]
    command = [*listening, sys.executable, "-m", "kvctl", "inspect", "--snapshot", str(path), "-w", "-i", "600"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert process.stdout is not None
    assert "ENGINE" in process.stdout.readline()
    wait_for(lambda: _sleeping(process.pid), "the watch to wait for its next reading")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""


def test_an_early_interrupt_is_130(tmp_path: Path) -> None:
    """^C while the command line is still loading is no bug: 130, and nothing is said."""
    program = (
        "import sys, kvctl.app, kvctl.main\n"
        "sys.argv = ['kvctl', 'ps']\n"
        "class Early:\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['kvctl.app'] = Early()\n"
        "kvctl.main.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def _sleeping(pid: int) -> bool:
    return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8") or Path(f"/proc/{pid}/stat").read_text(
        encoding="utf-8"
    ).split(") ")[1].startswith("S")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """``| head -1`` ends the command quietly."""
    path = tmp_path / "s.kvsnap"
    save(gemma(), path)
    line = f"{sys.executable} -m kvctl inspect --snapshot {path} -w -i 0.01 -o jsonl | head -1"
    script = f"set -o pipefail; {line}; echo code $? >&2"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment(tmp_path), timeout=120, check=False
    )
    assert done.stderr == "code 0\n"
    assert len(done.stdout.splitlines()) == 1


def test_help_into_a_closed_pipe(tmp_path: Path) -> None:
    """Help whose reader is gone before it is written makes no noise either."""
    script = f"{sys.executable} -m kvctl --help | true"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment(tmp_path), timeout=120, check=False
    )
    assert done.stderr == ""
