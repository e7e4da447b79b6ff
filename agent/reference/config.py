"""Shapes of the model and sizes of the engine.

Invariant: frozen values without torch; everything that two parts of the engine must agree on is stated here once.
Everybody in ``agent.reference`` may use it.
"""

from dataclasses import dataclass
from enum import StrEnum

from ..errors import UsageError


class LayerKind(StrEnum):
    """What a layer attends to. CSA and HCA layers have a window branch as well, as in DeepSeek-V4."""

    WINDOW = "window"
    """The last W tokens only."""
    CSA = "csa"
    """Compressed sparse attention: entries of ``csa_ratio`` tokens with overlap, top-k chosen by the indexer."""
    HCA = "hca"
    """Heavily compressed attention: entries of ``hca_ratio`` tokens, all of them."""
    FULL = "full"
    """Plain causal attention over all tokens."""
    RECURRENT = "recurrent"
    """Gated linear recurrence: the whole history in one state of fixed size."""


WINDOWED = frozenset({LayerKind.WINDOW, LayerKind.CSA, LayerKind.HCA})
"""Layers with a window branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model: its layers and widths. Widths are numbers of elements."""

    layers: tuple[LayerKind, ...] = (
        LayerKind.WINDOW,
        LayerKind.CSA,
        LayerKind.HCA,
        LayerKind.FULL,
        LayerKind.RECURRENT,
    )
    vocabulary: int = 97
    width: int = 32
    heads: int = 2
    latent: int = 16
    """Width of the shared key-value latent, as in multi-head latent attention: keys and values in one row."""
    rope: int = 8
    """Width of the rotated part of a row; even."""
    mlp: int = 64
    window: int = 12
    """W: a query sees itself and the W - 1 tokens before it."""
    csa_ratio: int = 4
    hca_ratio: int = 16
    index_heads: int = 2
    index_width: int = 8
    top_k: int = 4
    """Compressed entries that a CSA query attends to."""
    state_width: int = 16
    """Key and value width of the recurrent state."""
    seed: int = 1
    dtype: str = "float64"
    """``float64`` (oracle), ``float32`` or ``bfloat16``."""

    @property
    def row(self) -> int:
        """Elements of one key-value row."""
        return self.latent + self.rope

    def count(self, *kinds: LayerKind) -> int:
        """Number of layers of these kinds."""
        return sum(layer in kinds for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Tokens covered by one page of each group."""

    main: int = 16
    """Compressed entries, full attention, indexer keys and recurrent checkpoints."""
    window: int = 8
    csa_tail: int = 4
    hca_tail: int = 8


class Recovery(StrEnum):
    """The five recovery routes. Each is one function in ``recovery``; they share nothing."""

    MAP = "map_in_place"
    TAIL = "recompute_tail"
    WINDOW = "realign_window"
    INDEXER = "rebuild_indexer"
    TRANSFER = "transfer"


ALL_ROUTES = frozenset(Recovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes and policies of one engine."""

    blocks: BlockSizes = BlockSizes()
    compressed_pages: int = 96
    tail_pages: int = 160
    window_pages: int = 64
    indexer_pages: int = 48
    host_pages: int = 0
    """Pages of the host tier's pool; 0 switches the tier off."""
    disk_folder: str | None = None
    """Folder of the disk tier; None switches it off."""
    store_backlog: int = 1024
    """Copies to other tiers that may wait; a page that leaves the device while so many do leaves without one."""
    chunk: int = 32
    """Most tokens of one prefill chunk."""
    step_tokens: int = 64
    """Most tokens of one step over all requests."""
    max_batch: int = 8
    """Rows of the decode batch, and most requests that run at once."""
    max_tokens: int = 256
    """Longest request, prompt and outputs."""
    cached_share: float = 0.75
    """Share of a pool that cached pages nobody uses, or pages of waiting requests, may take while requests wait."""
    row_alignment: int = 16
    """Bytes that a row is padded to: what a bulk copy needs."""
    page_alignment: int = 64
    """Bytes that a page is padded to; 576 is what FlashMLA's fp8 rows need."""
    retention_interval: int | None = None
    """Window, tail and checkpoint pages kept: None all, 0 at the end of a prompt only, p > 0 every p tokens too."""
    routes: frozenset[Recovery] = ALL_ROUTES
    """Recovery routes that are allowed. ``MAP`` must be among them to reuse anything."""
    degrade: bool = True
    """Allow recomputing only some layers when a full-history state is lost."""
    bounded_replay: bool = False
    """Realign windows with W tokens only: cheap and approximate by design. Its pages are never registered."""
    device: str = "cpu"
    poison: bool = False
    """Overwrite the content of every page that changes its owner, so that a stale read shows."""
    ghosts: int = 65536
    """Keys of lost pages that are remembered to tell ``evicted`` from ``cold``."""


def check(model: ModelConfig, engine: EngineConfig) -> None:
    """Refuse shapes that cannot be paged.

    Raises:
        UsageError: A block does not hold whole entries, or a width is odd.
    """
    blocks = engine.blocks
    for size, unit, name in (
        (blocks.main, model.csa_ratio, "the main block must be a multiple of the CSA ratio"),
        (blocks.main, model.hca_ratio, "the main block must be a multiple of the HCA ratio"),
        (blocks.main, blocks.window, "the main block must be a multiple of the window block"),
        (blocks.main, blocks.csa_tail, "the main block must be a multiple of the CSA tail block"),
        (blocks.main, blocks.hca_tail, "the main block must be a multiple of the HCA tail block"),
        (model.rope, 2, "the rotated width must be even"),
    ):
        if size % unit:
            raise UsageError(name, why=f"{size} is not a multiple of {unit}")
    if model.dtype not in {"float64", "float32", "bfloat16"}:
        raise UsageError(f"unknown dtype {model.dtype}")
    if Recovery.MAP not in engine.routes and engine.routes:
        raise UsageError("recovery routes without map_in_place cannot work", next_step="add map_in_place")
