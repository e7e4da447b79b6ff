"""What every view says about where its numbers come from.

Invariant: JSON fields have one name and one meaning in all views. Used by the views only.
"""

from agent.model.groups import Geometry
from agent.model.snapshot import Capability, Consistency, PoolInfo, Snapshot
from agent.model.states import GroupId

from ..format import clean, duration, when
from ..report import Cell, Json, Tone

NO_TABLE = (
    "the page table was not read, so this is unknown: read a live engine again, or save a snapshot with its page table"
)
"""Note of a view that needs the page table and has none."""

SHORT_KEY = 12


def head(snapshot: Snapshot) -> Json:
    """Return the JSON fields ``engine`` and ``capture`` that every view carries."""
    engine, capture = snapshot.engine, snapshot.capture
    return {
        "engine": {
            "pid": engine.pid,
            "engine": engine.engine,
            "version": engine.version,
            "model": engine.model,
            "name": engine.name,
            "agent_version": engine.agent_version or None,
            "data_parallel_rank": engine.data_parallel_rank,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "allow_changes": engine.allow_changes,
            "devices": list(engine.devices),
        },
        "capture": {
            "taken": when(capture.taken_ns),
            "consistency": capture.consistency.value,
            "level": None if capture.level is None else capture.level.value,
            "epoch": capture.epoch,
            "age_seconds": None if capture.age_ns is None else capture.age_ns / 1e9,
            "duration_seconds": capture.duration_ns / 1e9,
            "pause_seconds": None if capture.pause_ns is None else capture.pause_ns / 1e9,
            "notes": list(capture.notes),
        },
    }


def engine_line(snapshot: Snapshot) -> str:
    """Return who the engine is, in one line."""
    engine = snapshot.engine
    parts = [f"{engine.engine} {engine.version}", engine.model, f"pid {engine.pid}"]
    if engine.name and engine.name != engine.model:
        parts.insert(1, engine.name)
    if engine.tensor_parallel_size > 1:
        parts.append(f"TP {engine.tensor_parallel_size}")
    if engine.data_parallel_rank:
        parts.append(f"DP rank {engine.data_parallel_rank}")
    parts.extend(engine.devices[:1])
    return " · ".join(short(part) for part in parts)


def capture_line(snapshot: Snapshot) -> Cell | str:
    """Return when and how consistently the snapshot was taken, in one line."""
    capture = snapshot.capture
    text = f"{when(capture.taken_ns)}, {capture.consistency}"
    if capture.epoch is not None:
        text += f" at epoch {capture.epoch:,}"
    if capture.level is None:
        text += ", without the page table"
    text += f", took {duration(capture.duration_ns)}"
    if capture.pause_ns is not None:
        text += f", paused the engine for {duration(capture.pause_ns)}"
    if capture.consistency is Consistency.TORN:
        return Cell(text + " - numbers may not fit together", Tone.WARN)
    return text


def notes(snapshot: Snapshot) -> list[str]:
    """Return the notes of the capture, for stderr."""
    return [f"note: {note}" for note in snapshot.capture.notes]


def short(text: str, length: int = 48) -> str:
    """Return free text from an engine, cleaned and cut, for use inside a sentence."""
    plain = clean(text)
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def key_text(key: bytes, *, reveal: bool) -> str:
    """Return a key as ``hash:…``: short, or whole with ``--reveal``."""
    return "hash:" + (key.hex() if reveal else key.hex()[:SHORT_KEY])


def group_name(geometry: Geometry, group: GroupId | None) -> str | None:
    """Return a group's name; None for none."""
    if group is None:
        return None
    return geometry.groups[group].name if 0 <= group < len(geometry.groups) else f"group {group}"


def usable_pages(pool: PoolInfo) -> int:
    """Return the pages of a pool without the null page."""
    return pool.pages - (0 if pool.null_page is None else 1)


ESSENTIAL = frozenset({"decisions", "feed", "geometry", "pool", "requests", "safe_point"})
"""Capabilities that every engine should have; others may be off because the engine has no such thing (a connector)."""


def off_reasons(capabilities: tuple[Capability, ...]) -> list[str]:
    """Return what the agent should be able to do on this engine and cannot, a line each."""
    return [f"{item.name}: {item.reason or 'no reason given'}" for item in essential_off(capabilities)]


def essential_off(capabilities: tuple[Capability, ...]) -> list[Capability]:
    """Return the capabilities that are off and should not be."""
    return [item for item in capabilities if not item.on and item.name in ESSENTIAL]
