"""The paged pools: one tensor for each state, and the reading and writing of rows by page table.

Invariant: row 0 of a pool is the null page; a page id is global and ``id - base`` is its row. Padding inside a page
is never read. Used by the engine, the recovery routes and the tiers.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from .config import EngineConfig, LayerKind, ModelConfig
from .geometry import GroupName, GroupSpec, Part, group_specs
from .pages import Pages
from .span import Fresh, Past
from .weights import dtype_of

if TYPE_CHECKING:
    from ..model.states import State

_POISON = 1.0e4


class Pools:
    """Tensors of the device pools, and typed views of their pages.

    Args:
        model: Shapes.
        engine: Sizes and alignment.
        pages: The allocator; gives bases and sizes.
    """

    def __init__(self, model: ModelConfig, engine: EngineConfig, pages: Pages) -> None:
        self.model = model
        self.pages = pages
        self.specs = group_specs(model, engine)
        self.by_name: dict[GroupName, GroupSpec] = {spec.name: spec for spec in self.specs}
        self.checkpoint = engine.blocks.main
        pages.group_pools = {spec.id: spec.state for spec in self.specs}
        self.tensors: dict[State, torch.Tensor] = {}
        for state, size in pages.sizes.items():
            elements = max((spec.elements for spec in self.specs if spec.state is state), default=0)
            if elements:
                self.tensors[state] = torch.zeros(size + 1, elements, dtype=dtype_of(model), device=engine.device)
        self._views = {(spec.name, part.layer): self._view(spec, part) for spec in self.specs for part in spec.parts}

    def _view(self, spec: GroupSpec, part: Part) -> torch.Tensor:
        flat = self.tensors[spec.state].narrow(1, part.offset, part.rows * part.stride)
        return flat.unflatten(1, (part.rows, part.stride))[..., : part.width]

    def view(self, name: GroupName, layer: int) -> torch.Tensor:
        """Return [pages, rows, width]: all pages of a group's pool as rows of one layer."""
        return self._views[name, layer]

    def rows_of(self, name: GroupName, table: Sequence[int]) -> torch.Tensor:
        """Return the pool rows of global page ids (0 stays 0)."""
        spec = self.by_name[name]
        base = self.pages.base[spec.state]
        return torch.tensor([page - base if page else 0 for page in table], device=self.tensors[spec.state].device)

    def content(self, page: int) -> torch.Tensor:
        """Return a copy of one page as the elements of its group, without what the pool pads it to."""
        spec = self.specs[self.pages.group[page]]
        return self.tensors[spec.state][page - self.pages.base[spec.state], : spec.elements].clone()

    def restore(self, page: int, content: torch.Tensor) -> None:
        """Overwrite one page with content of its group."""
        spec = self.specs[self.pages.group[page]]
        self.tensors[spec.state][page - self.pages.base[spec.state], : spec.elements] = content

    def poison(self, page: int) -> None:
        """Overwrite a page with a value that no computation gives."""
        pool = self.pages.pool_of[page]
        self.tensors[pool][page - self.pages.base[pool]] = _POISON

    # --- rows of one request -----------------------------------------------------------------------------------

    def read(self, name: GroupName, layer: int, table: Sequence[int], low: int, high: int) -> torch.Tensor:
        """Return the complete rows of the tokens [low, high) of a request.

        Args:
            name: Group.
            layer: Layer of the model.
            table: The request's page ids of that group.
            low: First token; a multiple of the tokens behind a row.
            high: Token after the last; an incomplete row at the end is left out.
        """
        spec = self.by_name[name]
        part = spec.part(layer)
        first, last = low // part.tokens, high // part.tokens
        view = self._views[name, layer]
        if last <= first:
            return view.new_zeros((0, part.width))
        block = first // part.rows
        pages = self.rows_of(name, table[block : -(-last // part.rows)])
        start = first - block * part.rows
        return view[pages].flatten(0, 1)[start : start + last - first]

    def write(self, name: GroupName, layer: int, table: Sequence[int], row: int, rows: torch.Tensor) -> None:
        """Write rows of one layer from row number ``row`` of the sequence on; rows of null pages go nowhere."""
        count = rows.shape[0]
        if not count:
            return
        part = self.by_name[name].part(layer)
        block = row // part.rows
        numbers = torch.arange(row, row + count, device=rows.device)
        pages = self.rows_of(name, table[block : -(-(row + count) // part.rows)])
        self._views[name, layer][pages[numbers // part.rows - block], numbers % part.rows] = rows

    @staticmethod
    def only(table: Sequence[int], blocks: Collection[int]) -> list[int]:
        """Return a table that names only these blocks: writes to all others go to the null page."""
        return [page if block in blocks else 0 for block, page in enumerate(table)]

    def read_state(self, layer: int, table: Sequence[int], tokens: int) -> torch.Tensor | None:
        """Return the recurrent state after ``tokens`` tokens; None before the first."""
        if tokens == 0:
            return None
        block = (tokens - 1) // self.checkpoint
        page = self.rows_of(GroupName.CHECKPOINT, table[block : block + 1])
        return self._views[GroupName.CHECKPOINT, layer][page[0]]

    def write_state(self, layer: int, table: Sequence[int], tokens: int, state: torch.Tensor) -> None:
        """Write the recurrent state after ``tokens`` tokens into the page of their last block."""
        block = (tokens - 1) // self.checkpoint
        page = self.rows_of(GroupName.CHECKPOINT, table[block : block + 1])
        self._views[GroupName.CHECKPOINT, layer][page[0]] = state

    # --- memory of a layer -------------------------------------------------------------------------------------

    def gather(self, layer: int, tables: Mapping[GroupName, Sequence[int]], start: int) -> Past:
        """Read what one layer remembers before position ``start`` from a request's pages."""
        kind, model, past = self.model.layers[layer], self.model, Past()
        if kind is LayerKind.RECURRENT:
            past.state = self.read_state(layer, tables[GroupName.CHECKPOINT], start)
            return past
        if kind is LayerKind.FULL:
            past.entries = self.read(GroupName.FULL, layer, tables[GroupName.FULL], 0, start)
            return past
        low = max(0, start - model.window + 1)
        past.window = self.read(GroupName.WINDOW, layer, tables[GroupName.WINDOW], low, start)
        if kind is LayerKind.CSA:
            past.entries = self.read(GroupName.COMPRESSED, layer, tables[GroupName.COMPRESSED], 0, start)
            past.keys = self.read(GroupName.INDEXER, layer, tables[GroupName.INDEXER], 0, start)
            low = max(0, (start // model.csa_ratio - 1) * model.csa_ratio)
            past.tail = self.read(GroupName.CSA_TAIL, layer, tables[GroupName.CSA_TAIL], low, start)
        elif kind is LayerKind.HCA:
            past.entries = self.read(GroupName.COMPRESSED, layer, tables[GroupName.COMPRESSED], 0, start)
            low = start // model.hca_ratio * model.hca_ratio
            past.tail = self.read(GroupName.HCA_TAIL, layer, tables[GroupName.HCA_TAIL], low, start)
        return past

    def scatter(
        self, layer: int, tables: Mapping[GroupName, Sequence[int]], start: int, past: Past, fresh: Fresh
    ) -> None:
        """Write what a span from ``start`` on added to one layer into a request's pages."""
        for tokens, state in fresh.states.items():
            self.write_state(layer, tables[GroupName.CHECKPOINT], tokens, state)
        if fresh.window is not None:
            self.write(GroupName.WINDOW, layer, tables[GroupName.WINDOW], start, fresh.window)
        if fresh.tail is not None:
            name = GroupName.CSA_TAIL if self.model.layers[layer] is LayerKind.CSA else GroupName.HCA_TAIL
            self.write(name, layer, tables[name], start, fresh.tail)
        if fresh.entries is not None and past.entries is not None:
            full = self.model.layers[layer] is LayerKind.FULL
            name = GroupName.FULL if full else GroupName.COMPRESSED
            self.write(name, layer, tables[name], past.entries.shape[0], fresh.entries)
        if fresh.keys is not None and past.keys is not None:
            self.write(GroupName.INDEXER, layer, tables[GroupName.INDEXER], past.keys.shape[0], fresh.keys)
