"""Look-ups that the probe has the engine make, for comparison with the resume rules.

Invariant: asking has no effect on the engine, and ends when its time or its keys are used up; the answers belong to the
epoch of the table that is read at the same safe point. Engine's thread, at a safe point only.
"""

import time
from collections.abc import Iterable
from typing import Any, Final

from ..errors import TargetError
from ..model.evidence import EngineLookup
from ..model.states import KEY_BYTES

BUDGET_NS: Final = 5_000_000
"""After this long no further look-up begins: one of 32k tokens takes about 1.5 ms."""

MAX_KEYS: Final = 20_000
"""Keys in one answer: 16 bytes each."""


def sample_lookups(
    adapter: Any, names: Iterable[tuple[str, int]], *, epoch: int, most: int
) -> tuple[EngineLookup, ...]:
    """Ask the engine about requests that it knows.

    Args:
        adapter: The engine (``agent.engines.base.Adapter``).
        names: Request ids with their tokens.
        epoch: Epoch of the table at this safe point.
        most: At most so many look-ups.
    """
    until = time.monotonic_ns() + BUDGET_NS
    found: list[EngineLookup] = []
    keys = 0
    for name, tokens in names:
        if len(found) >= most or time.monotonic_ns() > until:
            break
        try:
            hashes = adapter.chain(name)
        except TargetError:
            continue
        keys += len(hashes)
        if keys > MAX_KEYS:
            break
        limit = max(tokens - 1, 0)
        answer = int(adapter.engine_hit(hashes, limit))
        chain = tuple(bytes(key[:KEY_BYTES]) for key in hashes)
        found.append(EngineLookup(request=name, chain=chain, limit=limit, answer=answer, epoch=epoch))
    return tuple(found)
