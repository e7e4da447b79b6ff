"""Checksum of a whole page table, equal on both sides of the feed.

Invariant: the canonical form is fixed here: for blocks of :data:`BLOCK_PAGES` pages positions, stamps, 16 bytes of hash
and the last byte of the group id, then references where they are followed; zeros where a page has no key; then all
secondary keys in order. ``agent.table`` computes the same from its columns. Reads the whole pool: never in a step's
budget.
"""

from array import array
from zlib import crc32

from ..model.states import KEY_BYTES
from .columns import reference_columns
from .port import PoolPort, Words
from .ring import checksum

BLOCK_PAGES = 4096


def table_checksum(port: PoolPort, stamps: Words, *, references: bool) -> int:
    """Return the checksum of the pool as it is now."""
    crc = 0
    width = port.key_bytes
    for start in range(0, port.pages, BLOCK_PAGES):
        stop = min(start + BLOCK_PAGES, port.pages)
        pages = port.take(start, stop)
        tokens = port.tokens(pages)
        keys = port.keys(pages)
        crc = checksum(tokens.tobytes(), crc)
        known = array(
            "Q", [stamp if position else 0 for stamp, position in zip(stamps[start:stop], tokens, strict=True)]
        )
        crc = checksum(known.tobytes(), crc)
        crc = checksum(b"".join([keys[at : at + KEY_BYTES] for at in range(0, len(keys), width)]), crc)
        crc = checksum(keys[width - 1 :: width], crc)
        if references:
            counts, free = reference_columns(port, pages, start)
            crc = checksum(counts.tobytes(), crc)
            crc = checksum(free, crc)
    for page, key in sorted(port.extra(range(port.pages))):  # noqa: S610 - no database here
        crc = crc32(page.to_bytes(4, "little") + key[:KEY_BYTES] + key[-4:], crc)
    return crc
