"""A vLLM that differs from the one kvctl was written for, planted into a server as a plugin.

Invariant: self-contained, and harmless to the engine itself: what is replaced still does its work. Two things differ:
``record_prefix_cache_stats`` has other parameters, and ``BlockPool`` has a method that changes pages and that nobody
knows.
"""

from typing import Any


def install() -> None:
    """Plant both."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    recorded = KVCacheManager.record_prefix_cache_stats

    def record_prefix_cache_stats(self: Any, *everything: Any, **named: Any) -> Any:
        return recorded(self, *everything, **named)

    KVCacheManager.record_prefix_cache_stats = record_prefix_cache_stats

    def rebalance(self: Any) -> None:
        for page in self.blocks:
            page.ref_cnt += 0

    rebalance.__qualname__ = "BlockPool.rebalance"
    BlockPool.rebalance = rebalance
