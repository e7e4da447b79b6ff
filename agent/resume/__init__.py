"""The resume rules: where each state can resume, and so what is logical, usable and limiting.

Invariant: pure functions of geometry, chain and presence; the engine's own answer is never looked at. Standard library
only. The gates, the explanation of a decision and every analysis call these, and nothing else decides what is usable.
"""

from .deviations import ALL, KV305, Deviation, expected_engine_hit, explain_difference, possible
from .fixpoint import evaluate
from .presence import Ghost, Presence
from .recover import Recovery, recoverable

__all__ = [
    "ALL",
    "KV305",
    "Deviation",
    "Ghost",
    "Presence",
    "Recovery",
    "evaluate",
    "expected_engine_hit",
    "explain_difference",
    "possible",
    "recoverable",
]
