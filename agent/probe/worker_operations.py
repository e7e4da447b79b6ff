"""Questions about what does not change from step to step: tensors, contract, weights, and how the engine hashes.

Invariant: everything here reads. What is long runs in slices, each at a safe point of its own. Mixed into
``operations.Operations``; probe's thread.
"""

import base64
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import UsageError
from .answers import Deferred, Reader, workers_plain
from .safepoint import AGAIN
from .weightwalk import WeightsWalk

if TYPE_CHECKING:
    from ..engines.base import FingerprintAdapter, HashingAdapter, WeightsAdapter
    from .lifecycle import Probe

MAX_TOKENS: Final = 1_000_000
"""Token ids of one question."""


class WorkerOperations:
    """Answer these questions."""

    _probe: "Probe"
    _job: Callable[..., Deferred]

    def op_layout(self, _reader: Reader) -> Deferred:
        """Ask the workers for their tensors."""
        call = self._probe.adapter.worker_call
        return self._job("layout", lambda: call("kvctl_layout"), needs="layout", finish=workers_plain)

    def op_fingerprint(self, _reader: Reader) -> Deferred:
        """Read the contract; the workers' part of it is missing with its reason where they do not answer."""
        adapter = cast("FingerprintAdapter", self._probe.adapter)
        return self._job("fingerprint", adapter.fingerprint, finish=lambda found: found)

    def op_weights_digest(self, _reader: Reader, full: bool = False) -> Deferred:
        """Read the weights in memory, slice by slice."""
        walk = WeightsWalk(cast("WeightsAdapter", self._probe.adapter), full=bool(full))
        return self._job(
            "weights_digest",
            lambda: walk.result() if walk.advance() else AGAIN,
            needs="weights_digest",
            finish=lambda found: found,
        )

    def op_hash_tokens(
        self,
        _reader: Reader,
        tokens: Any,
        salt: str | None = None,
        lora: str | None = None,
        lora_path: str | None = None,
    ) -> Deferred:
        """Hash token ids as the engine would."""
        ids = token_ids(tokens)
        adapter = cast("HashingAdapter", self._probe.adapter)
        for name, text in (("salt", salt), ("lora", lora), ("lora_path", lora_path)):
            if text is not None and not isinstance(text, str):
                raise UsageError(f"{name} is text")
        work: list[Any] = []

        def run() -> Any:
            if not work:
                work.append(adapter.hashing(ids, salt=salt, lora=lora, path=lora_path))
            return work[0].keys() if work[0].advance() else AGAIN

        return self._job(
            "hash_tokens",
            run,
            needs="hash_tokens",
            finish=lambda keys: {"keys": b"".join(key[:16] for key in keys).hex(), "count": len(keys)},
        )


def token_ids(tokens: Any) -> list[int]:
    """Read token ids: a list, or little-endian uint32 as base64.

    Raises:
        UsageError: They are neither, or too many.
    """
    if isinstance(tokens, str):
        try:
            tokens = array("I", base64.b64decode(tokens, validate=True)).tolist()
        except ValueError as error:
            raise UsageError("the token ids cannot be read", why=str(error)) from error
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise UsageError("the tokens are no list of token ids")
    if len(tokens) > MAX_TOKENS:
        raise UsageError(f"{len(tokens)} tokens are too many", why=f"{MAX_TOKENS} are hashed at most")
    return tokens
