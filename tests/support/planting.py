"""A fault that can be planted into the engine core of a server: its endpoint for another cache does it on the side.

Invariant: self-contained, because a copy of this file is loaded as a vLLM plugin into server processes; see
``tests.support.server``. Needs ``VLLM_SERVER_DEV_MODE=1``.
"""

from typing import Any

PATH = "/reset_mm_cache"


def plant(pool: Any) -> None:
    """Let the hash table name a foreign page for the key of some prefix's first page, if such a prefix is cached.

    The next request with this prefix then reuses what is not there.
    """
    cached = [block for block in pool.blocks if block._block_hash is not None]
    cached.sort(key=lambda block: block._block_hash_num_tokens)
    if len(cached) > 1:
        first, foreign = cached[0], cached[-1]
        key = first._block_hash
        pool.evict_blocks({first.block_id})
        pool.cached_block_hash_to_block.insert(key, foreign)


def install() -> None:
    """Put it into the engine core's class."""
    from vllm.v1.engine.core import EngineCore

    original = EngineCore.reset_mm_cache

    def reset_mm_cache(self: Any) -> None:
        plant(self.scheduler.kv_cache_manager.block_pool)
        original(self)

    planted: Any = EngineCore
    planted.reset_mm_cache = reset_mm_cache
