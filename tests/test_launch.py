"""`kvctl run --`: the engine becomes the very process, with the agent asked for in its environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.attach.launch import environment, run
from agent.errors import UsageError
from tests.support.engine_env import ROOT

SHOW = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:], dict(os.environ)])); sys.exit(7)"


def launch(*arguments: str, **environ: str) -> tuple[subprocess.Popen[bytes], bytes]:
    """Run the launcher in a process of its own."""
    code = "import sys; from agent.attach.launch import run; run(sys.argv[2:], allow_changes=sys.argv[1] == 'yes')"
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environ}, cwd=ROOT, stdout=subprocess.PIPE
    )
    out, _ = child.communicate()
    return child, out


def test_the_engine_is_the_process(tmp_path: Path) -> None:
    """Pid and exit status are the engine's own, its arguments arrive unchanged, and it is read-only."""
    arguments = ["serve", "--flag=a b", ""]
    child, out = launch("no", sys.executable, "-c", SHOW, *arguments, KVCTL_RUNTIME_DIR=str(tmp_path / "r"))
    pid, seen, environ = json.loads(out)
    assert (pid, child.returncode, seen) == (child.pid, 7, arguments)
    assert environ["KVCTL_AGENT"] == "1"
    assert "KVCTL_ALLOW_CHANGES" not in environ


def test_changes_are_allowed_explicitly_only(tmp_path: Path) -> None:
    """A variable that was left in the shell does not allow changes; the flag does."""
    runtime = str(tmp_path / "r")
    _, out = launch("no", sys.executable, "-c", SHOW, KVCTL_RUNTIME_DIR=runtime, KVCTL_ALLOW_CHANGES="1")
    assert "KVCTL_ALLOW_CHANGES" not in json.loads(out)[2]
    _, out = launch("yes", sys.executable, "-c", SHOW, KVCTL_RUNTIME_DIR=runtime)
    assert json.loads(out)[2]["KVCTL_ALLOW_CHANGES"] == "1"


@pytest.mark.parametrize(
    ("given", "wanted"), [(None, None), ("", "kvctl"), ("lora", "lora,kvctl"), ("a,kvctl", "a,kvctl")]
)
def test_a_list_of_plugins_is_completed(given: str | None, wanted: str | None) -> None:
    """An explicit list of vLLM plugins does not leave the agent out silently."""
    base = {} if given is None else {"VLLM_PLUGINS": given}
    assert environment(base, allow_changes=False).get("VLLM_PLUGINS") == wanted


def test_nothing_to_run_and_no_such_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes in the command are said before anything starts."""
    with pytest.raises(UsageError, match="nothing to run"):
        run([])
    with pytest.raises(UsageError, match="no program 'no-such-program'"):
        run(["no-such-program"])


def test_what_to_do_with_old_weights_is_said_or_left_as_it_is() -> None:
    """``--on-weights-change`` becomes the engine's variable; without it the caller's own stays."""
    said = environment({}, allow_changes=False, on_weights_change="invalidate")
    assert said["KVCTL_ON_WEIGHTS_CHANGE"] == "invalidate"
    kept = environment({"KVCTL_ON_WEIGHTS_CHANGE": "invalidate"}, allow_changes=False)
    assert kept["KVCTL_ON_WEIGHTS_CHANGE"] == "invalidate"
    assert "KVCTL_ON_WEIGHTS_CHANGE" not in environment({}, allow_changes=False)
