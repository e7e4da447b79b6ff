"""The ground truth: one whole sequence, no pages, no cache, no chunks.

Invariant: knows nothing of groups, pages or requests; every layer is written out over the whole sequence. Tests
compare everything the engine computes with this.
"""

from dataclasses import dataclass

import torch

from . import layers
from .config import WINDOWED, LayerKind, ModelConfig
from .weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseResult:
    """What a full computation of a sequence of n tokens gives."""

    hidden: torch.Tensor
    """[n, width] after the last layer, before the final norm."""
    logits: torch.Tensor
    """[n, vocabulary]."""


def _entries(config: ModelConfig, weights: LayerWeights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compress a whole sequence; returns entries [m, row] and, for CSA, index keys [m, index_width]."""
    ratio = config.csa_ratio if weights.kind is LayerKind.CSA else config.hca_ratio
    count = x.shape[0] // ratio
    raw = x @ weights.tail
    rows, keys = [], []
    for j in range(count):
        span = raw[j * ratio : (j + 1) * ratio]
        start = torch.tensor(j * ratio, device=x.device)
        if weights.kind is LayerKind.HCA:
            pooled = layers.compress(span.unflatten(-1, (2, config.row)), weights.bias)
        else:
            split = (4 * config.row, 4 * config.index_width)
            main, index = span.split(split, -1)
            before = raw[(j - 1) * ratio : j * ratio] if j else torch.zeros_like(span)
            main_before, index_before = before.split(split, -1)
            first = torch.tensor(j == 0, device=x.device)
            pooled = layers.compress_overlapping(
                main_before.unflatten(-1, (4, config.row)), main.unflatten(-1, (4, config.row)), weights.bias, first
            )
            shape = (4, config.index_width)
            keys.append(
                layers.compress_overlapping(
                    index_before.unflatten(-1, shape), index.unflatten(-1, shape), weights.index_bias, first
                )
            )
        rows.append(layers.finish_row(config, pooled, start))
    empty = x.new_zeros((0, config.row))
    entries = torch.stack(rows) if rows else empty
    if weights.kind is LayerKind.HCA:
        return entries, None
    return entries, torch.stack(keys) if keys else x.new_zeros((0, config.index_width))


def _attention(config: ModelConfig, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    count = x.shape[0]
    positions = torch.arange(count, device=x.device)
    distance = positions[:, None] - positions[None, :]
    q = layers.queries(config, weights, x, positions)
    if weights.kind is LayerKind.FULL:
        rows = layers.finish_row(config, x @ weights.full_row, positions)
        return layers.attend(config, q, rows, distance >= 0)
    rows = layers.finish_row(config, x @ weights.window_row, positions)
    mask = (distance >= 0) & (distance < config.window)
    if weights.kind is not LayerKind.WINDOW:
        entries, keys = _entries(config, weights, x)
        ratio = config.csa_ratio if weights.kind is LayerKind.CSA else config.hca_ratio
        visible = torch.arange(entries.shape[0], device=x.device)[None, :] < (positions // ratio)[:, None]
        if keys is not None:
            visible = layers.choose(config, layers.index_scores(config, weights, x, keys), visible)
        rows, mask = torch.cat((rows, entries)), torch.cat((mask, visible), -1)
    return layers.attend(config, q, rows, mask)


def _recurrence(config: ModelConfig, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    q, k, v, decay = layers.state_inputs(config, weights, x)
    state = x.new_zeros((config.state_width, config.state_width))
    outputs = []
    for i in range(x.shape[0]):
        state = layers.state_step(state, k[i], v[i], decay[i])
        outputs.append(layers.state_read(q[i], state))
    return torch.stack(outputs)


def dense_forward(weights: Weights, tokens: list[int]) -> DenseResult:
    """Compute a whole sequence of at least one token from nothing."""
    config = weights.config
    with torch.no_grad():
        hidden = weights.embedding[torch.tensor(tokens, device=weights.embedding.device)]
        for layer in weights.layers:
            x = layers.rms_norm(hidden, layer.attention_norm)
            mixed = _attention(config, layer, x) if layer.kind in WINDOWED | {LayerKind.FULL} else None
            hidden = hidden + (_recurrence(config, layer, x) if mixed is None else mixed) @ layer.output
            hidden = hidden + layers.mlp(layer, hidden)
        logits = layers.rms_norm(hidden, weights.final_norm) @ weights.head
    return DenseResult(hidden=hidden, logits=logits)
