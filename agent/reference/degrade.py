"""The middle of the degradation chain: keep the layers that are good, recompute the others from the first token on.

Invariant: exact, because nothing but the prompt and complete states of good groups goes into it; writes only the
blocks that were missing. Called by the engine after the pages were bound.
"""

from collections.abc import Collection, Mapping

from .config import LayerKind
from .geometry import GroupName
from .pools import Pools
from .request import Request
from .span import Fresh, Past, advance, span_forward
from .weights import Weights


def top_layer(pools: Pools, missing: Collection[GroupName]) -> int:
    """Return the highest layer that a missing group belongs to."""
    return max(part.layer for name in missing for part in pools.by_name[name].parts)


def _start(pools: Pools, request: Request, boundary: int, missing: Collection[GroupName], layer: int) -> Past:
    """Return what is known of one layer: full histories of groups that are complete, nothing else."""
    kind, past = pools.model.layers[layer], pools.gather(layer, request.tables, 0)
    name = GroupName.FULL if kind is LayerKind.FULL else GroupName.COMPRESSED
    if past.entries is not None and name not in missing:
        past.entries = pools.read(name, layer, request.tables[name], 0, boundary)
    if past.keys is not None and GroupName.INDEXER not in missing:
        past.keys = pools.read(GroupName.INDEXER, layer, request.tables[GroupName.INDEXER], 0, boundary)
    return past


def _drop_written(fresh: Fresh, missing: Collection[GroupName], kind: LayerKind) -> Fresh:
    """Leave out what belongs to groups that are complete."""
    tail = GroupName.CSA_TAIL if kind is LayerKind.CSA else GroupName.HCA_TAIL
    main = GroupName.FULL if kind is LayerKind.FULL else GroupName.COMPRESSED
    return Fresh(
        window=fresh.window if GroupName.WINDOW in missing else None,
        tail=fresh.tail if tail in missing else None,
        entries=fresh.entries if main in missing else None,
        keys=fresh.keys if GroupName.INDEXER in missing else None,
        states=fresh.states if GroupName.CHECKPOINT in missing else {},
    )


def recompute_layers(
    weights: Weights,
    pools: Pools,
    request: Request,
    boundary: int,
    missing: Mapping[GroupName, Collection[int]],
    *,
    chunk: int,
) -> int:
    """Recompute the layers up to the highest one with a missing group, from 0 on; returns tokens replayed."""
    config, top = weights.config, top_layer(pools, missing)
    targets = {name: pools.only(table, missing.get(name, ())) for name, table in request.tables.items()}
    pasts = [_start(pools, request, boundary, missing, layer) for layer in range(top + 1)]
    for start in range(0, boundary, chunk):
        end = min(boundary, start + chunk)
        _, fresh = span_forward(weights, request.tokens[start:end], start, pasts, checkpoint=pools.checkpoint)
        for layer, (past, added) in enumerate(zip(pasts, fresh, strict=True)):
            pools.scatter(layer, targets, start, past, _drop_written(added, missing, config.layers[layer]))
        pasts = advance(config, pasts, fresh, end)
    return boundary
