"""From when on a gate speaks of a loss: the thresholds, each once.

Invariant: the code that compares and the text that explains read the same number. Used by the gates and the catalogue.
"""

MIN_PROMPTS = 20
"""KV209: decisions before the usual prompt is spoken of."""

MIN_DECISIONS = 20
"""KV309: decisions with a hit somewhere before a group is said to collapse."""

STRANDED_RATIO = 0.5
"""KV310: stranded share of the full-history pages that is worth a finding."""

MIN_PAGES = 64
"""KV310: cached pages of full history before a share of them is spoken of."""
