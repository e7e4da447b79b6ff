"""Files for Grafana and Prometheus, and the command that writes them out.

Invariant: every metric that a file names is in the catalogue (a test compares them); a file that somebody changed is
not replaced unasked. Called by ``kvctl export assets``.
"""

from pathlib import Path
from typing import Final

from agent.errors import RefusedError, UsageError
from exporters.catalogue import markdown_table

HERE: Final = Path(__file__).parent

FILES: Final = ("kvctl-dashboard.json", "kvctl-alerts.yml", "kvctl-alerts.test.yml", "kvctl-aliases.yml", "README.md")
"""The files, in the order in which they are of use."""

METRICS_FILE: Final = "METRICS.md"


def content() -> dict[str, str]:
    """Return every file by name; the list of metrics is made from the catalogue."""
    found = {name: (HERE / name).read_text(encoding="utf-8") for name in FILES}
    return {**found, METRICS_FILE: "# Metrics of kvctl\n\n" + markdown_table()}


def write(folder: Path, *, force: bool = False) -> list[Path]:
    """Write all files into a folder; return their paths.

    Args:
        folder: Created where it is missing.
        force: Replace files that differ.

    Raises:
        RefusedError: A file is there already, with other content.
        UsageError: The folder cannot be written.
    """
    files = {folder / name: text for name, text in content().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        changed = [path for path, text in files.items() if path.exists() and path.read_text("utf-8", "replace") != text]
        if changed and not force:
            raise RefusedError(
                f"{changed[0]} is there already and differs",
                next_step="write into another folder, or replace it with --force",
            )
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}", why=(error.strerror or str(error)).lower()) from error
    return list(files)
