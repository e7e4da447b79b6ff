"""Find the engines of this host: live ones, leftovers of dead ones, and those of other users, told apart.

Invariant: looking connects to nothing and removes nothing; :func:`remove_leftover` alone removes, and only a socket
whose process is gone. Used by the command line, the dashboard and the exporter.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from . import paths
from .errors import RefusedError, TargetError


class EndpointState(StrEnum):
    """What stands behind a socket file."""

    LIVE = "live"
    DEAD = "dead"
    """Its process is gone, or another program has its pid now."""
    FOREIGN = "foreign"
    """It belongs to another user who was not allowed explicitly."""
    UNSAFE = "unsafe"
    """Its folder or mode would let others stand in for the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One socket, with what its name and its owner say."""

    path: Path
    pid: int
    start_ticks: int
    part: int
    uid: int
    state: EndpointState
    reason: str | None = None
    """Why it is not live."""


def discover(
    environ: Mapping[str, str] | None = None, *, trusted: Iterable[int] = (), everybody: bool = False
) -> list[Endpoint]:
    """List the sockets in the runtime folders, in search order.

    Args:
        environ: Environment that names the folders; the process's own by default.
        trusted: Uids besides the caller's own whose sockets may be used.
        everybody: Also look into other users' folders (they are listed as foreign unless trusted).
    """
    own = os.geteuid()
    allowed = {own, *trusted}
    listed = list(paths.folders(environ))
    others = {uid for uid in allowed if uid != own} | (_uids_with_folders() if everybody else set())
    for uid in sorted(others - {own}):
        listed.extend(folder for folder in paths.folders({}, uid=uid) if folder not in listed)
    return [endpoint for folder in listed for endpoint in sockets_in(folder, allowed)]


def _uids_with_folders() -> set[int]:
    """Uids that have a folder at one of the fixed places."""
    places = [(Path("/run/user"), ""), (Path("/run"), "kvctl-"), (Path("/tmp"), "kvctl-")]  # noqa: S108 - only looked at
    found: set[int] = set()
    for place, prefix in places:
        try:
            names = os.listdir(place)  # noqa: PTH208 - names, not paths
        except OSError:
            continue
        found.update(
            int(uid)
            for name in names
            if name.startswith(prefix) and (uid := name[len(prefix) :]).isascii() and uid.isdigit()
        )
    return found


def sockets_in(
    folder: Path, allowed: set[int], parse: Callable[[str], paths.SocketName | None] = paths.SocketName.parse
) -> list[Endpoint]:
    """List what a folder holds, whatever its state; nothing where it cannot be read.

    Args:
        folder: Where to look.
        allowed: Uids whose sockets may be used.
        parse: Tells who listens from the name of a file; None for one that is no such socket.
    """
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
        owner = os.lstat(folder).st_uid
    except OSError:
        return []
    found = []
    for name in names:
        parsed = parse(name)
        if parsed is None:
            continue
        try:
            entry = os.lstat(folder / name)
        except OSError:
            continue
        state, reason = _state_of(folder, owner, entry, parsed, allowed)
        found.append(
            Endpoint(
                path=folder / name,
                pid=parsed.pid,
                start_ticks=parsed.start_ticks,
                part=parsed.part,
                uid=entry.st_uid,
                state=state,
                reason=reason,
            )
        )
    return found


def _state_of(
    folder: Path, owner: int, entry: os.stat_result, name: paths.SocketName, allowed: set[int]
) -> tuple[EndpointState, str | None]:
    ticks = paths.start_ticks(name.pid)
    if entry.st_uid not in allowed:
        return EndpointState.FOREIGN, f"it belongs to uid {entry.st_uid}"
    if not stat.S_ISSOCK(entry.st_mode):
        return EndpointState.UNSAFE, "it is not a socket"
    fault = paths.fault_of(folder, uid=owner) if owner in allowed else f"its folder belongs to uid {owner}"
    if fault is not None:
        return EndpointState.UNSAFE, f"folder {folder}: {fault}"
    if ticks is None:
        return EndpointState.DEAD, f"process {name.pid} is gone"
    if ticks != name.start_ticks:
        return EndpointState.DEAD, f"process {name.pid} is another program now"
    return EndpointState.LIVE, None


def remove_leftover(endpoint: Endpoint) -> None:
    """Remove the socket of a dead engine.

    Raises:
        RefusedError: Its process lives, or it is not ours.
    """
    if endpoint.state is not EndpointState.DEAD or endpoint.uid != os.geteuid():
        raise RefusedError(f"{endpoint.path} is not a leftover of yours", why=endpoint.reason or "its engine lives")
    endpoint.path.unlink(missing_ok=True)


def endpoint_at(path: Path, *, trusted: Iterable[int] = ()) -> Endpoint:
    """Describe the socket that an operator named.

    Raises:
        TargetError: There is none, or its name is not one of ours.
    """
    for endpoint in sockets_in(path.parent, {os.geteuid(), *trusted}):
        if endpoint.path.name == path.name:
            return endpoint
    raise TargetError(
        f"no engine socket at {path}",
        why=_why_none(path),
        next_step="to list the engines of this host: kvctl ps",
    )


def _why_none(path: Path) -> str:
    """Say why a path is no socket of ours."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "there is no such socket"
    except PermissionError:
        return "its folder is closed to you"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if stat.S_ISDIR(mode):
        return "it is a folder: name a socket in it, or set KVCTL_RUNTIME_DIR to it"
    if not stat.S_ISSOCK(mode):
        return "it is not a socket"
    return (
        "its name is not one that kvctl gives, engine-PID-START.sock, which tells whose it is: it was renamed, or "
        "another program made it"
    )
