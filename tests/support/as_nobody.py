"""kvctl run as another user: ``python -m tests.support.as_nobody COMMAND ...`` started as root.

Invariant: everything is imported before the user changes, because the interpreter may lie in a folder that is closed to
others: all our modules, and by a rehearsal of the command as root whatever they import late. Used by the live tests.
"""

import importlib
import os
import pkgutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

NOBODY = 65534


def main() -> int:
    """Import, become nobody, run the command line."""
    for top in ("kvctl", "inspector", "agent"):
        package = importlib.import_module(top)
        for found in pkgutil.walk_packages(package.__path__, f"{top}."):
            if not found.name.startswith(("inspector.tui", "agent.reference", "kvctl.__main__", "kvctl.commands.top")):
                importlib.import_module(found.name)
    command_line = importlib.import_module("kvctl.main")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        command_line.main(sys.argv[1:])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    code: int = command_line.main(sys.argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
