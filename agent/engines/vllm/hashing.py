"""Hash token ids as vLLM would hash a request with them: the engine's own hasher, on a stand-in for a request.

Invariant: changes nothing and keeps nothing; salt and adapter go where the engine reads them, so the keys are the
engine's own in every version. Engine's thread, a slice at a time.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from ...model.states import KEY_BYTES

SLICE_TOKENS: Final = 8192
"""Tokens hashed at one safe point: a few milliseconds with small blocks."""


class Prompt:
    """What the engine's hasher reads of a request; nothing multimodal unless somebody puts it there."""

    def __init__(self, tokens: Sequence[int], salt: str | None, lora: tuple[str, str] | None) -> None:
        self.all_token_ids = tokens
        self.num_tokens = 0
        self.block_hashes: list[Any] = []
        self.cache_salt = salt or None
        self.lora_request = None if lora is None else SimpleNamespace(lora_name=lora[0], lora_path=lora[1])
        self.mm_features: Sequence[Any] = ()
        self.prompt_embeds = None
        self._prompt_embeds_per_block_hashes: dict[Any, bytes] = {}


class Hashing:
    """Hash one list of tokens over as many safe points as it takes.

    Args:
        hasher: ``EngineCore.request_block_hasher``.
        tokens: Token ids.
        salt: Cache salt of the request; empty is none, as in the engine.
        lora: Name and path of its adapter.
    """

    def __init__(
        self, hasher: Any, tokens: Sequence[int], *, salt: str | None = None, lora: tuple[str, str] | None = None
    ) -> None:
        self._hasher = hasher
        self._prompt = Prompt(tokens, salt, lora)

    def advance(self) -> bool:
        """Hash one slice; True when the end is reached."""
        prompt = self._prompt
        whole = len(prompt.all_token_ids)
        prompt.num_tokens = min(prompt.num_tokens + SLICE_TOKENS, whole)
        prompt.block_hashes.extend(self._hasher(prompt))
        return prompt.num_tokens == whole

    def keys(self) -> list[bytes]:
        """Return the full chained hashes, one a hash unit."""
        return self._prompt.block_hashes


def fault(engine: Any) -> str | None:
    """Say why this engine cannot hash for us; found by hashing a few tokens, which has no effect."""
    hasher = getattr(engine, "request_block_hasher", None)
    if hasher is None:
        return "this engine runs without prefix caching, so it hashes nothing"
    try:
        trial = Hashing(hasher, [0] * SLICE_TOKENS, salt="kvctl", lora=("kvctl", "kvctl"))
        trial.advance()
        keys = trial.keys()
    except (AttributeError, TypeError, ValueError, LookupError, RuntimeError) as error:
        return f"the block hasher of this vLLM reads a request in another way: {type(error).__name__}: {error}"[:300]
    if not all(isinstance(key, bytes) for key in keys) or min(map(len, keys), default=KEY_BYTES) < KEY_BYTES:
        return "the block hasher of this vLLM returns something else than hashes"
    return None


def lora_path(scheduler: Any, name: str) -> str | None:
    """Return the path of a LoRA adapter that a request of the engine uses; the engine core knows adapters from them."""
    for request in scheduler.requests.values():
        used = getattr(request, "lora_request", None)
        if used is not None and used.lora_name == name:
            return str(used.lora_path)
    return None
