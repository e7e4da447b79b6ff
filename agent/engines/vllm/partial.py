"""Hooks on the registration of partial pages, which a decoding request repeats in every step without changing anything.

Invariant: each calls the original and returns its result; with or without readers it is one frame around one call, 64
times a step. Made by :class:`agent.engines.vllm.pool.VllmPool`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from ...probe.port import Events, Log
from .following import SLOT_ERRORS, Failed

PARAMETERS = ("request", "block", "num_tokens", "kv_cache_group_id", "block_size", "replace_existing_hashes")
"""All parameters of ``cache_partial_block`` where it is passed through in the cheapest way."""


class PartialHooks:
    """Stand-ins for one pool's ``cache_partial_block``.

    Args:
        pool: The engine's ``BlockPool``.
        log: Takes registrations.
        failed: Told of errors of ours.
    """

    def __init__(self, pool: Any, log: Log, failed: Failed) -> None:
        self._pool, self._log, self._failed = pool, log, failed
        self._original = pool.cache_partial_block
        self._known = tuple(inspect.signature(self._original).parameters) == PARAMETERS
        self.always = self._plain() if self._known else self._of_another_version()
        """Logs registrations that gave a page another key."""

    def followed(self, events: Events) -> Callable[..., Any]:
        """Return a stand-in that also notices secondary keys: a page that has a key may get another one beside it."""
        if self._known and self._pool.cache_partial_block is self.always:
            return self._plain_followed(events)
        return self._around(self._pool.cache_partial_block, events)

    def _plain_followed(self, events: Events) -> Callable[..., Any]:
        """Do both in one frame."""
        pool, original, note, failed, changed = self._pool, self._original, self._note, self._failed, events.changed

        def cache_partial_block(
            request: Any,
            block: Any,
            num_tokens: int,
            kv_cache_group_id: int,
            block_size: int,
            replace_existing_hashes: bool = False,
        ) -> Any:
            before, known = block._block_hash, pool.cached_block_hashes_by_block
            beside = len(known.get(block.block_id, ())) if known else 0
            result = original(request, block, num_tokens, kv_cache_group_id, block_size, replace_existing_hashes)
            if block._block_hash is not before:
                note(request, block, num_tokens, kv_cache_group_id, block_size)
            try:
                known = pool.cached_block_hashes_by_block
                if (known or beside) and len(known.get(block.block_id, ())) != beside:
                    changed((block,))
            except SLOT_ERRORS as error:
                failed("cache_partial_block", error)
            return result

        return cache_partial_block

    def _around(self, original: Callable[..., Any], events: Events) -> Callable[..., Any]:
        """Leave the rest to what is there."""
        pool, failed, changed = self._pool, self._failed, events.changed

        def cache_partial_block(request: Any, block: Any, *rest: Any, **more: Any) -> Any:
            beside = len(pool.cached_block_hashes_by_block.get(block.block_id, ()))
            result = original(request, block, *rest, **more)
            try:
                if len(pool.cached_block_hashes_by_block.get(block.block_id, ())) != beside:
                    changed((block,))
            except SLOT_ERRORS as error:
                failed("cache_partial_block", error)
            return result

        return cache_partial_block

    def _note(self, request: Any, block: Any, num_tokens: int, group: int, block_size: int) -> None:
        try:
            start = (num_tokens - 1) // block_size * block_size
            computed, status, name = request.num_computed_tokens, request.status, request.request_id
            size = num_tokens - start
            self._log((name, request, (block,), None, start, size, computed, status, group))
        except SLOT_ERRORS as error:
            self._failed("cache_partial_block", error)

    def _plain(self) -> Callable[..., Any]:
        original, note = self._original, self._note

        def cache_partial_block(
            request: Any,
            block: Any,
            num_tokens: int,
            kv_cache_group_id: int,
            block_size: int,
            replace_existing_hashes: bool = False,
        ) -> Any:
            before = block._block_hash
            result = original(request, block, num_tokens, kv_cache_group_id, block_size, replace_existing_hashes)
            if block._block_hash is not before:
                note(request, block, num_tokens, kv_cache_group_id, block_size)
            return result

        return cache_partial_block

    def _of_another_version(self) -> Callable[..., Any]:
        original, note = self._original, self._note

        def cache_partial_block(
            request: Any, block: Any, num_tokens: int, kv_cache_group_id: int, block_size: int, *rest: Any, **more: Any
        ) -> Any:
            before = block._block_hash
            result = original(request, block, num_tokens, kv_cache_group_id, block_size, *rest, **more)
            if block._block_hash is not before:
                note(request, block, num_tokens, kv_cache_group_id, block_size)
            return result

        return cache_partial_block
