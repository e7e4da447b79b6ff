"""The README: exactly two commands, and every example prints what it says.

Invariant: examples are run on the recorded snapshot; ``KVCTL_UPDATE_GOLDEN=1`` writes their output anew. The two
commands themselves are run by ``.ci/run``, taken from the README as they stand there.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.hygiene.conftest import ROOT

README = ROOT / "README.md"
EXAMPLES = re.compile(r"^```console\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
COLUMNS = "100"


def printed(command: str) -> str:
    """Return what a ``kvctl ...`` example prints to standard output."""
    words = shlex.split(command)
    assert words[0] == "kvctl"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVCTL_")}
    done = subprocess.run(
        [sys.executable, "-m", "kvctl", *words[1:]],
        cwd=ROOT,
        env=environment | {"COLUMNS": COLUMNS, "NO_COLOR": "1", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rerun(block: str) -> str:
    """Return an example block with the output of its commands as it is now."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"{line}\n{printed(line.removeprefix('$ '))}" for line in commands)


def test_two_commands() -> None:
    """There are exactly two commands to run, each in a block of its own."""
    assert len(re.findall(r"^```sh$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)) == 2


def test_examples_print_what_they_say() -> None:
    """Every example's output is what the command prints."""
    text = README.read_text(encoding="utf-8")
    current = EXAMPLES.sub(lambda found: f"```console\n{rerun(found[1])}```", text)
    if os.environ.get("KVCTL_UPDATE_GOLDEN"):
        README.write_text(current, encoding="utf-8")
        text = current
    assert current == text, "run the test with KVCTL_UPDATE_GOLDEN=1 and look at the difference"


@pytest.mark.parametrize("name", ["CHANGELOG.md", "LICENSE", "docs/findings.md", "tests/support/record.py", ".ci/run"])
def test_what_it_names_is_there(name: str) -> None:
    """Files that the README sends a reader to exist."""
    assert (ROOT / name).is_file()
