"""Seeded weights of useful scale, and their digest.

Invariant: the same configuration gives the same bytes on every machine (drawn on the CPU in float64, then rounded).
Used by the engine and by the oracle; the only thing the two share besides ``layers``.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import torch

from .config import WINDOWED, LayerKind, ModelConfig

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def dtype_of(config: ModelConfig) -> torch.dtype:
    """Return the torch dtype of a model."""
    return _DTYPES[config.dtype]


def _absent() -> torch.Tensor:
    return torch.empty(0)


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer; those that its kind does not need are empty. Shapes are [in, out]."""

    kind: LayerKind
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    mlp_up: torch.Tensor
    """[width, 2 * mlp]: gate and value."""
    mlp_down: torch.Tensor
    output: torch.Tensor
    query: torch.Tensor = field(default_factory=_absent)
    """[width, heads * row]."""
    window_row: torch.Tensor = field(default_factory=_absent)
    """[width, row]: latent and rotated part of the window branch."""
    full_row: torch.Tensor = field(default_factory=_absent)
    tail: torch.Tensor = field(default_factory=_absent)
    """[width, tail elements]: values and scores that the compressor pools; see ``layers.compress``."""
    bias: torch.Tensor = field(default_factory=_absent)
    """[tokens pooled, row]: positional bias of the compressor's scores."""
    index_bias: torch.Tensor = field(default_factory=_absent)
    index_query: torch.Tensor = field(default_factory=_absent)
    """[width, index_heads * index_width]."""
    index_weight: torch.Tensor = field(default_factory=_absent)
    """[width, index_heads]."""
    state: torch.Tensor = field(default_factory=_absent)
    """[width, 4 * state_width]: query, key, value and decay of a recurrent layer."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor with its name, in a fixed order."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, torch.Tensor) and value.numel():
                yield item.name, value


@dataclass(slots=True, kw_only=True)
class Weights:
    """All weights of a model."""

    config: ModelConfig
    embedding: torch.Tensor
    """[vocabulary, width]."""
    final_norm: torch.Tensor
    head: torch.Tensor
    """[width, vocabulary]."""
    layers: list[LayerWeights]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor with its name, in a fixed order."""
        yield "embedding", self.embedding
        for index, layer in enumerate(self.layers):
            for name, tensor in layer.tensors():
                yield f"layers.{index}.{name}", tensor
        yield "final_norm", self.final_norm
        yield "head", self.head

    def digest(self) -> str:
        """Return a digest of all bytes really in memory, as 32 hex digits."""
        state = hashlib.blake2b(digest_size=16)
        for name, tensor in self.tensors():
            state.update(name.encode())
            state.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return state.hexdigest()


def _layer(config: ModelConfig, kind: LayerKind, generator: torch.Generator) -> LayerWeights:
    def draw(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64) * (gain / rows**0.5)

    def norm() -> torch.Tensor:
        return 1.0 + 0.1 * torch.randn(config.width, generator=generator, dtype=torch.float64)

    out_width = config.state_width if kind is LayerKind.RECURRENT else config.heads * config.latent
    weights = LayerWeights(
        kind=kind,
        attention_norm=norm(),
        mlp_norm=norm(),
        mlp_up=draw(config.width, 2 * config.mlp),
        mlp_down=draw(config.mlp, config.width),
        output=draw(out_width, config.width, 1.5),
    )
    if kind is LayerKind.RECURRENT:
        weights.state = draw(config.width, 4 * config.state_width)
        return weights
    weights.query = draw(config.width, config.heads * config.row, 1.5)
    if kind in WINDOWED:
        weights.window_row = draw(config.width, config.row)
    if kind is LayerKind.FULL:
        weights.full_row = draw(config.width, config.row)
    if kind is LayerKind.CSA:
        weights.tail = draw(config.width, 4 * (config.row + config.index_width))
        weights.bias = draw(2 * config.csa_ratio, config.row)
        weights.index_bias = draw(2 * config.csa_ratio, config.index_width)
        weights.index_query = draw(config.width, config.index_heads * config.index_width)
        weights.index_weight = draw(config.width, config.index_heads)
    if kind is LayerKind.HCA:
        weights.tail = draw(config.width, 2 * config.row)
        weights.bias = draw(config.hca_ratio, config.row)
    return weights


def build_weights(config: ModelConfig, device: str = "cpu") -> Weights:
    """Draw the weights of a model from its seed.

    The scale keeps logits far from flat (standard deviation about 2): on flat logits equal tokens would prove nothing.
    """
    generator = torch.Generator().manual_seed(config.seed)
    embedding = torch.randn(config.vocabulary, config.width, generator=generator, dtype=torch.float64)
    layers = [_layer(config, kind, generator) for kind in config.layers]
    head = torch.randn(config.width, config.vocabulary, generator=generator, dtype=torch.float64)
    weights = Weights(
        config=config,
        embedding=embedding,
        final_norm=torch.ones(config.width, dtype=torch.float64),
        head=head * (2.0 / config.width**0.5),
        layers=layers,
    )
    dtype = dtype_of(config)
    for layer in weights.layers:
        for name, tensor in layer.tensors():
            setattr(layer, name, tensor.to(device=device, dtype=dtype))
    for name in ("embedding", "final_norm", "head"):
        setattr(weights, name, getattr(weights, name).to(device=device, dtype=dtype))
    return weights
