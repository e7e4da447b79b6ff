"""What the recovery routes won: tokens that were not computed, by the routes without which they would have been.

Invariant: each token of an admission is counted once. What was there is mapped or was brought; what lies beyond was won
by all the other routes of the plan together, none of which would have brought it alone. Counted at each admission.
"""

from typing import Any

MAPPED, BROUGHT = "map_in_place", "transfer"
DEGRADED = "recompute_layers"
"""The second step of the chain, no route of its own: the layers above what is missing were reused."""


def gains(record: Any, brought: int) -> dict[str, int]:
    """Return the tokens that each route, or several together, won for one admission.

    Args:
        record: Of the look-up that was admitted.
        brought: Tokens that another tier brought for it.
    """
    there = min(record.usable, record.reused)
    others = [str(route) for route in record.routes if str(route) not in {MAPPED, BROUGHT}]
    names = [*others, DEGRADED] if record.degraded else others
    won = {MAPPED: there - brought, BROUGHT: brought, "+".join(names): record.reused - there}
    return {name: tokens for name, tokens in won.items() if name and tokens > 0}
