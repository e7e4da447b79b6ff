"""The five recovery routes, one function each; they share nothing but the model and the pools.

Invariant: a route writes only the blocks it was asked to recover and never a page that somebody else reads. One route
serves one state: a route that served two would hide which of them was really recovered (finding KV511).
Called by the engine after the pages were bound.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from .config import WINDOWED, LayerKind
from .geometry import GroupName
from .pages import Pages
from .pools import Pools
from .request import Request
from .span import Past, advance, span_forward
from .weights import Weights


def map_in_place(pages: Pages, request: Request, found: Mapping[GroupName, Sequence[tuple[int, int]]]) -> None:
    """Route 1: put the pages that are there into the request's tables, each with one more holder.

    Args:
        pages: The allocator, its lock held since the check.
        request: Its tables are empty.
        found: For each group (page, generation at the check) of every block; page 0 where nothing is needed.
    """
    for name, row in found.items():
        # The table first, page by page: a share that fails leaves nothing held that no table names.
        table, generations = request.tables[name], request.generations[name]
        for page, generation in row:
            if page:
                pages.share(page)
            table.append(page)
            generations.append(generation)


def recompute_tail(
    weights: Weights, pools: Pools, request: Request, boundary: int, missing: Mapping[GroupName, Collection[int]]
) -> int:
    """Route 2: compute the compressor inputs of the last tokens again; returns tokens replayed.

    Entries that complete in the replayed span are known from the cache, so the span needs no tail before it. It needs
    the window before it: where the tables hold that, the span is as short as the tail, else it starts so much earlier
    that the missing window has washed out of every layer below (exact in both cases).
    """
    config = weights.config
    kinds = {GroupName.CSA_TAIL: LayerKind.CSA, GroupName.HCA_TAIL: LayerKind.HCA}
    top = max(i for i, kind in enumerate(config.layers) if kind in {kinds[name] for name in missing})
    first = min(block * pools.by_name[name].block for name, blocks in missing.items() for block in blocks)
    window = pools.by_name[GroupName.WINDOW]
    table = request.tables[GroupName.WINDOW]
    before = range(max(0, first - config.window + 1) // window.block, -(-first // window.block))
    start = first
    if not all(table[block] for block in before):
        below = sum(kind in WINDOWED for kind in config.layers[:top])
        start = max(0, first - below * (config.window - 1))
    pasts = []
    for layer in range(top + 1):
        past = pools.gather(layer, request.tables, boundary)
        low = max(0, start - config.window + 1)
        past.window = None
        if start == first and config.layers[layer] in WINDOWED:
            past.window = pools.read(GroupName.WINDOW, layer, table, low, start)
        past.tail = None
        pasts.append(past)
    _, fresh = span_forward(weights, request.tokens[start:boundary], start, pasts, checkpoint=pools.checkpoint)
    for name, blocks in missing.items():
        target = pools.only(request.tables[name], blocks)
        for layer, added in enumerate(fresh):
            if config.layers[layer] is kinds[name] and added.tail is not None:
                pools.write(name, layer, target, start, added.tail)
    return boundary - start


def realign_window(
    weights: Weights, pools: Pools, request: Request, boundary: int, missing: Collection[int], *, bounded: bool
) -> int:
    """Route 3: replay the last tokens to get their window rows back; returns tokens replayed.

    Exact: the replay starts (windowed layers - 1) * (W - 1) tokens before the first row that is needed; by then
    the unknown window before it has washed out. Bounded: it starts at that row, and the window of each query is cut off
    there; approximate by design.
    """
    config = weights.config
    layers = [i for i, kind in enumerate(config.layers) if kind in WINDOWED]
    first = min(missing) * pools.by_name[GroupName.WINDOW].block
    start = first if bounded else max(0, first - (len(layers) - 1) * (config.window - 1))
    pasts = []
    for layer in range(layers[-1] + 1):
        kind, past = config.layers[layer], Past()
        if kind is LayerKind.FULL:
            past.entries = pools.read(GroupName.FULL, layer, request.tables[GroupName.FULL], 0, boundary)
        elif kind is not LayerKind.WINDOW:
            table = request.tables[GroupName.COMPRESSED]
            past.entries = pools.read(GroupName.COMPRESSED, layer, table, 0, boundary)
            if kind is LayerKind.CSA:
                past.keys = pools.read(GroupName.INDEXER, layer, request.tables[GroupName.INDEXER], 0, boundary)
        pasts.append(past)
    _, fresh = span_forward(weights, request.tokens[start:boundary], start, pasts, checkpoint=pools.checkpoint)
    target = pools.only(request.tables[GroupName.WINDOW], missing)
    for layer in layers:
        rows = fresh[layer].window
        if rows is not None:
            pools.write(GroupName.WINDOW, layer, target, start, rows)
    return boundary - start


def rebuild_indexer(
    weights: Weights, pools: Pools, request: Request, boundary: int, missing: Collection[int], *, chunk: int
) -> int:
    """Route 4: compute indexer keys from the prompt again, through the lower layers only; returns tokens replayed.

    Keys cannot be had from compressed entries: they are made of hidden states. The main entries are known and stay.
    """
    config = weights.config
    top = max(i for i, kind in enumerate(config.layers) if kind is LayerKind.CSA)
    target = pools.only(request.tables[GroupName.INDEXER], missing)
    pasts = []
    for layer in range(top + 1):
        past = pools.gather(layer, request.tables, 0)
        if config.layers[layer] in {LayerKind.CSA, LayerKind.HCA}:
            table = request.tables[GroupName.COMPRESSED]
            past.entries = pools.read(GroupName.COMPRESSED, layer, table, 0, boundary)
        elif config.layers[layer] is LayerKind.FULL:
            past.entries = pools.read(GroupName.FULL, layer, request.tables[GroupName.FULL], 0, boundary)
        pasts.append(past)
    last = min(boundary, (max(missing) + 1) * pools.by_name[GroupName.INDEXER].block)
    for start in range(0, last, chunk):
        end = min(last, start + chunk)
        _, fresh = span_forward(weights, request.tokens[start:end], start, pasts, checkpoint=pools.checkpoint)
        for layer, (past, added) in enumerate(zip(pasts, fresh, strict=True)):
            if added.keys is not None and past.keys is not None:
                pools.write(GroupName.INDEXER, layer, target, past.keys.shape[0], added.keys)
        pasts = advance(config, pasts, fresh, end)
    return last


def transfer(
    pages: Pages, wanted: Sequence[tuple[int, bytes, int]], start: Callable[[Sequence[int]], int | None]
) -> int | None:
    """Route 5: reserve pages and start loading them from another tier; nothing is usable until the acknowledgement.

    Args:
        pages: The allocator.
        wanted: (group id, key, tokens of the prefix) of each page.
        start: Starts the load into the reserved pages; returns its number, or None if the tier refuses.

    Returns:
        Number of the transfer, or None when it could not be started; then nothing stays reserved.
    """
    reserved: list[int] = []
    with pages.lock:
        for group, _, _ in wanted:
            pool = pages.pool_for(group)
            if not pages.available(pool):
                break
            reserved += pages.take(group, pool, 1)
        number = start(reserved) if len(reserved) == len(wanted) else None
        if number is None:
            for page in reserved:
                pages.release(page)
        return number
