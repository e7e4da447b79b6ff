"""The reference engine's tests: they need torch, and without it none of them is collected.

Invariant: one thread for torch, so that a test costs one core and gives the same bytes everywhere.
"""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]

NIGHTLY = os.environ.get("KVCTL_NIGHTLY") == "1"
"""The long profile: every count as the issue states it."""

if not collect_ignore_glob:
    import torch

    torch.set_num_threads(1)


def pytest_report_header() -> str:
    """Say whether these tests are part of this run."""
    if collect_ignore_glob:
        return "torch is not installed: tests/reference is not collected (install the extra `reference`)"
    return f"reference engine: torch {torch.__version__}, {'nightly' if NIGHTLY else 'short'} profile"
