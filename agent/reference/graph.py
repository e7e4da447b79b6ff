"""Static decode buffers, and the captured steps that run over them.

Invariant: after construction the buffers are only ever copied into; their addresses, and those of the pools and
weights, are recorded when a step is captured and compared before each replay. Rows without a request hold the null
page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .config import EngineConfig
from .decode import DecodeInput, decode_step
from .faults import Fault, Faults
from .geometry import GroupName
from .pools import Pools
from .weights import Weights


class AddressMovedError(RuntimeError):
    """A tensor that a captured step reads or writes has another address than at capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request's row of a decode batch."""

    token: int
    position: int
    tables: Mapping[GroupName, Sequence[int]]
    """Global page ids of each group."""


@dataclass(slots=True, kw_only=True)
class _Captured:
    addresses: dict[str, int]
    run: Callable[[], None]


def _bucket(count: int, most: int) -> int:
    """Return the next power of two, at most ``most``."""
    size = 1
    while size < count:
        size *= 2
    return min(size, most)


class StaticDecode:
    """Fixed buffers for up to ``max_batch`` rows, and one captured step for each (rows, blocks) bucket.

    Args:
        weights: The model.
        pools: Paged memory.
        engine: Sizes.
        faults: Faults to act out.
    """

    def __init__(self, weights: Weights, pools: Pools, engine: EngineConfig, faults: Faults) -> None:
        self._weights, self._pools, self._faults = weights, pools, faults
        self._rows = engine.max_batch
        device = engine.device
        self.cuda = device.startswith("cuda")
        # Whole main blocks: an open group of compressor inputs is read up to its end, and masked.
        self._most = -(-engine.max_tokens // pools.checkpoint)
        self._blocks = {spec.name: spec.blocks(self._most * pools.checkpoint) for spec in pools.specs}
        self.tokens = torch.zeros(self._rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(self._rows, dtype=torch.int64, device=device)
        self.tables = {
            name: torch.zeros(self._rows, blocks, dtype=torch.int64, device=device)
            for name, blocks in self._blocks.items()
        }
        self.hidden = torch.zeros(self._rows, weights.config.width, dtype=weights.head.dtype, device=device)
        self.logits = torch.zeros(self._rows, weights.config.vocabulary, dtype=weights.head.dtype, device=device)
        self._captured: dict[tuple[int, int], _Captured] = {}
        self.live = 0
        """Rows of the last batch that belong to a request."""
        self.padded = 0
        """Rows of the last batch with padding."""
        self.dirty: tuple[int, list[list[int]]] | None = None
        """Live rows and all rows of the last batch whose padding held pages."""

    def addresses(self) -> dict[str, int]:
        """Return the address of everything a captured step touches."""
        named = {
            "tokens": self.tokens,
            "positions": self.positions,
            "hidden": self.hidden,
            "logits": self.logits,
            **{f"table.{name}": table for name, table in self.tables.items()},
            **{f"pool.{state}": tensor for state, tensor in self._pools.tensors.items()},
            **{f"weights.{name}": tensor for name, tensor in self._weights.tensors()},
        }
        return {name: tensor.data_ptr() for name, tensor in named.items()}

    @property
    def captures(self) -> Mapping[tuple[int, int], Mapping[str, int]]:
        """Addresses recorded for each captured (rows, main blocks) bucket."""
        return {bucket: captured.addresses for bucket, captured in self._captured.items()}

    def fill(self, rows: Sequence[Row]) -> tuple[int, int]:
        """Copy requests into the buffers and point every other row at the null page; returns the bucket."""
        count = len(rows)
        padded = _bucket(count, self._rows)
        longest = max(row.position for row in rows) + 1
        base = {spec.name: self._pools.pages.base[spec.state] for spec in self._pools.specs}
        self.tokens[:count].copy_(torch.tensor([row.token for row in rows]))
        self.positions[:count].copy_(torch.tensor([row.position for row in rows]))
        dirty = self._faults.take(Fault.DIRTY_PADDING)
        self.tokens[count:].zero_()
        self.positions[count:].zero_()
        blocks = _bucket(-(-longest // self._pools.checkpoint), self._most)
        for name, table in self.tables.items():
            width = max(len(row.tables[name]) for row in rows)
            local = [
                [page - base[name] if page else 0 for page in row.tables[name]] + [0] * (width - len(row.tables[name]))
                for row in rows
            ]
            table[:count, :width].copy_(torch.tensor(local))
            table[:count, width:].zero_()
            if not dirty:  # the fault leaves the page ids of earlier requests there
                table[count:].zero_()
        self.live, self.padded = count, padded
        if padded > count and self.dirty_rows():
            self.dirty = (count, self.rows())
        return padded, blocks

    def rows(self) -> list[list[int]]:
        """Return the global page ids that each row of the last batch holds."""
        base = self._pools.pages.base
        found: list[list[int]] = [[] for _ in range(self.padded)]
        for spec in self._pools.specs:
            for row, local in zip(found, self.tables[spec.name][: self.padded].tolist(), strict=True):
                row += [page + base[spec.state] for page in local if page]
        return found

    def dirty_rows(self) -> list[int]:
        """Return the padding rows of the last batch that hold a page other than the null page."""
        return [
            row
            for row in range(self.live, self.padded)
            if any(bool(table[row].any()) for table in self.tables.values())
        ]

    def _input(self, rows: int, blocks: int) -> DecodeInput:
        tables = {}
        for name, table in self.tables.items():
            width = blocks * self._pools.checkpoint // self._pools.by_name[name].block
            tables[name] = table[:rows, :width]
        return DecodeInput(tokens=self.tokens[:rows], positions=self.positions[:rows], tables=tables)

    def _capture(self, rows: int, blocks: int) -> _Captured:
        view = self._input(rows, blocks)

        def step() -> None:
            hidden, logits = decode_step(self._weights, self._pools, view)
            self.hidden[:rows].copy_(hidden)
            self.logits[:rows].copy_(logits)

        if not self.cuda:
            return _Captured(addresses=self.addresses(), run=step)
        # Capture records work without doing it, but the warm-up before it does the work. That is harmless: a decode
        # step writes the same rows again and the recurrent state of a token goes to another page or is read before it
        # is written, except where both lie in one page; so the warm-up runs over rows of the null page.
        saved = {name: table.clone() for name, table in view.tables.items()}
        for table in view.tables.values():
            table.zero_()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for name, table in view.tables.items():
            table.copy_(saved[name])
        return _Captured(addresses=self.addresses(), run=graph.replay)

    def run(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Process one token of each row; returns hidden states and logits of the live rows, as copies.

        Raises:
            AddressMovedError: A tensor moved since the first step was captured.
        """
        bucket = self.fill(rows)
        captured = self._captured.get(bucket)
        if captured is None:
            captured = self._captured[bucket] = self._capture(*bucket)
        now, first = self.addresses(), next(iter(self._captured.values())).addresses
        moved = [name for name, address in first.items() if now.get(name) != address]
        if moved:
            raise AddressMovedError(f"moved since capture: {', '.join(sorted(moved))}")
        captured.run()
        return self.hidden[: len(rows)].clone(), self.logits[: len(rows)].clone()
