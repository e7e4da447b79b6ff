"""Forward of a span of tokens of one sequence, given what each layer remembers of the tokens before it.

Invariant: a function of its arguments that touches no page. Prefill gathers the past from pages, calls this and
scatters what is fresh; the recovery routes call it with whatever past is still there. Decode has its own batched
path.
"""

from dataclasses import dataclass, field

import torch

from . import layers
from .config import LayerKind, ModelConfig
from .weights import LayerWeights, Weights


@dataclass(slots=True, kw_only=True)
class Past:
    """What one layer remembers of a sequence. A part that its kind does not have stays None."""

    window: torch.Tensor | None = None
    """[w, row]: window rows of the tokens [start - w, start); w may be short of W - 1 (bounded replay)."""
    entries: torch.Tensor | None = None
    """[K, row]: compressed entries, or rows of full attention, from the first on. K may reach beyond the start."""
    keys: torch.Tensor | None = None
    """[K', index_width]: indexer keys from the first on."""
    tail: torch.Tensor | None = None
    """[r, tail width]: compressor inputs of the tokens [start - r, start)."""
    state: torch.Tensor | None = None
    """[key, value]: recurrent state after the token before the start; None is the empty state."""


@dataclass(slots=True, kw_only=True)
class Fresh:
    """What a span of n tokens adds to the memory of one layer."""

    window: torch.Tensor | None = None
    """[n, row]."""
    entries: torch.Tensor | None = None
    """Entries from ``Past.entries`` on that complete within the span."""
    keys: torch.Tensor | None = None
    """Indexer keys from ``Past.keys`` on that complete within the span."""
    tail: torch.Tensor | None = None
    """[n, tail width]."""
    states: dict[int, torch.Tensor] = field(default_factory=dict)
    """Recurrent state after so many tokens of the sequence: at each checkpoint, and at the end."""


def _known(part: torch.Tensor | None) -> torch.Tensor:
    """Return a part of the past that this kind of layer must have."""
    if part is None:
        raise ValueError("the past of this layer lacks a part that its kind has")
    return part


def _groups(past_tail: torch.Tensor | None, tail: torch.Tensor, start: int, low: int, high: int) -> torch.Tensor:
    """Return the compressor inputs of the tokens [low, high), from the past's tail and the span's own."""
    if low >= start:
        return tail[low - start : high - start]
    if past_tail is None or past_tail.shape[0] < start - low:
        have = 0 if past_tail is None else past_tail.shape[0]
        raise ValueError(f"tail covers {have} tokens before {start}, the compressor needs {start - low}")
    return torch.cat((past_tail[past_tail.shape[0] - (start - low) :], tail[: high - start]))


