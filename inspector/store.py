"""Snapshot files: written whole or not at all, checked in every byte when read.

Layout: magic (8 bytes), format version, length and crc32 of the manifest (three little-endian 32-bit numbers), the
manifest (JSON: the snapshot without its columns, and a list of the columns), then the raw columns one after the
other, little-endian.

Invariant: :func:`load` returns a snapshot or raises a :class:`~agent.errors.FileError` that names what is wrong and
what to do; nothing in a file is trusted before its length and checksum were. Used by the command line and the
dashboard.
"""

import json
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.codec import from_plain, to_plain
from agent.errors import FileError, ProtocolError
from agent.model.evidence import HashTable
from agent.model.snapshot import SCHEMA_VERSION, PageColumns, Snapshot
from agent.model.states import PageId

from .anonymise import anonymise
from .format import when

MAGIC = b"\x89KVCTL\r\n"
"""Not text, and damaged by a transfer that takes it for text."""

FORMAT = 1
"""Version of the layout. Fields are added to the manifest without raising it."""

_HEAD = struct.Struct("<8sIII")
_NEXT = "save it again with kvctl snapshot save, or copy it again from where it came"
_PAGE_COLUMNS = {"key": 16, "group": 1, "tokens": 4, "stamp": 8, "parent": 8, "references": 4, "free": 1}
_TABLE_COLUMNS = {"key": 16, "group": 1, "page": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What a file says of itself."""

    path: Path
    bytes: int
    format: int
    kvctl: str
    """Version that wrote it."""
    written: str
    """RFC 3339."""
    revealed: bool
    """It holds raw keys and request ids."""
    columns: Mapping[str, int]
    """Bytes of each column."""


def save(snapshot: Snapshot, path: Path, *, reveal: bool = False, now_ns: int | None = None, version: str = "") -> None:
    """Write a snapshot so that the file is there whole or not at all, readable by its owner only.

    Args:
        snapshot: What to write.
        path: Where; an existing file is replaced.
        reveal: Keep raw keys and request ids. Without it they are replaced for good.
        now_ns: Wall clock to note in the file; the time of the capture by default.
        version: Version of kvctl to note in the file.

    Raises:
        FileError: It could not be written.
    """
    if not reveal:
        snapshot = anonymise(snapshot)
    columns = dict(_columns(snapshot))
    table = _table(snapshot)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "kvctl": version,
        "written": when(snapshot.capture.taken_ns if now_ns is None else now_ns),
        "revealed": reveal,
        "snapshot": to_plain(_without_columns(snapshot)),
        "pages": _pages_plain(snapshot.pages),
        "hash_table": None if table is None else {"count": table.count},
        "columns": [{"name": name, "bytes": len(data), "crc32": zlib.crc32(data)} for name, data in columns.items()],
    }
    text = json.dumps(manifest, separators=(",", ":")).encode()
    try:
        _write(path, [_HEAD.pack(MAGIC, FORMAT, len(text), zlib.crc32(text)), text, *columns.values()])
    except OSError as error:
        raise FileError(
            f"cannot write {path}", why=_reason(error), next_step="choose another place with kvctl snapshot save FILE"
        ) from error


def load(path: Path) -> Snapshot:
    """Read a snapshot file.

    Raises:
        FileError: It is missing, foreign, truncated, damaged, or written by a newer kvctl.
    """
    manifest, columns, _ = _read(path)
    try:
        snapshot = from_plain(Snapshot, manifest["snapshot"])
        snapshot = replace(snapshot, pages=_pages(manifest.get("pages"), columns))
        table = manifest.get("hash_table")
        if table is not None and snapshot.evidence is not None:
            built = HashTable(count=table["count"], **_views(columns, "table", _TABLE_COLUMNS, table["count"]))
            snapshot = replace(snapshot, evidence=replace(snapshot.evidence, hash_table=built))
        _check(snapshot)
    except (ProtocolError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = error.why if isinstance(error, ProtocolError) and error.why else str(error)
        raise FileError(f"{path} does not hold a snapshot that fits together", why=why, next_step=_NEXT) from error
    return snapshot


def info(path: Path) -> FileInfo:
    """Return what a file says of itself, after checking all of it."""
    manifest, columns, size = _read(path)
    return FileInfo(
        path=path,
        bytes=size,
        format=FORMAT,
        kvctl=str(manifest.get("kvctl") or ""),
        written=str(manifest.get("written") or ""),
        revealed=bool(manifest.get("revealed")),
        columns={name: len(data) for name, data in columns.items()},
    )


def _columns(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    for prefix, holder, names in (
        ("pages", snapshot.pages, _PAGE_COLUMNS),
        ("table", _table(snapshot), _TABLE_COLUMNS),
    ):
        for name in names if holder is not None else ():
            data = getattr(holder, name)
            if data is not None:
                yield f"{prefix}.{name}", bytes(data)


def _table(snapshot: Snapshot) -> HashTable | None:
    return None if snapshot.evidence is None else snapshot.evidence.hash_table


def _without_columns(snapshot: Snapshot) -> Snapshot:
    evidence = None if snapshot.evidence is None else replace(snapshot.evidence, hash_table=None)
    return replace(snapshot, pages=None, evidence=evidence)


def _pages_plain(pages: PageColumns | None) -> dict[str, Any] | None:
    if pages is None:
        return None
    return {
        "count": pages.count,
        "extra_keys": to_plain(pages.extra_keys),
        "never_computed": sorted(pages.never_computed),
        "tainted": sorted(pages.tainted),
        "committed_step": pages.committed_step,
    }


def _pages(plain: Any, columns: Mapping[str, memoryview]) -> PageColumns | None:
    if plain is None:
        return None
    extra = plain["extra_keys"].items()
    return PageColumns(
        count=plain["count"],
        extra_keys={PageId(int(page)): tuple(bytes.fromhex(raw) for raw in raws) for page, raws in extra},
        never_computed=frozenset(map(int, plain["never_computed"])),
        tainted=frozenset(PageId(int(page)) for page in plain["tainted"]),
        committed_step=int(plain["committed_step"]),
        **_views(columns, "pages", _PAGE_COLUMNS, plain["count"]),
    )


def _views(columns: Mapping[str, memoryview], prefix: str, widths: Mapping[str, int], count: int) -> dict[str, Any]:
    views = {}
    for name, width in widths.items():
        data = columns.get(f"{prefix}.{name}")
        if data is not None and len(data) != count * width:
            raise ValueError(f"column {prefix}.{name} has {len(data):,} bytes where {count * width:,} belong")
        if data is not None:
            views[name] = data
    return views


def _check(snapshot: Snapshot) -> None:
    """Raise ``ValueError`` where parts do not fit each other, so that no analysis has to expect it."""
    geometry = snapshot.geometry
    if geometry.hash_unit <= 0 or geometry.alignment <= 0 or any(group.block_size <= 0 for group in geometry.groups):
        raise ValueError("a block, the hash unit or the alignment is not above 0")
    if [group.id for group in geometry.groups] != list(range(len(geometry.groups))):
        raise ValueError("the groups are not numbered from 0")
    if any(not group.states for group in geometry.groups):
        raise ValueError("a group holds no state")
    pages, pool = snapshot.pages, snapshot.pool
    if pages is not None and pool is not None and pool.null_page is not None and not 0 <= pool.null_page < pages.count:
        raise ValueError("the null page lies outside the page table")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, memoryview], int]:
    """Return manifest, columns and size of a file, everything checked."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{path} is not a file", next_step="name a file that kvctl snapshot save has written")
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise FileError(
            f"cannot read {path}", why=_reason(error), next_step="kvctl snapshot save FILE writes a snapshot"
        ) from error
    if len(data) < _HEAD.size or bytes(data[: len(MAGIC)]) != MAGIC:
        if data and MAGIC.startswith(bytes(data[: len(MAGIC)])):
            raise _truncated(path, len(data), None)
        raise FileError(
            f"{path} is not a kvctl snapshot",
            why="it is empty" if not data else "it begins with other bytes than a snapshot does",
            next_step="name a file that kvctl snapshot save has written",
        )
    _, version, length, crc = _HEAD.unpack_from(data)
    if version > FORMAT:
        raise FileError(
            f"{path} was written by a newer kvctl",
            why=f"its format is {version}, this kvctl reads up to {FORMAT}",
            next_step="update kvctl on this machine (pip install -U . in its checkout)",
        )
    start = _HEAD.size + length
    if len(data) < start:
        raise _truncated(path, len(data), start)
    text = bytes(data[_HEAD.size : start])
    if zlib.crc32(text) != crc:
        raise FileError(f"{path} is damaged", why="its manifest does not match its checksum", next_step=_NEXT)
    return (*_columns_of(path, data, start, text), len(data))


