"""``python -m kvctl``: the command where another project's ``kvctl`` comes first on PATH.

Invariant: with ``-m`` Python puts the current folder first on the search path; it is taken off again before anything
else is imported, so that a ``typer.py`` or ``agent.py`` lying there is never run.
"""

import sys
from pathlib import Path

_HOME = Path(__file__).resolve().parent.parent
if sys.path and Path(sys.path[0] or ".").resolve() != _HOME and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

from kvctl.main import run  # noqa: E402 - the search path comes first

if __name__ == "__main__":
    run()
