"""What every view says about where its numbers come from.

Invariant: JSON fields have one name and one meaning in all views. Used by the views only.
"""

from hashlib import blake2b

from agent.model.decision import Decision
from agent.model.groups import Geometry
from agent.model.snapshot import Capability, Consistency, Snapshot
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


def off_reasons(capabilities: tuple[Capability, ...]) -> list[str]:
    """Return what the agent cannot do on this engine, a line each."""
    return [f"{item.name}: {item.reason or 'no reason given'}" for item in capabilities if not item.on]


def usable_of(decision: Decision) -> int:
    """Return the tokens that a request could really use: what the engine reused, else what our rules say."""
    return decision.engine_usable


def pseudonym(text: str) -> str:
    """Return a short stable stand-in for a long free text, to tell two of them apart."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
