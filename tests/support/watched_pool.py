"""The truth about a pool: every key that it ever registered, noted as vLLM registers it.

Invariant: complete if it is made before the pool is used; needs vLLM, so only ``tests/engine`` uses it.
"""

from typing import Any

from agent.model.states import KEY_BYTES, GroupId


class WatchedPool:
    """A complete ghost.

    Args:
        pool: vLLM's ``BlockPool``; its method that registers a key is wrapped for the life of the pool.
    """

    def __init__(self, pool: Any) -> None:
        self.registered: set[tuple[int, bytes]] = set()
        self._keys: set[bytes] = set()
        insert = pool._insert_block_hash

        def remember(key: bytes, *args: Any, **more: Any) -> None:
            prefix = bytes(key[:KEY_BYTES])
            self.registered.add((int.from_bytes(key[-4:], "big"), prefix))
            self._keys.add(prefix)
            insert(key, *args, **more)

        pool._insert_block_hash = remember

    def seen(self, group: GroupId | None, key: bytes, /) -> bool | None:
        """See ``agent.resume.Ghost``."""
        return key in self._keys if group is None else (group, key) in self.registered

    def taken(self, group: GroupId | None, key: bytes, /) -> bool:
        """Nobody takes anything out on purpose here."""
        del group, key
        return False
