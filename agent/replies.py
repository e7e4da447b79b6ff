"""What an engine answered, as values of the model.

Invariant: an answer that does not fit raises ``ProtocolError``; nothing is guessed. Used by :mod:`agent.session`.
"""

import base64
import sys
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .codec import from_plain
from .decisionformat import DecisionRecord
from .errors import ProtocolError
from .model.decision import Decision
from .model.evidence import EngineLookup, Evidence, HashTable
from .model.groups import Geometry
from .model.snapshot import (
    Capability,
    Capture,
    Consistency,
    EngineInfo,
    Level,
    PageColumns,
    PoolInfo,
    RequestInfo,
    Snapshot,
    Tier,
)
from .model.states import KEY_BYTES, PageId


def _part(plain: Any, name: str) -> Any:
    if not isinstance(plain, Mapping) or name not in plain:
        raise ProtocolError("the agent's answer lacks a part", why=name)
    return plain[name]


def engine(plain: Any) -> EngineInfo:
    """Read the description of an engine."""
    return from_plain(EngineInfo, _part(plain, "engine"))


def geometry(plain: Any) -> Geometry:
    """Read the cache groups."""
    return from_plain(Geometry, plain)


def decisions(plain: Any) -> tuple[Decision, ...]:
    """Read recorded decisions, unexplained."""
    return tuple(from_plain(DecisionRecord, item).to_decision() for item in _part(plain, "decisions"))


def unpack_ids(text: str) -> tuple[PageId, ...]:
    """Read page ids that were packed as base64 of little-endian uint32."""
    try:
        ids = array("I", base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ProtocolError("page ids cannot be read", why=str(error)) from error
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(map(PageId, ids))


def requests(plain: Any) -> tuple[RequestInfo, ...] | None:
    """Read requests; tables travel packed, one text for each group."""
    listed = plain.get("requests") if isinstance(plain, Mapping) else None
    if listed is None:
        return None
    return tuple(_request(item) for item in listed)


def _request(plain: Any) -> RequestInfo:
    packed = _part(plain, "tables")
    bare = from_plain(RequestInfo, {**plain, "tables": None})
    if packed is None:
        return bare
    return RequestInfo(
        id=bare.id,
        status=bare.status,
        tokens=bare.tokens,
        prompt_tokens=bare.prompt_tokens,
        computed_tokens=bare.computed_tokens,
        in_flight_tokens=bare.in_flight_tokens,
        preemptions=bare.preemptions,
        priority=bare.priority,
        tables=tuple(unpack_ids(text) for text in packed),
    )


def _optional(kind: type[Any], plain: Any) -> Any:
    return None if plain is None else from_plain(kind, plain)


def overview(plain: Any) -> Snapshot:
    """Read the answer of ``overview``: a snapshot without a page table."""
    return Snapshot(
        engine=engine(plain),
        capture=Capture(
            consistency=Consistency.ATOMIC,
            level=None,
            epoch=plain.get("epoch"),
            taken_ns=_part(plain, "taken_ns"),
            duration_ns=plain.get("duration_ns") or 0,
            pause_ns=plain.get("duration_ns"),
            notes=tuple(plain.get("notes") or ()),
        ),
        geometry=geometry(_part(plain, "geometry")),
        pool=_optional(PoolInfo, plain.get("pool")),
        requests=requests(plain),
        decisions=decisions(plain),
        counters=_counters(plain),
        tiers=_tiers(plain),
        capabilities=_capabilities(plain),
    )


def full(
    plain: Any,
    *,
    pages: PageColumns | None,
    level: Level,
    consistency: Consistency,
    notes: tuple[str, ...],
    duration_ns: int,
    decisions: tuple[Decision, ...],
) -> Snapshot:
    """Join the answer of ``read`` with the page table of the same epoch."""
    holders = plain.get("holders")
    free = plain.get("free_list")
    return Snapshot(
        engine=engine(plain),
        capture=Capture(
            consistency=consistency,
            level=level,
            epoch=plain.get("epoch"),
            taken_ns=_part(plain, "taken_ns"),
            age_ns=0 if consistency is Consistency.ATOMIC else None,
            duration_ns=duration_ns,
            pause_ns=plain.get("duration_ns"),
            notes=(*(plain.get("notes") or ()), *notes),
        ),
        geometry=geometry(_part(plain, "geometry")),
        pool=_optional(PoolInfo, plain.get("pool")),
        pages=pages,
        requests=requests(plain),
        decisions=decisions,
        counters=_counters(plain),
        tiers=_tiers(plain),
        capabilities=_capabilities(plain),
        holders=None if holders is None else {PageId(int(page)): int(count) for page, count in holders.items()},
        free_list=None if free is None else unpack_ids(free),
        evidence=evidence(plain),
    )


def evidence(plain: Any) -> Evidence | None:
    """Join what an adapter read as evidence with the look-ups that were made at the same safe point."""
    found: Evidence | None = _optional(Evidence, plain.get("evidence"))
    listed, table = plain.get("lookups"), plain.get("hash_table")
    if listed is not None:
        found = replace(found or Evidence(), lookups=tuple(from_plain(EngineLookup, item) for item in listed))
    if table is not None:
        found = replace(found or Evidence(), hash_table=_hash_table(table))
    return found


def _hash_table(plain: Any) -> HashTable:
    count = int(_part(plain, "count"))
    columns = {name: _packed(_part(plain, name)) for name in ("key", "group", "page")}
    if [len(columns[name]) for name in ("key", "group", "page")] != [KEY_BYTES * count, count, 4 * count]:
        raise ProtocolError("the engine's hash table cannot be read", why="its columns have other lengths")
    return HashTable(count=count, key=columns["key"], group=columns["group"], page=columns["page"])


def _packed(text: Any) -> memoryview:
    try:
        return memoryview(base64.b64decode(text, validate=True))
    except (TypeError, ValueError) as error:
        raise ProtocolError("a packed column cannot be read", why=str(error)) from error


def _counters(plain: Any) -> dict[str, float] | None:
    listed = plain.get("counters")
    return None if listed is None else {str(name): float(value) for name, value in listed.items()}


def _tiers(plain: Any) -> tuple[Tier, ...] | None:
    listed = plain.get("tiers")
    return None if listed is None else tuple(from_plain(Tier, item) for item in listed)


def _capabilities(plain: Any) -> tuple[Capability, ...]:
    return tuple(from_plain(Capability, item) for item in plain.get("capabilities") or ())
