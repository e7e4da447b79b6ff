"""A page table on its way from one reader to another: columns in a memory file, the rest in a small head.

Invariant: what arrives is a foreigner's until it was checked: a head of other numbers, a file of another size or kind,
or a page, group or count that the pool cannot have is :class:`GarbledError`, and no table is touched by it. Both ends
of it read one ring: its instance and a position say which moment the table is of. Used by ``agent.serving`` (writes)
and ``agent.borrowing`` (reads).
"""

import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..model.states import KEY_BYTES
from .reader import RingReader
from .records import GarbledError
from .table import GROUP_BYTES, Table

VERSION: Final = 1
"""Another one is refused: the newcomer then has the engine send the table."""

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

EXTRA_BYTES: Final = KEY_BYTES + GROUP_BYTES + 4
"""A secondary key in a table: hash, group, tokens."""
MOST_NEVER: Final = 1 << 22
MOST_EXTRA: Final = 1 << 24
WORD: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a table is of, and how long its lists are."""

    instance: int
    """Of the ring."""
    position: int
    """First byte of the ring that was not applied."""
    sequence: int
    """Number of the last record that was."""
    epoch: int
    committed: int
    """Last schedule call whose output was processed."""
    pages: int
    references: int
    """1: references and free list are there."""
    never: int
    """Stamps of registrations that were never computed."""
    tainted: int
    extra: int
    """Secondary keys."""
    version: int = VERSION

    def to_plain(self) -> dict[str, int]:
        """Return it as numbers by name."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: object) -> "Head":
        """Read what another process says.

        Raises:
            GarbledError: Something is missing, no number, or out of all proportion.
        """
        if not isinstance(plain, Mapping):
            raise GarbledError("no head")
        found: dict[str, int] = {}
        for field in fields(cls):
            value = plain.get(field.name)
            if type(value) is not int or not 0 <= value < WORD:
                raise GarbledError(f"{field.name} is {str(value)[:40]}")
            found[field.name] = value
        head = cls(**found)
        if head.version != VERSION:
            raise GarbledError(f"version {head.version}")
        lists = ((head.never, MOST_NEVER), (head.tainted, head.pages), (head.extra, MOST_EXTRA), (head.references, 1))
        if any(count > most for count, most in lists):
            raise GarbledError("its lists are too long")
        return head


def _columns(head: Head) -> tuple[tuple[str, str, int, int], ...]:
    """Return name, type, rows and width of each column, in the order of the file: the widest numbers first."""
    known = head.pages if head.references else 0
    return (
        ("key", "<u8", head.pages, 2),
        ("stamp", "<u8", head.pages, 1),
        ("parent", "<u8", head.pages, 1),
        ("never", "<u8", head.never, 1),
        ("tainted_stamps", "<u8", head.tainted, 1),
        ("tokens", "<u4", head.pages, 1),
        ("references", "<i4", known, 1),
        ("tainted_pages", "<u4", head.tainted, 1),
        ("extra_pages", "<u4", head.extra, 1),
        ("group", "u1", head.pages, 1),
        ("free", "u1", known, 1),
        ("extra_keys", "u1", head.extra, EXTRA_BYTES),
    )


def write(reader: RingReader, *, references: bool) -> tuple[Head, int]:
    """Copy the table of a reader that is complete, between two records.

    Args:
        reader: Whose table.
        references: Copy references and free list, too.

    Returns:
        The head, and the descriptor of a sealed memory file, which is the caller's.

    Raises:
        OSError: There is no memory for it.
    """
    table = reader.table
    instance, position, sequence = reader.place
    extra = [(page, key) for page, keys in table.extra.items() for key in keys]
    head = Head(
        instance=instance,
        position=position,
        sequence=sequence,
        epoch=table.epoch,
        committed=table.committed_step,
        pages=table.pages,
        references=int(references),
        never=len(table.never),
        tainted=len(table.tainted),
        extra=len(extra),
    )
    lists: dict[str, NDArray[Any]] = {
        "never": np.fromiter(table.never, "<u8", head.never),
        "tainted_pages": np.fromiter(table.tainted, "<u4", head.tainted),
        "tainted_stamps": np.fromiter(table.tainted.values(), "<u8", head.tainted),
        "extra_pages": np.fromiter((page for page, _ in extra), "<u4", head.extra),
        "extra_keys": np.frombuffer(b"".join(key for _, key in extra), "u1"),
    }
    fd = os.memfd_create("kvctl-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for name, _, rows, _ in _columns(head):
            if rows:
                _write_all(fd, lists[name] if name in lists else getattr(table, name))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(fd)
        raise
    return head, fd


def _write_all(fd: int, column: NDArray[Any]) -> None:
    left = column.view("u1").reshape(-1).data
    while left:
        left = left[os.write(fd, left) :]


def read(head: Head, fd: int, *, groups: int) -> Table:
    """Make a table of what another reader wrote.

    Args:
        head: Checked against the ring already.
        fd: The file; not kept.
        groups: Cache groups of the engine.

    Raises:
        GarbledError: It is no table of this engine.
        OSError: The file cannot be read.
    """
    shapes = _columns(head)
    size = sum(np.dtype(kind).itemsize * rows * width for _, kind, rows, width in shapes)
    # Only a memory file has seals: another kind could make the reader wait for it.
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise GarbledError("its file is not sealed")
    if (found := os.fstat(fd).st_size) != size:
        raise GarbledError(f"a file of {found} bytes, its columns have {size}")
    table = Table(head.pages)
    lists: dict[str, NDArray[Any]] = {}
    at = 0
    for name, kind, rows, width in shapes:
        own = not name.startswith(("never", "tainted", "extra"))
        column = getattr(table, name) if own else np.empty((rows, width), kind)
        if not own:
            lists[name] = column
        if rows:
            _read_all(fd, column, at)
            at += column.nbytes
    _check(table, lists, groups)
    table.never = set(lists["never"].reshape(-1).tolist())
    pages = lists["tainted_pages"].reshape(-1).tolist()
    table.tainted = dict(zip(pages, lists["tainted_stamps"].reshape(-1).tolist(), strict=True))
    for page, key in zip(lists["extra_pages"].reshape(-1).tolist(), lists["extra_keys"], strict=True):
        table.extra[page] = (*table.extra.get(page, ()), key.tobytes())
    table.epoch, table.committed_step = head.epoch, head.committed
    table.mark_known(references=bool(head.references))
    return table


def _read_all(fd: int, column: NDArray[Any], at: int) -> None:
    left = column.view("u1").reshape(-1).data
    while left:
        done = os.preadv(fd, [left], at)
        if not done:
            raise GarbledError("its file ends too early")
        left, at = left[done:], at + done


def _check(table: Table, lists: Mapping[str, NDArray[Any]], groups: int) -> None:
    """Refuse pages, groups and counts that this pool cannot have."""
    for name in ("tainted_pages", "extra_pages"):
        if len(lists[name]) and int(lists[name].max()) >= table.pages:
            raise GarbledError(f"page {int(lists[name].max())} of a pool of {table.pages}")
    held = table.group[table.tokens > 0]
    others = lists["extra_keys"][:, KEY_BYTES : KEY_BYTES + GROUP_BYTES]
    if (len(held) and int(held.max()) >= groups) or others[:, :-1].any() or (others[:, -1] >= groups).any():
        raise GarbledError(f"a group of an engine that has {groups}")
    if int(table.references.min()) < 0 or int(table.free.max()) > 1:
        raise GarbledError("a count that no page has")
