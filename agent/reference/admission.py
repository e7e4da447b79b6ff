"""How many pages a request needs: the one formula, used when the pools are sized and when a request is admitted.

Invariant: monotone in the tokens, and never less than what a request holds at once while it is computed in chunks. A
window is charged once, whether it was reused or not.
"""

from collections.abc import Mapping, Sequence

from ..model.states import State
from .config import EngineConfig
from .geometry import GroupSpec


def pages_needed(specs: Sequence[GroupSpec], tokens: int, chunk: int) -> dict[State, int]:
    """Return the most pages of each pool that a request of so many tokens holds at once.

    Args:
        specs: The groups.
        tokens: Prompt and outputs.
        chunk: Most tokens computed in one step.
    """
    need: dict[State, int] = {}
    for spec in specs:
        everything = spec.blocks(tokens)
        if not spec.needs_all:
            # A step over [s, s + chunk) holds the blocks of [s - past, s + chunk); both ends may cut a block.
            past = 1 if spec.past is None else spec.past
            everything = min(everything, (past + chunk - 2) // spec.block + 2)
        need[spec.state] = need.get(spec.state, 0) + everything
    return need


def smallest_pools(specs: Sequence[GroupSpec], engine: EngineConfig) -> dict[State, int]:
    """Return pool sizes with which the longest request can just run alone."""
    return pages_needed(specs, engine.max_tokens, engine.chunk)


def too_large(need: Mapping[State, int], sizes: Mapping[State, int]) -> list[State]:
    """Return the pools in which a need can never be met."""
    return [state for state, pages in need.items() if pages > sizes.get(state, 0)]


def fits(need: Mapping[State, int], available: Mapping[State, int], mapped: Mapping[State, int]) -> bool:
    """Tell whether a need can be met now.

    Args:
        need: From ``pages_needed``.
        available: Free and evictable pages of each pool.
        mapped: Pages the request would reuse that other requests hold: they are needed, and take nothing away.
    """
    return all(pages - mapped.get(state, 0) <= available[state] for state, pages in need.items())


def over_cap(cached: int, size: int, share: float) -> int:
    """Return by how many pages idle cache exceeds its share of a pool while requests wait."""
    return max(0, cached - int(size * share))
