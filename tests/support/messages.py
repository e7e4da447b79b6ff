"""What every error message of the command line must look like.

Invariant: one place defines the form; tests add the words that they expect. Used by the live tests.
"""

from tests.support.server import Result


def explains(result: Result, code: int, *words: str) -> None:
    """Check an error: the exit code, one sentence, a next step, nothing on stdout, no traceback."""
    assert result.code == code, (result.code, result.stdout, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("kvctl: ")
    assert sum(line.startswith("  next: ") for line in lines) == 1, result.stderr
    assert len(lines) <= 3, result.stderr
    for word in words:
        assert word in result.stderr, (word, result.stderr)
