"""The groups of the reference engine: which layers share a block table, what a page of each holds, how it resumes.

Invariant: derived from the configuration alone; the group ids are the order of ``GROUPS`` restricted to what the
model has. Everybody in ``agent.reference`` may use it.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import lcm

from ..model.groups import Geometry, Group, Layer
from ..model.states import GroupId, ResumeKind, State
from .config import WINDOWED, EngineConfig, LayerKind, ModelConfig


class GroupName(StrEnum):
    """The groups, in order of id."""

    COMPRESSED = "compressed"
    """Compressed entries of CSA and HCA layers."""
    FULL = "full"
    """Rows of full attention."""
    INDEXER = "indexer"
    """Indexer keys of CSA layers."""
    WINDOW = "window"
    """Window rows of every layer with a window branch."""
    CSA_TAIL = "csa_tail"
    """Inputs of the CSA compressor and of the indexer's own."""
    HCA_TAIL = "hca_tail"
    CHECKPOINT = "checkpoint"
    """Recurrent states."""


STATE_OF = {
    GroupName.COMPRESSED: State.COMPRESSED,
    GroupName.FULL: State.COMPRESSED,
    GroupName.INDEXER: State.INDEXER,
    GroupName.WINDOW: State.SWA,
    GroupName.CSA_TAIL: State.TAIL,
    GroupName.HCA_TAIL: State.TAIL,
    GroupName.CHECKPOINT: State.COMPRESSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one layer inside a page of its group."""

    layer: int
    rows: int
    width: int
    """Elements of a row that mean something."""
    stride: int
    """Elements from one row to the next: the width padded to the row alignment."""
    offset: int
    """Elements from the start of the page to the first row."""
    tokens: int
    """Tokens behind one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One group as the engine uses it."""

    id: int
    name: GroupName
    state: State
    block: int
    """Tokens covered by one page."""
    past: int | None
    """Tokens before the next one that must be there to resume; None: everything (or, for checkpoints, one page)."""
    parts: tuple[Part, ...]
    elements: int
    """Elements of one page, padding included."""

    @property
    def needs_all(self) -> bool:
        """Whether every block from the first on is needed to resume."""
        return self.name in {GroupName.COMPRESSED, GroupName.FULL, GroupName.INDEXER}

    @property
    def reach(self) -> int:
        """Tokens before the next one that it reads, of a group with a window."""
        if self.past is None:
            raise ValueError(f"group {self.name} has no window")
        return self.past

    def blocks(self, tokens: int) -> int:
        """Return the number of pages that cover so many tokens."""
        return -(-tokens // self.block)

    def first_needed(self, tokens: int) -> int:
        """Return the first block that a computation from position ``tokens`` on reads; every later one is read too."""
        if self.needs_all or tokens == 0:
            return 0
        if self.past is None:
            return (tokens - 1) // self.block
        return max(0, tokens - self.past) // self.block

    def part(self, layer: int) -> Part:
        """Return the part of a layer; the layer must belong to the group."""
        return next(part for part in self.parts if part.layer == layer)


def _members(model: ModelConfig, name: GroupName) -> tuple[int, ...]:
    kinds = {
        GroupName.COMPRESSED: {LayerKind.CSA, LayerKind.HCA},
        GroupName.FULL: {LayerKind.FULL},
        GroupName.INDEXER: {LayerKind.CSA},
        GroupName.WINDOW: WINDOWED,
        GroupName.CSA_TAIL: {LayerKind.CSA},
        GroupName.HCA_TAIL: {LayerKind.HCA},
        GroupName.CHECKPOINT: {LayerKind.RECURRENT},
    }[name]
    return tuple(index for index, kind in enumerate(model.layers) if kind in kinds)


def _row_shape(model: ModelConfig, name: GroupName, layer: int) -> tuple[int, int]:
    """Return (width of a row, tokens behind it)."""
    if name is GroupName.COMPRESSED:
        return model.row, model.csa_ratio if model.layers[layer] is LayerKind.CSA else model.hca_ratio
    if name is GroupName.INDEXER:
        return model.index_width, model.csa_ratio
    if name is GroupName.CSA_TAIL:
        return 4 * (model.row + model.index_width), 1
    if name is GroupName.HCA_TAIL:
        return 2 * model.row, 1
    return model.row, 1


_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _parts(model: ModelConfig, engine: EngineConfig, name: GroupName, block: int) -> tuple[tuple[Part, ...], int]:
    """Lay out a page; returns its parts and its padded elements."""
    size = _BYTES[model.dtype]
    parts, offset = [], 0
    for layer in _members(model, name):
        if name is GroupName.CHECKPOINT:
            width, tokens, rows = model.state_width, block, model.state_width
        else:
            width, tokens = _row_shape(model, name, layer)
            rows = block // tokens
        stride = _padded(width * size, engine.row_alignment) // size
        parts.append(Part(layer=layer, rows=rows, width=width, stride=stride, offset=offset, tokens=tokens))
        offset += rows * stride
    return tuple(parts), _padded(offset * size, engine.page_alignment) // size


def group_specs(model: ModelConfig, engine: EngineConfig) -> tuple[GroupSpec, ...]:
    """Return the groups that this model has; ``specs[i].id == i``."""
    blocks = engine.blocks
    block_of = {
        GroupName.WINDOW: blocks.window,
        GroupName.CSA_TAIL: blocks.csa_tail,
        GroupName.HCA_TAIL: blocks.hca_tail,
    }
    past_of = {
        GroupName.WINDOW: model.window - 1,
        GroupName.CSA_TAIL: 2 * model.csa_ratio - 1,
        GroupName.HCA_TAIL: model.hca_ratio - 1,
    }
    specs: list[GroupSpec] = []
    for name in GroupName:
        if not _members(model, name):
            continue
        block = block_of.get(name, blocks.main)
        parts, elements = _parts(model, engine, name, block)
        specs.append(
            GroupSpec(
                id=len(specs),
                name=name,
                state=STATE_OF[name],
                block=block,
                past=past_of.get(name),
                parts=parts,
                elements=elements,
            )
        )
    return tuple(specs)


def alignment_of(specs: tuple[GroupSpec, ...]) -> int:
    """Return the unit of hits: the least common multiple of all blocks."""
    return lcm(*(spec.block for spec in specs))


def hash_unit_of(specs: tuple[GroupSpec, ...]) -> int:
    """Return the tokens between two chained hashes: the smallest block (all blocks are multiples of it)."""
    return min(spec.block for spec in specs)


def _kind(spec: GroupSpec) -> ResumeKind:
    if spec.needs_all:
        return ResumeKind.FULL
    return ResumeKind.RECURRENT if spec.past is None else ResumeKind.WINDOW


def describe(model: ModelConfig, engine: EngineConfig) -> Geometry:
    """Return the geometry in the words of the domain model."""
    specs, size = group_specs(model, engine), _BYTES[model.dtype]
    groups = []
    for spec in specs:
        parts = tuple(
            Layer(
                name=f"layers.{part.layer}.{spec.name}",
                state=spec.state,
                page_bytes=part.rows * part.stride * size,
                spec="Part",
            )
            for part in spec.parts
        )
        ratios = {part.tokens for part in spec.parts}
        groups.append(
            Group(
                id=GroupId(spec.id),
                name=f"{spec.name}{spec.block}" + ("" if spec.past is None else f"/past{spec.past}"),
                states=(spec.state,),
                kind=_kind(spec),
                block_size=spec.block,
                tokens_per_entry=ratios.pop() if len(ratios) == 1 and spec.needs_all else 1,
                window_past_tokens=spec.past,
                layers=parts,
                page_bytes=spec.elements * size,
                spec="GroupSpec",
                lookup_class=spec.id,
            )
        )
    return Geometry(
        groups=tuple(groups),
        hash_unit=hash_unit_of(specs),
        alignment=alignment_of(specs),
        retention_interval=engine.retention_interval,
        max_model_tokens=engine.max_tokens,
    )
