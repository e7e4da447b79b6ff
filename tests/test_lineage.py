"""Which processes an operator may name for an engine, and what the others are told."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent import paths
from agent.errors import TargetError
from agent.lineage import family
from agent.session import open_target
from tests.support.cli import ROOT, Runner

_ENGINE = """
import os, sys
from pathlib import Path
from tests.support.tiny_engine import tiny_engine
with tiny_engine(Path(sys.argv[1])):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
_SERVER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode)
"""


@pytest.fixture(autouse=True)
def _folder(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))


@contextmanager
def served(runtime: Path) -> Iterator[tuple[int, int, int]]:
    """Run an engine below a server below a shell; yield their pids, the shell's first."""
    script = '"$@"; :'  # with a second command the shell stays
    command = ["sh", "-c", script, "sh", sys.executable, "-c", _SERVER, _ENGINE, str(runtime)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        yield shell.pid, int(shell.stdout.readline()), int(shell.stdout.readline())
        shell.stdin.close()


def test_what_runs_the_same_program_stands_for_the_engine(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server above an engine names it, for `ps` as well; the shell above both does not, and is told who does."""
    with served(runtime) as (shell, server, engine):
        assert family(engine)[:2] == (engine, server)
        assert shell in paths.ancestors(engine)
        for pid in (server, engine):
            with open_target(pid) as session:
                assert session.info.pid == engine
        assert Runner(capsys)("ps", "--pid", str(server), "-o", "name").out == f"{engine}\n"
        assert Runner(capsys)("ps", "--pid", str(shell), "-o", "name").out == ""
        with pytest.raises(TargetError, match=f"process {shell} is no engine") as caught:
            open_target(shell)
        assert caught.value.next_step == f"name the engine itself: --pid {engine}"


@pytest.mark.parametrize(
    ("environ", "off", "why", "next_step"),
    [
        ({"KVCTL_AGENT": "0"}, False, "KVCTL_AGENT=0", "kvctl run"),
        ({"KVCTL_AGENT": "1"}, True, "/off switches every agent off", "/off, then restart the engine"),
        ({"KVCTL_AGENT": "1"}, False, "switched off, has failed", "its log says which"),
        ({"KVCTL_AGENT": "1", "KVCTL_RUNTIME_DIR": "/elsewhere"}, False, "/elsewhere", "export KVCTL_RUNTIME_DIR"),
        ({}, False, "no socket in the runtime folders", "kvctl run"),
    ],
)
def test_an_engine_whose_agent_is_off(
    environ: dict[str, str], off: bool, why: str, next_step: str, runtime: Path
) -> None:
    """A process without a socket is told what switched its agent off, and how it comes back."""
    if off:
        (runtime / paths.KILL_FILE).touch()
    environ = {"KVCTL_RUNTIME_DIR": str(runtime), **environ}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(TargetError) as caught:
            open_target(process.pid)
        process.communicate(b"\n")
    assert why in str(caught.value.why)
    assert next_step in str(caught.value.next_step)
