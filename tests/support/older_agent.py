"""Makes the agent of a server one from before explanations were shared; loaded as a vLLM plugin into test servers.

Invariant: self-contained, because a copy of this file runs in server processes; takes one operation away.
"""

import importlib


def install() -> None:
    """Take the operation away, whichever plugin comes first."""
    agent = importlib.import_module("kvctl.plugin").load_agent()
    operations = importlib.import_module(f"{agent.__name__}.probe.operations").Operations
    if hasattr(operations, "op_explained"):
        del operations.op_explained
