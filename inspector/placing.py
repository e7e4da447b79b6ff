"""Where pages of one prefix lie that no link of the table leads to.

Invariant: what is placed is proven by a list that the engine made of this very prefix: the keys of a request that was
looked up, or the table of a request that holds its end. Used by the prefix views; never to choose what is taken out.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from agent.model.decision import Decision
from agent.model.snapshot import Consistency, Snapshot
from agent.model.states import Tokens

from .columns import I64
from .nodes import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The chain of one prefix with everything that could be placed on it."""

    chain: dict[Tokens, int]
    """Node by token position."""
    known: Tokens = 0
    """Up to here every key is known: what is not in the chain is not cached."""
    decision: Decision | None = None
    """The latest decision about it, as far as it is known."""


def place(snapshot: Snapshot, nodes: Nodes, chain: Mapping[Tokens, int], tables: Sequence[I64]) -> Placed:
    """Return a chain with the nodes that links of the table do not lead to.

    Args:
        snapshot: Its decisions are asked.
        nodes: The graph of its table.
        chain: The nodes that links lead to, by token position.
        tables: What :func:`held` gives.
    """
    unit = nodes.geometry.hash_unit
    ends = [at for at in sorted(chain) if at % unit == 0]
    found, known, by = dict(chain), 0, None
    for item in snapshot.decisions or ():
        shared = _shared(nodes, chain, ends, item.chain or ())
        if shared and shared >= known:
            known, by = shared, item
    if by is not None:
        keys = (by.chain or ())[: known // unit]
        listed = {at * unit: nodes.find(key) for at, key in enumerate(keys, start=1)}
        found.update({at: node for at, node in listed.items() if node is not None})
    end = max(chain)
    if known < end:
        holding = [table for table in tables if bool((table == chain[end]).any())]
        # A page that two requests without a common prefix hold, which is a fault, places nothing.
        common = reduce(np.intersect1d, holding) if holding else np.zeros(0, np.int64)
        before = {int(nodes.tokens[node]): int(node) for node in common if nodes.tokens[node] < end}
        found = before | found
    return Placed(chain=found, known=known, decision=by)


def held(snapshot: Snapshot, nodes: Nodes) -> tuple[I64, ...]:
    """Return the nodes that each request holds: one request is one prefix. Nothing of a torn capture."""
    if snapshot.capture.consistency is Consistency.TORN:
        return ()
    of_page = nodes.of_page
    found = []
    for request in snapshot.requests or ():
        pages = np.array([page for row in request.tables or () for page in row], np.int64)
        held_nodes = of_page[pages[(pages >= 0) & (pages < len(of_page))]]
        found.append(np.unique(held_nodes[held_nodes >= 0]).astype(np.int64))
    return tuple(found)


def _shared(nodes: Nodes, chain: Mapping[Tokens, int], ends: Sequence[Tokens], keys: Sequence[bytes]) -> Tokens:
    """Return the longest of these positions at which ``keys`` has the key of the chain.

    Keys are chained: where one agrees, all before it do, so that halving finds the longest.
    """
    unit = nodes.geometry.hash_unit

    def differs(at: Tokens) -> int:
        return int(at // unit > len(keys) or keys[at // unit - 1][:16] != nodes.key[chain[at]].tobytes())

    place_of = bisect_left(ends, 1, key=differs)
    return ends[place_of - 1] if place_of else 0