def _csa_entries(
    config: ModelConfig, weights: LayerWeights, rows: torch.Tensor, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compress groups [first, first + count); ``rows`` starts one group earlier (or at 0 for the first group)."""
    if first == 0:
        rows = torch.cat((rows.new_zeros((config.csa_ratio, rows.shape[1])), rows))
    grouped = rows.unflatten(0, (count + 1, config.csa_ratio))
    main, index = grouped.split((4 * config.row, 4 * config.index_width), -1)
    main, index = main.unflatten(-1, (4, config.row)), index.unflatten(-1, (4, config.index_width))
    numbers = torch.arange(first, first + count, device=rows.device)
    pooled = layers.compress_overlapping(main[:-1], main[1:], weights.bias, numbers == 0)
    keys = layers.compress_overlapping(index[:-1], index[1:], weights.index_bias, numbers == 0)
    return layers.finish_row(config, pooled, numbers * config.csa_ratio), keys


def _complete_csa(
    config: ModelConfig, weights: LayerWeights, past: Past, fresh: Fresh, start: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all entries and keys up to the end; what was not known before goes into ``fresh``."""
    old, old_keys = _known(past.entries), _known(past.keys)
    ratio, total = config.csa_ratio, end // config.csa_ratio
    known, known_keys = old.shape[0], old_keys.shape[0]
    first = min(known, known_keys)
    if first >= total:
        fresh.entries, fresh.keys = old[:0], old_keys[:0]
        return old[:total], old_keys[:total]
    rows = _groups(past.tail, _known(fresh.tail), start, max(0, (first - 1) * ratio), total * ratio)
    entries, keys = _csa_entries(config, weights, rows, first, total - first)
    fresh.entries, fresh.keys = entries[known - first :], keys[known_keys - first :]
    return torch.cat((old[:total], fresh.entries)), torch.cat((old_keys[:total], fresh.keys))


def _complete_hca(
    config: ModelConfig, weights: LayerWeights, past: Past, fresh: Fresh, start: int, end: int
) -> torch.Tensor:
    old = _known(past.entries)
    ratio, total, known = config.hca_ratio, end // config.hca_ratio, old.shape[0]
    if known >= total:
        fresh.entries = old[:0]
        return old[:total]
    rows = _groups(past.tail, _known(fresh.tail), start, known * ratio, total * ratio)
    grouped = rows.unflatten(0, (total - known, ratio)).unflatten(-1, (2, config.row))
    numbers = torch.arange(known, total, device=rows.device)
    fresh.entries = layers.finish_row(config, layers.compress(grouped, weights.bias), numbers * ratio)
    return torch.cat((old, fresh.entries))


def _windowed(
    config: ModelConfig, weights: LayerWeights, past: Past, x: torch.Tensor, start: int
) -> tuple[torch.Tensor, Fresh]:
    """Window, CSA and HCA layers: one softmax over the window branch and the chosen entries."""
    end = start + x.shape[0]
    positions = torch.arange(start, end, device=x.device)
    q = layers.queries(config, weights, x, positions)
    window = layers.finish_row(config, x @ weights.window_row, positions)
    fresh = Fresh(window=window)
    rows = window if past.window is None else torch.cat((past.window, window))
    distance = positions[:, None] - torch.arange(end - rows.shape[0], end, device=x.device)[None, :]
    mask = (distance >= 0) & (distance < config.window)
    if weights.kind is not LayerKind.WINDOW:
        fresh.tail = x @ weights.tail
        if weights.kind is LayerKind.CSA:
            entries, keys = _complete_csa(config, weights, past, fresh, start, end)
            visible = _visible(positions, entries.shape[0], config.csa_ratio)
            visible = layers.choose(config, layers.index_scores(config, weights, x, keys), visible)
        else:
            entries = _complete_hca(config, weights, past, fresh, start, end)
            visible = _visible(positions, entries.shape[0], config.hca_ratio)
        rows, mask = torch.cat((rows, entries)), torch.cat((mask, visible), -1)
    return layers.attend(config, q, rows, mask), fresh


def _visible(positions: torch.Tensor, entries: int, ratio: int) -> torch.Tensor:
    """Entry j is visible from the group after it on."""
    return torch.arange(entries, device=positions.device)[None, :] < (positions // ratio)[:, None]


def _full(
    config: ModelConfig, weights: LayerWeights, past: Past, x: torch.Tensor, start: int
) -> tuple[torch.Tensor, Fresh]:
    old, end = _known(past.entries), start + x.shape[0]
    positions = torch.arange(start, end, device=x.device)
    known = min(old.shape[0], end)
    added = layers.finish_row(config, x @ weights.full_row, positions)[max(0, known - start) :]
    rows = torch.cat((old[:known], added))
    mask = torch.arange(end, device=x.device)[None, :] <= positions[:, None]
    return layers.attend(config, layers.queries(config, weights, x, positions), rows, mask), Fresh(entries=added)


def _recurrent(
    config: ModelConfig, weights: LayerWeights, past: Past, x: torch.Tensor, start: int, checkpoint: int
) -> tuple[torch.Tensor, Fresh]:
    q, k, v, decay = layers.state_inputs(config, weights, x)
    state = x.new_zeros((config.state_width, config.state_width)) if past.state is None else past.state
    fresh, states, end = Fresh(), [], start + x.shape[0]
    added = k.unsqueeze(-1) * v.unsqueeze(-2)
    kept = decay.unsqueeze(-1)
    for i in range(x.shape[0]):
        state = state * kept[i] + added[i]
        states.append(state)
        done = start + i + 1
        if done % checkpoint == 0 or done == end:
            fresh.states[done] = state
    return layers.state_read(q, torch.stack(states)), fresh


def span_forward(
    weights: Weights, tokens: list[int], start: int, pasts: list[Past], *, checkpoint: int
) -> tuple[torch.Tensor, list[Fresh]]:
    """Compute the tokens [start, start + n) of one sequence through as many layers as pasts are given.

    Args:
        weights: The model.
        tokens: The n tokens of the span, at least one.
        start: Position of the first one.
        pasts: Memory of the first ``len(pasts)`` layers; fewer than the model has stops the computation there.
        checkpoint: Recurrent states are kept at multiples of this many tokens, and at the end.

    Returns:
        Hidden states [n, width] after the last layer computed, and what each layer adds to its memory.
    """
    config, fresh = weights.config, []
    with torch.no_grad():
        hidden = weights.embedding[torch.tensor(tokens, device=weights.embedding.device)]
        for layer, past in zip(weights.layers, pasts, strict=False):
            x = layers.rms_norm(hidden, layer.attention_norm)
            if layer.kind is LayerKind.RECURRENT:
                mixed, added = _recurrent(config, layer, past, x, start, checkpoint)
            elif layer.kind is LayerKind.FULL:
                mixed, added = _full(config, layer, past, x, start)
            else:
                mixed, added = _windowed(config, layer, past, x, start)
            hidden = hidden + mixed @ layer.output
            hidden = hidden + layers.mlp(layer, hidden)
            fresh.append(added)
    return hidden, fresh


def logits_of(weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
    """Return logits [n, vocabulary] of hidden states [n, width] after the last layer."""
    with torch.no_grad():
        return layers.rms_norm(hidden, weights.final_norm) @ weights.head


def _keep(past: torch.Tensor | None, fresh: torch.Tensor | None, last: int) -> torch.Tensor | None:
    """Return the last rows of a past and what followed it."""
    if fresh is None:
        return past
    joined = fresh if past is None else torch.cat((past, fresh))
    return joined[max(0, joined.shape[0] - last) :]


def advance(config: ModelConfig, pasts: list[Past], fresh: list[Fresh], end: int) -> list[Past]:
    """Return the memory of each layer after a span that ended at ``end``, for a replay without pages."""
    after = []
    for past, added in zip(pasts, fresh, strict=True):
        after.append(
            Past(
                window=_keep(past.window, added.window, config.window - 1),
                entries=None if past.entries is None else _append(past.entries, added.entries),
                keys=None if past.keys is None else _append(past.keys, added.keys),
                tail=_keep(past.tail, added.tail, max(2 * config.csa_ratio, config.hca_ratio) + config.csa_ratio),
                state=added.states.get(end, past.state),
            )
        )
    return after


def _append(past: torch.Tensor, fresh: torch.Tensor | None) -> torch.Tensor:
    return past if fresh is None else torch.cat((past, fresh))
