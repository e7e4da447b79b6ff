"""Where sockets live: runtime folders, their fixed order, and the name that carries an engine's identity.

Invariant: no folder is created here except by :func:`own_folder`, and none is trusted before its owner and mode were
looked at. Used by the probe (where to listen) and by discovery (where to look). Standard library only.
"""

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import TargetError

SOCKET_NAME = re.compile(r"\Aengine-(?P<pid>[1-9]\d{0,9})-(?P<ticks>\d{1,20})(?:-(?P<part>\d{1,4}))?\.sock\Z")
"""Name of a socket: pid and start ticks of the process that listens, and a part where a process has several engines."""

KILL_FILE = "off"
"""An operator who creates this file in a runtime folder switches off every probe that listens there."""

AUDIT_FILE = "audit.jsonl"
"""Append-only log of applied changes, beside the sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketName:
    """Identity in a socket's name."""

    pid: int
    start_ticks: int
    part: int = 0

    def text(self) -> str:
        """Return the file name."""
        part = f"-{self.part}" if self.part else ""
        return f"engine-{self.pid}-{self.start_ticks}{part}.sock"

    @classmethod
    def parse(cls, name: str) -> "SocketName | None":
        """Read a file name; None when it is not one of ours."""
        found = SOCKET_NAME.match(name)
        if found is None:
            return None
        return cls(pid=int(found["pid"]), start_ticks=int(found["ticks"]), part=int(found["part"] or 0))


def stat_fields(pid: int) -> list[str] | None:
    """Read the fields of ``/proc/PID/stat`` from the third (its state) on; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Read when a process started, in clock ticks since boot (``/proc/PID/stat`` field 22); None if it is gone."""
    fields = stat_fields(pid)
    # A zombie answers nothing any more: for us it is gone.
    return None if fields is None or fields[0] in {"Z", "X"} else int(fields[19])


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the parents of a process, nearest first."""
    found: list[int] = []
    while pid > 1 and len(found) < 64:
        fields = stat_fields(pid)
        if fields is None:
            break
        pid = int(fields[1])
        found.append(pid)
    return tuple(found)


def folders(environ: Mapping[str, str] | None = None, *, uid: int | None = None) -> tuple[Path, ...]:
    """Return the runtime folders of a user in the order in which they are searched.

    ``KVCTL_RUNTIME_DIR`` alone where it is set; else ``$XDG_RUNTIME_DIR/kvctl``, ``/run/user/UID/kvctl``,
    ``/run/kvctl-UID``, ``/tmp/kvctl-UID``.
    """
    env = os.environ if environ is None else environ
    if chosen := env.get("KVCTL_RUNTIME_DIR"):
        return (Path(chosen),)
    who = os.getuid() if uid is None else uid
    listed = [Path(f"/run/user/{who}/kvctl"), Path(f"/run/kvctl-{who}"), Path(f"/tmp/kvctl-{who}")]  # noqa: S108 - owner and mode are checked
    if xdg := env.get("XDG_RUNTIME_DIR"):
        listed.insert(0, Path(xdg) / "kvctl")
    return tuple(dict.fromkeys(listed))


def fault_of(folder: Path, *, uid: int) -> str | None:
    """Say why a folder must not be trusted; None when it may be (a folder of ``uid``, closed to everybody else)."""
    try:
        found = os.lstat(folder)
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    if found.st_uid != uid:
        return f"it belongs to uid {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"its mode is {stat.S_IMODE(found.st_mode):04o}; 0700 is needed"
    return None


def unfit(folder: Path, *, uid: int) -> str | None:
    """Say why this process, of ``uid``, cannot listen in a folder that is there; None if it can."""
    fault = fault_of(folder, uid=uid)
    if fault is None and not os.access(folder, os.W_OK | os.X_OK):
        return "you may not write to it"
    return fault


def mending(folder: Path, *, uid: int) -> str:
    """Say what to do about a folder that is unfit."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        closed = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not closed:
            return f"chmod 0700 {shlex.quote(str(folder))}"
    return "set KVCTL_RUNTIME_DIR to a folder of your own with mode 0700, or to one that is not there yet"


def own_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder where this process may listen, creating it with mode 0700.

    Raises:
        TargetError: No folder of the search order can be used; the reasons are in ``why``.
    """
    chosen = bool((os.environ if environ is None else environ).get("KVCTL_RUNTIME_DIR"))
    listed, uid = folders(environ), os.geteuid()
    reasons = []
    for folder in listed:
        fault = _make(folder, parents=chosen) or unfit(folder, uid=uid)
        if fault is None:
            return folder
        reasons.append(f"{folder}: {fault}")
    raise TargetError(
        "the folder in KVCTL_RUNTIME_DIR cannot be used" if chosen else "no runtime folder can be used",
        why="; ".join(reasons),
        next_step=mending(listed[0], uid=uid),
    )


def _make(folder: Path, *, parents: bool) -> str | None:
    """Make a folder with mode 0700 where there is nothing; return why it could not be made."""
    try:
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
    except FileExistsError:
        return None  # something else has its name: what that is says more
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return None


def deaf(environ: Mapping[str, str] | None = None) -> str | None:
    """Say why no agent of this user can listen; None if one can.

    Either no folder of the search order is fit, or in the first that is agents are switched off. Looks only: a folder
    that is not there can be made where there is a place for it.
    """
    chosen = bool((os.environ if environ is None else environ).get("KVCTL_RUNTIME_DIR"))
    reasons = []
    for folder in folders(environ):
        if os.path.lexists(folder):
            fault = unfit(folder, uid=os.geteuid())
        else:
            above = next(path for path in folder.parents if not chosen or os.path.lexists(path))
            fault = None if os.access(above, os.W_OK | os.X_OK) else f"not there, and you may not write to {above}"
        if fault is None:
            return switched_off(folder)
        reasons.append(f"{folder}: {fault}")
    return "; ".join(reasons)


def switched_off(folder: Path) -> str | None:
    """Say that an operator has switched off the agents of a runtime folder; None where nobody has."""
    if not os.path.exists(folder / KILL_FILE):  # noqa: PTH110 - False, not an error, where the folder is closed
        return None
    return f"{folder}: the file {KILL_FILE!r} in it switches every agent off"


def allowed_uids(environ: Mapping[str, str] | None = None) -> frozenset[int]:
    """Return the uids that may talk to a probe: its own, and those of ``KVCTL_ALLOWED_UIDS`` (``0,1000``)."""
    env = os.environ if environ is None else environ
    listed = (part.strip() for part in env.get("KVCTL_ALLOWED_UIDS", "").split(","))
    return frozenset({os.geteuid(), *(int(part) for part in listed if part.isascii() and part.isdigit())})
