"""Tables of the documents, from the same source as the help: commands, exit codes, formats, settings, reasons.

Invariant: what stands between ``<!-- kvctl:NAME -->`` and ``<!-- kvctl:end -->`` in a document is this module's
output; a test compares them. Run ``python -m kvctl.docs FILE...`` to bring documents up to date, ``--check`` to
compare only.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .app import SECTIONS, summaries
from .config import SETTINGS
from .diagnostics import MEANING

_BLOCK = re.compile(r"(<!-- kvctl:(?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- kvctl:end -->)", re.DOTALL)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def exit_codes() -> str:
    """Return the table of exit codes."""
    return _table(("exit code", "meaning"), [(str(int(code)), meaning) for code, meaning in MEANING.items()])


def commands() -> str:
    """Return the table of commands, in the order of the help."""
    known = summaries()
    order = [name for names in SECTIONS.values() for name in names if name in known]
    order += [name for name in known if name not in order]
    return _table(("command", "what it does"), [(f"`kvctl {name}`", known[name]) for name in order])


def settings() -> str:
    """Return the table of settings."""
    rows = [(f"`{name}`", f"`KVCTL_{name.upper()}`", f"`--{_flag(name)}`") for name in SETTINGS]
    return _table(("config.toml", "environment", "flag"), rows)


def _flag(name: str) -> str:
    return {"bytes": "bytes"}.get(name, name.replace("_", "-"))


def reasons() -> str:
    """Return the table of reasons why tokens were not reused."""
    from inspector.explain import REASONS  # noqa: PLC0415 - only this table needs it

    return _table(("reason", "meaning"), [(f"`{reason}`", entry.title) for reason, entry in REASONS.items()])


TABLES: dict[str, Callable[[], str]] = {
    "exit-codes": exit_codes,
    "commands": commands,
    "settings": settings,
    "reasons": reasons,
}
"""Every table by the name that a document gives it."""


def updated(text: str) -> str:
    """Return a document with its generated tables brought up to date.

    Raises:
        KeyError: It names a table that there is none of.
    """
    return _BLOCK.sub(lambda found: found[1] + TABLES[found["name"]]() + found[4], text)


def main(arguments: Sequence[str]) -> int:
    """Bring documents up to date, or say which are not."""
    check = "--check" in arguments
    paths = [Path(word) for word in arguments if not word.startswith("-")]
    if not paths:
        sys.stdout.write("\n".join(table() for table in TABLES.values()))
        return 0
    old = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        new = updated(text)
        if new != text:
            old.append(str(path))
            if not check:
                path.write_text(new, encoding="utf-8")
    for name in old:
        sys.stderr.write(f"{name}: {'out of date; run python -m kvctl.docs ' + name if check else 'updated'}\n")
    return 1 if check and old else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
