"""A KV connector that claims tokens of every prompt and loads nothing: what the engine does with it is what is tested.

Invariant: claims whole blocks beyond the local hit, at most :data:`CLAIMED` tokens, at once (nothing is asynchronous).
The contents of the pages are then garbage; only the scheduler's side of it means anything.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

CLAIMED = 64


class Nothing(KVConnectorMetadata):  # type: ignore[misc] # vLLM is not there where mypy runs
    """What the scheduler tells the workers."""


class ClaimingConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # as above
    """The connector."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load nothing."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Save nothing."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Claim some tokens after those that the engine has itself."""
        room = (request.num_tokens - 1 - num_computed_tokens) // 32 * 32
        return max(0, min(CLAIMED, room)), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> Nothing:
        """Tell the workers nothing."""
        return Nothing()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Keep no pages."""
        return False, None
