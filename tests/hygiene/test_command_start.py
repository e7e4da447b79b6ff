"""Starting the command: quick, without the heavy libraries, by either name."""

import json
import subprocess
import sys

import pytest

from tests.hygiene.conftest import ROOT, run

HEAVY = ("textual", "torch", "numpy", "opentelemetry", "prometheus_client", "pynvml", "duckdb")

LIST_AFTER = """
import json, sys
import kvctl.main
code = 0
try:
    kvctl.main.run()
except SystemExit as end:
    code = end.code
print("MODULES " + json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*arguments: str) -> tuple[int, set[str]]:
    """Run the command line in a fresh interpreter; return its exit code and the top-level modules it imported."""
    done = subprocess.run(
        [sys.executable, "-c", LIST_AFTER, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("MODULES ")]
    code, modules = json.loads(line.removeprefix("MODULES "))
    return code or 0, {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("ps", "--help"), ("inspect", "--help")])
def test_help_is_light(arguments: tuple[str, ...]) -> None:
    """Help and version import none of the heavy libraries."""
    code, modules = modules_after(*arguments)
    assert code == 0
    assert not modules & set(HEAVY)


def test_module_form() -> None:
    """``python -m kvctl`` is the same command, whatever other ``kvctl`` stands on the path."""
    assert "kvctl" in run([sys.executable, "-m", "kvctl", "--version"], cwd=ROOT)


def test_no_arguments_prints_help() -> None:
    """Without arguments it prints its help and does not call that an error of the program."""
    done = subprocess.run([sys.executable, "-m", "kvctl"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 2}
    assert "inspect" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
