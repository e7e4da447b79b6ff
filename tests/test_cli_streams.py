"""Streams that are closed, full, or of an encoding without our signs: the exit code stays true, and so do the signs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inspector.symbols import SIGN
from kvctl.main import _PLAIN
from tests.support.engine_env import ROOT

RECORDING = str(ROOT / "tests" / "data" / "gemma3.kvsnap")
READ = ["inspect", "--snapshot", RECORDING]
MISSING = ["inspect", "--snapshot", "/nonexistent"]


def run(arguments: list[str], redirections: str, **environ: str) -> tuple[int, str]:
    """Run kvctl under a shell that redirects its streams; return exit code and what it wrote."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m kvctl "$@" {redirections}', sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("redirections", [">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
@pytest.mark.parametrize("arguments", [READ, [*READ, "-o", "json"]], ids=["text", "json"])
def test_closed_streams_are_no_bug_and_no_verdict(arguments: list[str], redirections: str) -> None:
    """A caller that closed a stream gets the exit code of the command: 1 would say that something was found."""
    code, written = run(arguments, redirections)
    assert code == 0
    assert "internal error" not in written


@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_an_error_that_nobody_hears_keeps_its_code(redirections: str) -> None:
    """The exit code of an error does not depend on whether it could be told."""
    assert run(MISSING, redirections)[0] == run(MISSING, "")[0] != 1


@pytest.mark.parametrize("redirections", [">/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_is_said(redirections: str) -> None:
    """Output that cannot be written is no bug of kvctl's."""
    code, written = run(READ, redirections)
    assert code == 2
    assert "internal error" not in written
    assert "2>&1" in redirections or "no space left" in written


def test_signs_stay_apart_where_they_cannot_be_encoded() -> None:
    """In ASCII "?" means unknown and nothing else, and a bar is still a bar."""
    code, written = run(READ, "", PYTHONIOENCODING="ascii")
    assert code == 0
    assert "###..." in written
    assert "?" not in written
    plain = [_PLAIN.get(sign, sign) for sign in SIGN.values()]
    assert len(set(plain)) == len(plain)


def test_every_sign_of_the_command_line_has_a_plain_one() -> None:
    """A new sign in the sources needs its plain form, or it would read as unknown."""
    files = [
        path for name in ("inspector", "kvctl") for path in Path(ROOT / name).rglob("*.py") if "tui" not in path.parts
    ]
    used = {sign for path in files for sign in path.read_text(encoding="utf-8") if ord(sign) > 127}
    assert used <= set(_PLAIN), used - set(_PLAIN)
