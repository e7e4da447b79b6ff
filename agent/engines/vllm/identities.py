"""Does a key of vLLM separate what must not share a prefix? Pairs of made-up requests, hashed by its own hasher.

Invariant: changes nothing; hashes one block a request, once for each hasher, because the answer cannot change without
another hasher. Engine's thread.
"""

from types import SimpleNamespace
from typing import Any, Final

from ...model.evidence import IdentityProbe
from ...model.states import KEY_BYTES
from .hashing import Prompt

NAME: Final = "kvctl"


class Identities:
    """The pairs of one engine, hashed when they are first asked for."""

    def __init__(self) -> None:
        self._hasher: Any = None
        self._pairs: tuple[IdentityProbe, ...] = ()

    def read(self, core: Any) -> tuple[IdentityProbe, ...]:
        """Return the pairs.

        Args:
            core: The engine core.
        """
        hasher = core.request_block_hasher
        if hasher is not self._hasher:
            unit = int(core.scheduler.kv_cache_manager.block_pool.hash_block_size)
            self._pairs = _pairs(hasher, unit)
            self._hasher = hasher
        return self._pairs


def _pairs(hasher: Any, unit: int) -> tuple[IdentityProbe, ...]:
    def key(**identity: Any) -> bytes:
        prompt = Prompt([0] * unit, identity.get("salt"), identity.get("lora"))
        prompt.num_tokens = unit
        if "image" in identity:
            prompt.mm_features = (_image(identity["image"], unit),)
        return bytes(hasher(prompt)[0][:KEY_BYTES])

    plain, salt, lora = key(), key(salt=NAME), key(lora=(NAME, NAME))
    image, other = key(image="a"), key(image="b")
    pairs = {
        "salt": (plain, salt),
        "another salt": (salt, key(salt=NAME * 2)),
        "lora": (plain, lora),
        "another lora": (lora, key(lora=(NAME * 2, NAME * 2))),
        "lora from another path": (lora, key(lora=(NAME, NAME * 2))),
        "lora named like the salt": (salt, lora),
        "image": (plain, image),
        "another image": (image, other),
        "image named like the salt": (salt, key(image=NAME)),
    }
    return tuple(IdentityProbe(name=name, left=left, right=right) for name, (left, right) in pairs.items())


def _image(identifier: str, tokens: int) -> SimpleNamespace:
    """Stand for one image that fills the block, with what a hasher reads of it."""
    return SimpleNamespace(
        identifier=identifier,
        modality="image",
        mm_position=SimpleNamespace(offset=0, length=tokens, get_num_embeds=lambda: tokens),
    )
