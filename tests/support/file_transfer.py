"""A way to bring weights to vLLM's workers that needs no second process: they read them from a file.

Invariant: everything but the transport is vLLM's own weight-update API. Needs vLLM; used by tests of changed weights.
"""

from dataclasses import dataclass
from typing import Any

BACKEND = "kvctl_test_file"


@dataclass
class Nothing:
    """What the transport needs to begin."""


@dataclass
class File:
    """What one update brings."""

    path: str
    """A safetensors file in the checkpoint's format."""


def register() -> None:
    """Make the transport known to vLLM, once."""
    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    if BACKEND in WeightTransferEngineFactory._registry:
        return

    class FileTransfer(WeightTransferEngine):  # type: ignore[misc]
        init_info_cls = Nothing
        update_info_cls = File

        def init_transfer_engine(self, init_info: Any) -> None:
            """Nothing to connect to."""

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            """Read a file; the base class would wait for an accelerator that there is none of."""
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Any) -> None:
            self.model.load_weights(iter(load_file(update_info.path).items()))

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Nothing was opened."""

    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
