"""One decode step of a batch over fixed buffers: the shape of the work never depends on the requests.

Invariant: reads and writes only the buffers it was given and the pools; rows beyond the live ones point at the null
page, so that whatever they compute lands nowhere. The same code is captured as a CUDA graph on a GPU and run as it is
on a CPU.
"""

from dataclasses import dataclass

import torch

from . import layers
from .config import LayerKind
from .geometry import GroupName
from .pools import Pools
from .weights import LayerWeights, Weights


@dataclass(slots=True, kw_only=True)
class DecodeInput:
    """Views of the first b rows of the static buffers."""

    tokens: torch.Tensor
    """[b] token to process."""
    positions: torch.Tensor
    """[b] its position."""
    tables: dict[GroupName, torch.Tensor]
    """[b, blocks] pool rows of each group; 0 is the null page."""


class _Step:
    """The layers of one decode step.

    Args:
        weights: The model.
        pools: Paged memory.
        batch: The rows.
    """

    def __init__(self, weights: Weights, pools: Pools, batch: DecodeInput) -> None:
        self.config = weights.config
        self.pools = pools
        self.batch = batch
        self.positions = batch.positions
        self.device = batch.positions.device

    def _pages(self, name: GroupName, blocks: torch.Tensor) -> torch.Tensor:
        """Return pool rows [b, ...] of block numbers [b, ...]."""
        table = self.batch.tables[name]
        return table.gather(1, blocks) if blocks.dim() > 1 else table.gather(1, blocks.unsqueeze(1)).squeeze(1)

    def _put(self, name: GroupName, layer: int, numbers: torch.Tensor, rows: torch.Tensor) -> None:
        """Write one row [b, width] each at row numbers [b] of the sequences."""
        part = self.pools.by_name[name].part(layer)
        pages = self._pages(name, numbers // part.rows)
        self.pools.view(name, layer)[pages, numbers % part.rows] = rows

    def _get(self, name: GroupName, layer: int, numbers: torch.Tensor) -> torch.Tensor:
        """Read rows [b, n, width] at row numbers [b, n]."""
        part = self.pools.by_name[name].part(layer)
        return self.pools.view(name, layer)[self._pages(name, numbers // part.rows), numbers % part.rows]

    def _all(self, name: GroupName, layer: int) -> torch.Tensor:
        """Read every row of the tables: [b, blocks * rows, width]."""
        return self.pools.view(name, layer)[self.batch.tables[name]].flatten(1, 2)

    def _entries(
        self, layer: int, weights: LayerWeights, x: torch.Tensor, ratio: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Complete the open group where the token ends one; return rows [b, m, row] and their mask [b, m]."""
        csa = weights.kind is LayerKind.CSA
        name = GroupName.CSA_TAIL if csa else GroupName.HCA_TAIL
        self._put(name, layer, self.positions, x @ weights.tail)
        number = self.positions // ratio
        first_token = (number - 1) * ratio if csa else number * ratio
        span = 2 * ratio if csa else ratio
        tokens = (first_token.unsqueeze(1) + torch.arange(span, device=self.device)).clamp(min=0)
        rows = self._get(name, layer, tokens)
        complete = (self.positions + 1) % ratio == 0
        if csa:
            pooled, keys = self._pool_csa(weights, rows, number)
            self._put_entry(GroupName.INDEXER, layer, number, complete, keys)
        else:
            pooled = layers.compress(rows.unflatten(-1, (2, self.config.row)), weights.bias)
        entry = layers.finish_row(self.config, pooled, number * ratio)
        self._put_entry(GroupName.COMPRESSED, layer, number, complete, entry)
        return self._choose(layer, weights, x, number)

    def _pool_csa(
        self, weights: LayerWeights, rows: torch.Tensor, number: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config = self.config
        main, index = rows.split((4 * config.row, 4 * config.index_width), -1)
        main, index = main.unflatten(-1, (4, config.row)), index.unflatten(-1, (4, config.index_width))
        ratio, first = config.csa_ratio, number == 0
        pooled = layers.compress_overlapping(main[:, :ratio], main[:, ratio:], weights.bias, first)
        keys = layers.compress_overlapping(index[:, :ratio], index[:, ratio:], weights.index_bias, first)
        return pooled, keys

    def _put_entry(
        self, name: GroupName, layer: int, number: torch.Tensor, complete: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """Write an entry where it is complete; elsewhere the write goes to the null page."""
        part = self.pools.by_name[name].part(layer)
        pages = self._pages(name, number // part.rows).masked_fill(~complete, 0)
        self.pools.view(name, layer)[pages, number % part.rows] = rows

    def _choose(
        self, layer: int, weights: LayerWeights, x: torch.Tensor, number: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entries that the tokens attend to; entry j is visible from the group after it on."""
        config, part = self.config, self.pools.by_name[GroupName.COMPRESSED].part(layer)
        count = self.batch.tables[GroupName.COMPRESSED].shape[1] * part.rows
        visible = torch.arange(count, device=self.device).unsqueeze(0) < number.unsqueeze(1)
        if weights.kind is LayerKind.HCA or count <= config.top_k:
            return self._all(GroupName.COMPRESSED, layer), visible
        keys = self._all(GroupName.INDEXER, layer)
        scores = layers.index_scores(config, weights, x, keys)
        chosen = layers.ranking(scores, visible)[:, : config.top_k]
        return self._get(GroupName.COMPRESSED, layer, chosen), visible.gather(1, chosen)

    def attention(self, layer: int, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        """Window, CSA, HCA and full layers."""
        config = self.config
        q = layers.queries(config, weights, x, self.positions)
        if weights.kind is LayerKind.FULL:
            row = layers.finish_row(config, x @ weights.full_row, self.positions)
            self._put(GroupName.FULL, layer, self.positions, row)
            rows = self._all(GroupName.FULL, layer)
            mask = torch.arange(rows.shape[1], device=self.device).unsqueeze(0) <= self.positions.unsqueeze(1)
            return layers.attend(config, q, rows, mask)
        row = layers.finish_row(config, x @ weights.window_row, self.positions)
        self._put(GroupName.WINDOW, layer, self.positions, row)
        offsets = torch.arange(1 - config.window, 1, device=self.device)
        tokens = self.positions.unsqueeze(1) + offsets
        rows, mask = self._get(GroupName.WINDOW, layer, tokens.clamp(min=0)), tokens >= 0
        if weights.kind is not LayerKind.WINDOW:
            ratio = config.csa_ratio if weights.kind is LayerKind.CSA else config.hca_ratio
            entries, visible = self._entries(layer, weights, x, ratio)
            rows, mask = torch.cat((rows, entries), 1), torch.cat((mask, visible), 1)
        return layers.attend(config, q, rows, mask)

    def recurrence(self, layer: int, weights: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        """Read the state of the token before, advance it, write it to the page of this token's block."""
        view, block = self.pools.view(GroupName.CHECKPOINT, layer), self.pools.checkpoint
        started = self.positions > 0
        before = self._pages(GroupName.CHECKPOINT, (self.positions - 1).clamp(min=0) // block)
        state = view[before.masked_fill(~started, 0)].masked_fill(~started[:, None, None], 0.0)
        q, k, v, decay = layers.state_inputs(self.config, weights, x)
        state = layers.state_step(state, k, v, decay)
        view[self._pages(GroupName.CHECKPOINT, self.positions // block)] = state
        return layers.state_read(q, state)


def decode_step(weights: Weights, pools: Pools, batch: DecodeInput) -> tuple[torch.Tensor, torch.Tensor]:
    """Process one token of each row.

    Returns:
        Hidden states [b, width] after the last layer, and logits [b, vocabulary].
    """
    step = _Step(weights, pools, batch)
    with torch.no_grad():
        hidden = weights.embedding[batch.tokens]
        for index, layer in enumerate(weights.layers):
            x = layers.rms_norm(hidden, layer.attention_norm)
            run = step.recurrence if layer.kind is LayerKind.RECURRENT else step.attention
            hidden = hidden + run(index, layer, x) @ layer.output
            hidden = hidden + layers.mlp(layer, hidden)
        return hidden, layers.rms_norm(hidden, weights.final_norm) @ weights.head
