"""Parts of answers: what a question defers to, how arguments are read, how tables are packed for the wire.

Invariant: arguments of a client are judged before anything runs on the engine's thread; packing runs on the probe's.
Used by ``operations`` and ``server``.
"""

import base64
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..codec import to_plain
from ..errors import UsageError
from ..model.snapshot import Level
from ..model.states import KEY_BYTES

PACKED = frozenset({"requests", "free_list", "hash_table"})
"""Parts that travel packed."""

PIECE = 3 << 16
"""Bytes that are turned into text at once: a multiple of three, so that the pieces join."""

if TYPE_CHECKING:
    from ..engines.base import RequestRow
    from .lifecycle import Probe


@dataclass(slots=True)
class Reader:
    """What the probe knows of one connection."""

    pid: int
    uid: int
    level: Level | None = None
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """An answer that needs the engine's thread."""

    label: str
    deadline_s: float
    run: Callable[[], Any]
    """Engine's thread, at a safe point."""
    finish: Callable[[Any], Any] = to_plain
    """Probe's thread: turn the result into JSON values."""
    descriptor: Callable[[Any], int] | None = None
    """Descriptor that rides on the answer; whoever takes the result closes it."""


class FreeListWalk:
    """Walk the free list over as many safe points as it takes, and notice whether it changed meanwhile."""

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._ids: array[int] = array("I")
        self._at: Any = None
        self._step: int | None = None
        self._torn = False

    def advance(self) -> bool:
        """Walk one slice; True when the end is reached. Engine's thread."""
        probe = self._probe
        if self._step is not None and self._step != probe.recorder.step:
            self._torn = True
        self._step = probe.recorder.step
        ids, self._at = probe.adapter.free_pages(self._at, probe.options["free_list_slice"])
        self._ids.extend(ids)
        # A broken list may run in circles: stop once it is longer than the pool.
        return self._at is None or len(self._ids) > probe.pages + probe.options["free_list_slice"]

    def result(self) -> dict[str, Any]:
        """Return the ids in eviction order."""
        return {"free_list": self._ids, "free_list_torn": self._torn}


def pack(ids: Iterable[int]) -> str:
    """Return page ids as base64 of little-endian uint32."""
    return text_of(array("I", ids).tobytes())


def text_of(data: bytes) -> str:
    """Return base64, made in pieces: the interpreter is the engine's, too."""
    pieces = [base64.b64encode(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
    return b"".join(pieces).decode("ascii")


def natural(name: str, value: Any) -> int:
    """Read a number from 0.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} takes a number from 0", why=f"it was given {str(value)[:40]}")
    return value


def keys_from(text: Any, *, size: int = 16) -> list[bytes]:
    """Read keys that were joined as hexadecimal text.

    Raises:
        UsageError: They are not.
    """
    try:
        joined = bytes.fromhex(text)
    except (TypeError, ValueError) as error:
        raise UsageError("keys are hexadecimal text", why=str(error)) from error
    if len(joined) % size:
        raise UsageError(f"keys are {size} bytes each")
    return [joined[start : start + size] for start in range(0, len(joined), size)]


def group_keys_from(pairs: Any) -> list[tuple[int, bytes]]:
    """Read pairs of group and key.

    Raises:
        UsageError: They are not.
    """
    if pairs is None:
        return []
    if not isinstance(pairs, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
        raise UsageError("keys of a plan are pairs of group and key")
    return [(natural("group", group), keys_from(key)[0]) for group, key in pairs if key]


def workers_plain(answers: list[Any]) -> dict[str, Any]:
    """Return one answer a worker."""
    return {"workers": answers}


def request_plain(row: "RequestRow", page_ids: Callable[[Any], list[int]]) -> dict[str, Any]:
    """Return a request as JSON values, its tables packed."""
    return {
        "id": row.id,
        "status": row.status,
        "tokens": row.tokens,
        "prompt_tokens": row.prompt_tokens,
        "computed_tokens": row.computed_tokens,
        "in_flight_tokens": row.in_flight_tokens,
        "preemptions": row.preemptions,
        "priority": row.priority,
        "tables": None if row.tables is None else [pack(page_ids(table)) for table in row.tables],
    }


def table_plain(table: list[tuple[bytes, Any]], page_ids: Callable[[Any], list[int]]) -> dict[str, Any]:
    """Return a copy of the engine's hash table as packed columns, one row for each pair of key and page."""
    rows = [(key, page) for key, held in table for page in (held if isinstance(held, list) else (held,))]
    return {
        "count": len(rows),
        "key": text_of(b"".join([key[:KEY_BYTES] for key, _ in rows])),
        "group": text_of(bytes([key[-1] for key, _ in rows])),
        "page": pack(page_ids([page for _, page in rows])),
    }


def copy_plain(probe: "Probe", value: dict[str, Any]) -> dict[str, Any]:
    """Return what a safe point copied as JSON values, with everything that is known without it."""
    rows, free, table = value.get("requests"), value.get("free_list"), value.get("hash_table")
    ids = probe.adapter.page_ids
    return {
        **{name: to_plain(item) for name, item in value.items() if name not in PACKED},
        "requests": None if rows is None else [request_plain(row, ids) for row in rows],
        "free_list": None if free is None else pack(free),
        "hash_table": None if table is None else table_plain(table, ids),
        "engine": to_plain(probe.info),
        "geometry": probe.geometry_plain,
        "capabilities": to_plain(probe.standing.list()),
        "counters": probe.read_counters(),
        "guard": probe.guard.state(),
        "feed": probe.feed_status(),
        "readers": probe.readers(),
    }
