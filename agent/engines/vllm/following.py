"""Hooks of a joined feed on vLLM's block pool.

Invariant: each hook calls the original and extends one list with block objects; the feed reads the blocks at its next
cut. Put in and taken out by :class:`agent.engines.vllm.pool.VllmPool` on the engine's thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ...probe.patches import Patches
from ...probe.port import Events

Failed = Callable[[str, BaseException], object]

SLOT_ERRORS = (AttributeError, TypeError, LookupError, ValueError, RuntimeError, MemoryError)
"""All that reading an attribute, slicing a list and extending a deque can raise."""


def follow_content(patches: Patches, pool: Any, managers: Sequence[Any], events: Events, failed: Failed) -> None:
    """Hook what removes or moves keys; registrations are in the always-on log."""
    patches.set(pool, "get_new_blocks", _allocated(pool.get_new_blocks, events, failed))
    patches.set(pool, "evict_blocks", _evicted(pool, pool.evict_blocks, events, failed))
    patches.set(pool, "reset_prefix_cache", _reset(pool.reset_prefix_cache, events, failed))
    if hasattr(pool, "move_block_hashes"):
        patches.set(pool, "move_block_hashes", _moved(pool.move_block_hashes, events, failed))
    for manager in managers:
        if hasattr(manager, "_checkpoints") and hasattr(manager, "_cache_partial_tail_block"):
            hook = _dropped_checkpoint(manager, manager._cache_partial_tail_block, events, failed)
            patches.set(manager, "_cache_partial_tail_block", hook)


def follow_references(patches: Patches, pool: Any, events: Events, failed: Failed) -> None:
    """Hook what changes reference counts and the free list beyond allocation."""
    patches.set(pool, "touch", _touched(pool.touch, events, failed))
    patches.set(pool, "free_blocks", _freed(pool.free_blocks, events, failed))
    if hasattr(pool, "unpin_blocks"):
        patches.set(pool, "unpin_blocks", _unpinned(pool.unpin_blocks, events, failed))


def _allocated(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    cleared = events.cleared

    def get_new_blocks(num_blocks: int) -> Any:
        result = original(num_blocks)
        try:
            cleared(result)
        except SLOT_ERRORS as error:
            failed("get_new_blocks", error)
        return result

    return get_new_blocks


def _evicted(pool: Any, original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    def evict_blocks(block_ids: Any) -> Any:
        try:
            return original(block_ids)
        finally:  # an unknown id makes the engine stop half way: what it evicted until then must be seen
            try:
                blocks = pool.blocks
                events.cleared([blocks[number] for number in block_ids if number < len(blocks)])
            except SLOT_ERRORS as error:
                failed("evict_blocks", error)

    return evict_blocks


def _reset(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    def reset_prefix_cache() -> Any:
        result = original()
        if result:
            try:
                events.reset()
            except SLOT_ERRORS as error:
                failed("reset_prefix_cache", error)
        return result

    return reset_prefix_cache


def _moved(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    def move_block_hashes(src_block: Any, dst_block: Any) -> Any:
        result = original(src_block, dst_block)
        try:
            pair = (src_block, dst_block)
            events.cleared((src_block,))
            events.touched(pair)
        except SLOT_ERRORS as error:
            failed("move_block_hashes", error)
        return result

    return move_block_hashes


def _dropped_checkpoint(
    manager: Any, original: Callable[..., Any], events: Events, failed: Failed
) -> Callable[..., Any]:
    """Notice a checkpoint block whose key this method removes without a call of the pool that is hooked."""

    def _cache_partial_tail_block(request: Any, *rest: Any, **more: Any) -> Any:
        result = original(request, *rest, **more)
        try:
            checkpoint = manager._checkpoints.get(request.request_id)
            if checkpoint is not None:
                block = manager.req_to_blocks[request.request_id][checkpoint[1]]
                if block._block_hash is None:
                    events.cleared((block,))
        except SLOT_ERRORS as error:
            failed("_cache_partial_tail_block", error)
        return result

    return _cache_partial_tail_block


def _touched(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    touched = events.touched

    def touch(blocks: Any) -> Any:
        if type(blocks) is not list and type(blocks) is not tuple:
            blocks = list(blocks)
        result = original(blocks)
        try:
            touched(blocks)
        except SLOT_ERRORS as error:
            failed("touch", error)
        return result

    return touch


def _freed(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    """Blocks to free often come as an iterator, which can be read only once."""
    touched = events.touched

    def free_blocks(ordered_blocks: Any) -> Any:
        if type(ordered_blocks) is not list:
            ordered_blocks = list(ordered_blocks)
        result = original(ordered_blocks)
        try:
            touched(ordered_blocks)
        except SLOT_ERRORS as error:
            failed("free_blocks", error)
        return result

    return free_blocks


def _unpinned(original: Callable[..., Any], events: Events, failed: Failed) -> Callable[..., Any]:
    touched = events.touched

    def unpin_blocks(blocks: Any, on_reuse: Any) -> Any:
        blocks = list(blocks)
        result = original(blocks, on_reuse)
        try:
            touched(blocks)
        except SLOT_ERRORS as error:
            failed("unpin_blocks", error)
        return result

    return unpin_blocks
