"""A worker method that overwrites weights in place, as somebody's own training loop would, with the cache kept.

Invariant: self-contained, because a copy of this file is loaded as a vLLM plugin into server processes; see
``tests.support.server``. Norms are what a CPU worker reads from its parameters: it packs the others away.
"""

from typing import Any

METHOD = "kvctl_test_overwrite"


def overwrite(worker: Any, factor: str = "3") -> list[str]:
    """Multiply every input norm by ``factor``; return the names."""
    changed = []
    for name, parameter in worker.model_runner.get_model().named_parameters():
        if "layernorm" in name and parameter.numel():
            parameter.data.add_(1.0).mul_(float(factor)).sub_(1.0)
            changed.append(name)
    return changed


def install() -> None:
    """Add the method to vLLM's workers."""
    from vllm.v1.worker.worker_base import WorkerBase

    setattr(WorkerBase, METHOD, overwrite)