def _columns_of(path: Path, data: memoryview, at: int, text: bytes) -> tuple[dict[str, Any], dict[str, memoryview]]:
    try:
        manifest: dict[str, Any] = json.loads(text)
        listed = [(str(item["name"]), int(item["bytes"]), int(item["crc32"])) for item in manifest["columns"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{path} is damaged", why=f"its manifest cannot be read: {error}", next_step=_NEXT) from error
    whole = at + sum(size for _, size, _ in listed)
    if len(data) < whole:
        raise _truncated(path, len(data), whole)
    if len(data) > whole:
        raise FileError(f"{path} is damaged", why=f"{len(data) - whole:,} bytes too many at its end", next_step=_NEXT)
    columns = {}
    for name, size, crc in listed:
        column = data[at : at + size]
        at += size
        if zlib.crc32(column) != crc:
            raise FileError(f"{path} is damaged", why=f"column {name} does not match its checksum", next_step=_NEXT)
        columns[name] = column.toreadonly()
    return manifest, columns


def _truncated(path: Path, size: int, whole: int | None) -> FileError:
    why = f"it has {size:,} bytes" + (f" where at least {whole:,} belong" if whole is not None else "")
    return FileError(f"{path} is truncated", why=why, next_step=_NEXT)


def _write(path: Path, parts: list[bytes]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
