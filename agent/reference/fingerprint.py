"""The engine's fingerprint: what two engines must share before one may use the other's pages.

Invariant: every field that changes the bytes of a page or their meaning is in it, each with its name.
"""

import hashlib
from dataclasses import asdict

from .config import EngineConfig, ModelConfig
from .weights import Weights

LAYOUT = "reference-1"
"""Name of the page layout; changes whenever the same bytes mean something else."""


def contract_of(model: ModelConfig, engine: EngineConfig) -> dict[str, str]:
    """Return the contract as named fields."""
    fields = {f"model.{name}": str(value) for name, value in asdict(model).items() if name != "seed"}
    fields |= {f"block.{name}": str(value) for name, value in asdict(engine.blocks).items()}
    fields["layout"] = LAYOUT
    fields["row_alignment"] = str(engine.row_alignment)
    fields["page_alignment"] = str(engine.page_alignment)
    return fields


def fingerprint_of(contract: dict[str, str], weights: Weights) -> str:
    """Return one digest over contract and weights, as 32 hex digits."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(contract):
        state.update(f"{name}={contract[name]}\n".encode())
    state.update(weights.digest().encode())
    return state.hexdigest()
