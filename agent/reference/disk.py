"""The disk tier: one safetensors file for each page, content addressed, that survives being killed at any moment.

Invariant: a file under its final name is complete (temporary name, fsync, rename, fsync of the folder), and nothing
of it is used before its size, fingerprint, name and checksum were verified; what fails is moved to ``quarantine`` and
counted by reason. One process owns a folder (a lock file). Used by ``tiers`` only.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save

from ..errors import UsageError
from .faults import Fault, Faults

_SUFFIX = ".safetensors"
_TEMPORARY = ".tmp-"
_SLICE = 4096
_HEADER_LIMIT = 1 << 16
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageName:
    """What a stored page is: group and chained key."""

    group: int
    key: bytes

    @property
    def file(self) -> str:
        """File name."""
        return f"{self.group}-{self.key.hex()}{_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> "PageName | None":
        """Return the page of a file name, None for a file that is not ours."""
        group, dash, rest = name.removesuffix(_SUFFIX).partition("-")
        if not (dash and name.endswith(_SUFFIX) and (group.isascii() and group.isdigit())):
            return None
        try:
            return cls(group=int(group), key=bytes.fromhex(rest))
        except ValueError:
            return None


class UnusableFileError(RuntimeError):
    """A stored page that must not be used. ``reason`` is one word for the counter."""

    def __init__(self, reason: str, detail: str, fingerprint: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.fingerprint = fingerprint
        """What a foreign file carries."""


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def encode(name: PageName, tokens: int, content: torch.Tensor, fingerprint: str) -> bytes:
    """Return the file of a page: safetensors with the fingerprint and the checksum of its body in the header."""
    flat = content.detach().cpu().contiguous()
    metadata = {
        "fingerprint": fingerprint,
        "checksum": _checksum(flat.view(torch.uint8).numpy().tobytes()),
        "name": name.file,
        "tokens": str(tokens),
    }
    return bytes(save({"page": flat}, metadata=metadata))


def decode(name: PageName, data: bytes, fingerprint: str) -> torch.Tensor:
    """Return the content of a file after verifying all of it.

    Raises:
        UnusableFileError: Torn, truncated, foreign or corrupt.
    """
    if len(data) < 8:
        raise UnusableFileError("truncated", f"{len(data)} bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(_HEADER_LIMIT, len(data) - 8):
        raise UnusableFileError("truncated", "header is not complete")
    try:
        header = json.loads(data[8 : 8 + length])
        metadata, entry = header["__metadata__"], header["page"]
        dtype, (elements,), (low, high) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableFileError("corrupt", "header cannot be read") from error
    body = data[8 + length :]
    if metadata.get("fingerprint") != fingerprint:
        raise UnusableFileError("foreign", "other fingerprint", str(metadata.get("fingerprint"))[:64])
    if metadata.get("name") != name.file:
        raise UnusableFileError("misnamed", f"holds {metadata.get('name')}")
    if low != 0 or high != elements * dtype.itemsize or len(body) != high:
        raise UnusableFileError("truncated", f"{len(body)} of {high} bytes")
    if metadata.get("checksum") != _checksum(body):
        raise UnusableFileError("corrupt", "checksum differs")
    return torch.frombuffer(bytearray(body), dtype=dtype)


class Disk:
    """A folder of pages.

    Args:
        folder: Created if need be.
        fingerprint: Pages under another one are foreign: left alone, never used.
        faults: Faults to act out.
        on_io: Called before and after each step of a write with its name; tests stop the process there.

    Raises:
        UsageError: Another process owns the folder.
    """

    def __init__(
        self, folder: Path, fingerprint: str, *, faults: Faults, on_io: Callable[[str], None] = lambda _: None
    ) -> None:
        self.folder, self.fingerprint, self._faults, self._on_io = folder, fingerprint, faults, on_io
        self.quarantine = folder / "quarantine"
        self.quarantine.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise UsageError(f"disk folder {folder} is in use by another engine") from error
        self.unusable: dict[str, int] = {}
        """Files that were not used, by reason."""
        self.ready: set[PageName] = set()
        self.foreign: dict[PageName, str] = {}
        """Pages under another fingerprint, with what they carry."""
        self.sizes: dict[PageName, int] = {}
        """Bytes that the file of a page has, as it was written or verified."""
        self._serial = 0
        self._scan()

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)

    def _count(self, reason: str) -> None:
        self.unusable[reason] = self.unusable.get(reason, 0) + 1

    def rescan(self) -> None:
        """Look through the folder again, as a restart does; what is being written right now is left alone."""
        self.ready.clear()
        self.foreign.clear()
        self._scan(own=False)

    def _scan(self, *, own: bool = True) -> None:
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(_TEMPORARY):
                if own or not path.name.startswith(f"{_TEMPORARY}{os.getpid()}-"):
                    path.unlink()
                    self._count("unfinished")
            elif path.is_file() and path.name != ".lock":
                name = PageName.parse(path.name)
                if name is None:
                    self._set_aside(path, "unknown_name")
                else:
                    self._classify(name)

    def _classify(self, name: PageName) -> None:
        try:
            data = (self.folder / name.file).read_bytes()
        except FileNotFoundError:
            return  # invalidated meanwhile
        try:
            decode(name, data, self.fingerprint)
        except UnusableFileError as error:
            if error.reason == "foreign":
                self.foreign[name] = error.fingerprint or "none"
                self._count("foreign")
            else:
                self._set_aside(self.folder / name.file, error.reason)
        else:
            self.ready.add(name)
            self.sizes[name] = len(data)

    def _set_aside(self, path: Path, reason: str) -> None:
        self._count(reason)
        path.replace(self.quarantine / f"{reason}-{path.name}")

    def write(self, name: PageName, tokens: int, content: torch.Tensor, fingerprint: str) -> None:
        """Store a page; it is ready only when the caller acknowledges (``acknowledge``).

        Args:
            name: Group and key.
            tokens: Tokens of the prefix that ends with the page.
            content: Elements of the page.
            fingerprint: What the content was computed under.

        Raises:
            OSError: The disk is full or broken; nothing is left behind.
        """
        data = encode(name, tokens, content, fingerprint)
        self._serial += 1
        temporary = self.folder / f"{_TEMPORARY}{os.getpid()}-{self._serial}-{os.urandom(4).hex()}"
        try:
            self._write_file(temporary, data)
            self._on_io("rename")
            temporary.replace(self.folder / name.file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._on_io("renamed")
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._on_io("synced")
        self.sizes[name] = len(data)
        if self._faults.take(Fault.TEAR_DISK_FILE):
            os.truncate(self.folder / name.file, len(data) // 2)

    def _write_file(self, path: Path, data: bytes) -> None:
        self._on_io("open")
        with path.open("xb", buffering=0) as file:
            for offset in range(0, len(data), _SLICE):
                self._on_io("write")
                if self._faults.take(Fault.FULL_DISK):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                file.write(data[offset : offset + _SLICE])
            self._on_io("fsync")
            os.fsync(file.fileno())

    def acknowledge(self, name: PageName) -> None:
        """Say that the write of a page is known to have finished: only now it may be read."""
        self.foreign.pop(name, None)
        self.ready.add(name)

    def drop(self, name: PageName) -> None:
        """Remove a page that is ready."""
        if name in self.ready:
            self.ready.discard(name)
            (self.folder / name.file).unlink(missing_ok=True)

    def rebrand(self, fingerprint: str) -> None:
        """Go on under another fingerprint: what is stored becomes foreign."""
        self.foreign |= dict.fromkeys(self.ready, self.fingerprint)
        self.fingerprint = fingerprint
        self.ready.clear()

    def read(self, name: PageName) -> torch.Tensor:
        """Return the verified content of a page.

        Raises:
            UnusableFileError: It is gone or cannot be trusted; it was set aside and counted.
        """
        path = self.folder / name.file
        try:
            return decode(name, path.read_bytes(), self.fingerprint)
        except FileNotFoundError as error:
            self.ready.discard(name)
            self._count("gone")
            raise UnusableFileError("gone", path.name) from error
        except UnusableFileError as error:
            self.ready.discard(name)
            self._set_aside(path, error.reason)
            raise
