"""Shows the table of the look-ups at the end of the run, where continuous integration keeps it."""

import pytest

LINES: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> list[str]:
    """Return a list whose lines are printed in the terminal summary."""
    return request.config.stash.setdefault(LINES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the property tests looked at."""
    lines = config.stash.get(LINES, [])
    if lines:
        terminalreporter.section("look-ups compared with the engine")
        for line in lines:
            terminalreporter.write_line(line)
