"""The language of the socket: frames, the greeting, requests, replies and errors.

A frame is four bytes little-endian length and that many bytes of UTF-8 JSON, always one object. The client greets
first: ``{"hello": {"protocol": 1, "agent": "0.1.0"}}``; the probe answers with its own ``hello`` that describes the
engine, or with an error and closes. Then ``{"id": 1, "op": "overview", "args": {}, "deadline_ms": 2000}`` is answered
by ``{"id": 1, "ok": true, "result": ...}`` or ``{"id": 1, "ok": false, "error": {"type": "refused", "what": ...}}``.
A descriptor (the ring, answer of ``join``) rides on the first byte of its frame.

Invariant: nothing is allocated for a frame before its length was checked. Both ends; standard library only.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from .errors import (
    AgentError,
    DeadlineError,
    InconclusiveError,
    KvctlError,
    ProtocolError,
    RefusedError,
    TargetError,
    UnsupportedError,
    UsageError,
)

PROTOCOL: Final = 1
"""Version of this language. Fields and operations may be added without raising it."""

HEAD_BYTES: Final = 4
MAX_REQUEST: Final = 6 << 20
"""Largest frame that a probe accepts: a million token ids, packed."""
MAX_REPLY: Final = 256 << 20
"""Largest frame that a client accepts (page tables of requests in a pool of millions of pages)."""
MAX_GREETING: Final = 4096
"""Largest first frame that a probe accepts: until then nothing is known of the other side."""

PIECE: Final = 1 << 16
"""Characters that are written at once."""
_MARKED: Final = f"\0{secrets.token_hex(16)}"
_MARK: Final = json.dumps(_MARKED)[1:-1]
"""Stands for a long text; random, so that no text of the message can be taken for it."""
_quoted: Final = json.encoder.encode_basestring

MAX_LISTS: Final = 1 << 14
MAX_ITEMS: Final = 1 << 17
"""Lists and objects in a frame that a probe accepts, and commas: parsing holds the interpreter, which is the engine's,
without a break. The largest plan has 12,000 lists; a million token ids are one text."""

OPS: Final = {
    "ping": "Answer at once, from the probe's thread.",
    "overview": "Engine, pool, geometry, requests without tables, recent decisions, counters, capabilities.",
    "geometry": "The cache groups and what they agree on.",
    "capabilities": "What works on this engine, and why not what does not.",
    "counters": "The probe's counters, without the engine's thread.",
    "decisions": "Decisions after number `since`, at most `limit`, without the engine's thread.",
    "explained": "Post what a reader found out about decisions; read what readers posted after a mark.",
    "account": "Take the lease on the books of decisions, and post what was found out about some of them.",
    "requests": "Requests with their page tables where `tables` is true.",
    "free_list": "The engine's free list in eviction order.",
    "holders": "References to pages beyond request tables, with those that kvctl cannot attribute.",
    "read": "Requests with tables, pool, holders (and the free list) in one safe point; stamped with the epoch.",
    "join": "Follow the page table at `level`; the reply carries the ring's descriptor.",
    "leave": "Stop following.",
    "bootstrap": "Ask for the whole table in the ring.",
    "audit": "Put a checksum of the engine's table into the ring.",
    "seen": "Which keys were registered before a stamp (ghost set).",
    "engine_hit": "Ask the engine's own finder about a request or a chain of keys, at a safe point, without effect.",
    "chain": "Keys of a request that the engine knows.",
    "options": "Read or set the probe's own options.",
    "stop": "Take the probe out of the engine.",
    "invalidate_plan": "Name pages, keys and stamps that a selector covers.",
    "invalidate_apply": "Evict exactly a plan, if nothing moved. Needs an engine that allows changes.",
    "layout": "What the workers say about their tensors.",
    "fingerprint": "The operator contract, field by field, and what is known of the weights without reading them.",
    "weights_digest": "Digest of the weights in the workers' memory, a sample or with `full` every byte.",
    "hash_tokens": "Keys of token ids as the engine hashes them, with `salt` and the LoRA adapter `lora`.",
}
"""Every operation, with what it does."""

CHANGES: Final = frozenset({"options", "invalidate_apply"})
"""Operations that need ``KVCTL_ALLOW_CHANGES=1`` in the engine (reading options does not)."""

_ERRORS: Final[Mapping[str, type[KvctlError]]] = {
    "target": TargetError,
    "agent": AgentError,
    "protocol": ProtocolError,
    "unsupported": UnsupportedError,
    "usage": UsageError,
    "refused": RefusedError,
    "inconclusive": InconclusiveError,
    "deadline": DeadlineError,
}
_NAMES: Final = {kind: name for name, kind in _ERRORS.items()}


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the frame of a message; packed tables are written piece by piece, because json never pauses."""
    long: list[str] = []
    text = json.dumps(_shortened(message, long), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    pieces = text.split(_MARK) if long else [text]
    parts = [_bytes(pieces[0])]
    for value, after in zip(long, pieces[1:], strict=True):
        parts += [_bytes(_quoted(value[at : at + PIECE])[1:-1]) for at in range(0, len(value), PIECE)]
        parts.append(_bytes(after))
    size = sum(map(len, parts))
    return b"".join([size.to_bytes(HEAD_BYTES, "little"), *parts])


def _shortened(value: Any, long: list[str]) -> Any:
    """Put a mark for each long text in nested objects; ``long`` gets the texts in their order."""
    if isinstance(value, dict):
        return {name: _shortened(item, long) for name, item in value.items()}
    if isinstance(value, str) and len(value) > PIECE:
        long.append(value)
        return _MARKED
    return value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def decode(body: bytes) -> dict[str, Any]:
    """Read the body of a frame.

    Raises:
        ProtocolError: It is not a JSON object.
    """
    try:
        message = json.loads(body.decode("utf-8", errors="surrogatepass"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError("a frame is not JSON", why=type(error).__name__) from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame is not a JSON object", why=type(message).__name__)
    return message


class FrameBuffer:
    """Cut a stream of bytes into frames.

    Args:
        limit: Largest frame; raise it after the greeting.
        quick: Refuse frames that take long to parse.
    """

    def __init__(self, limit: int, *, quick: bool = False) -> None:
        self.limit = limit
        self._quick = quick
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._data += data

    def next(self) -> dict[str, Any] | None:
        """Return the next whole frame, or None.

        Raises:
            ProtocolError: The frame is longer than allowed, or is not a JSON object.
        """
        data = self._data
        if len(data) < HEAD_BYTES:
            return None
        size = int.from_bytes(data[:HEAD_BYTES], "little")
        if size > self.limit:
            raise ProtocolError("a frame is too long", why=f"{size} bytes, {self.limit} are allowed")
        if len(data) < HEAD_BYTES + size:
            return None
        body = bytes(data[HEAD_BYTES : HEAD_BYTES + size])
        del data[: HEAD_BYTES + size]
        if self._quick and (body.count(b"[") + body.count(b"{") > MAX_LISTS or body.count(b",") > MAX_ITEMS):
            raise ProtocolError(
                "a frame has too many parts", why=f"{MAX_LISTS} lists and {MAX_ITEMS} items are allowed"
            )
        return decode(body)

    def pending(self) -> int:
        """Return the number of bytes that do not make a frame yet."""
        return len(self._data)


def error_to_plain(error: KvctlError) -> dict[str, str | None]:
    """Describe an error for the other side."""
    kind = next((_NAMES[step] for step in type(error).__mro__ if step in _NAMES), "agent")
    return {"type": kind, "what": error.what, "why": error.why, "next_step": error.next_step}


def error_from_plain(plain: object) -> KvctlError:
    """Rebuild an error that the other side described; whatever it sent, this returns an error."""
    if not isinstance(plain, dict):
        return ProtocolError("the agent answered with an error that cannot be read")
    kind = _ERRORS.get(str(plain.get("type")), AgentError)
    texts = {name: plain.get(name) for name in ("why", "next_step")}
    return kind(
        str(plain.get("what") or "the agent reported an error"),
        why=None if texts["why"] is None else str(texts["why"]),
        next_step=None if texts["next_step"] is None else str(texts["next_step"]),
    )
