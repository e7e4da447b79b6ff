"""Which processes stand for an engine, and why one that an operator named does not.

Invariant: looks at ``/proc`` only. A process above an engine stands for it as long as everything in between runs the
same program (the API server and a launcher do; a shell, a terminal or a supervisor does not), so that no number that
happens to be above an engine names it. Called by :mod:`agent.session` and ``kvctl ps``.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from . import paths
from .discovery import Endpoint
from .errors import TargetError

_RUN = "`kvctl run -- ...`"
_LIST = "kvctl ps lists those that have an agent"


def family(pid: int) -> tuple[int, ...]:
    """Return the processes that stand for an engine: itself, then those above it that run the same program.

    Where nobody may see which program the engine runs, its parent alone counts.
    """
    own, above = _program(pid), paths.ancestors(pid)
    if own is None:
        return (pid, *above[:1])
    known = [pid]
    for parent in above:
        if _program(parent) != own:
            break
        known.append(parent)
    return tuple(known)


def standing_for(pid: int, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the engines that a process stands for: its own, or else those below it."""
    return [item for item in endpoints if item.pid == pid] or [item for item in endpoints if pid in family(item.pid)]


def stranger(pid: int, live: Sequence[Endpoint]) -> TargetError:
    """Say why a process stands for no engine, and what to do about it."""
    below = [item.pid for item in live if pid in paths.ancestors(item.pid)]
    if below:
        listed = ", ".join(map(str, below))
        return TargetError(
            f"process {pid} is no engine",
            why=f"it runs {_named(pid)}, and an engine runs somewhere below it",
            next_step=f"name the engine itself: --pid {listed}"
            if len(below) == 1
            else f"name one of the engines: {listed}",
        )
    above = [item.pid for item in live if item.pid in paths.ancestors(pid)]
    if above:
        return TargetError(
            f"process {pid} is no engine", why=f"it belongs to engine {above[0]}", next_step=f"--pid {above[0]}"
        )
    why, next_step = _absence(pid)
    return TargetError(f"process {pid} has no agent", why=why, next_step=next_step)


def _absence(pid: int) -> tuple[str, str]:
    """Why a process without a socket has none, as far as its environment and the runtime folders tell."""
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 - a string is all there is
        return "there is no such process", _LIST
    # A process that gave itself a title (engine cores do) has overwritten its environment: its parent's is the same.
    environ = next((seen for one in family(pid) if "KVCTL_AGENT" in (seen := _environ(one))), {})
    agent = environ.get("KVCTL_AGENT")
    if agent == "0":
        return "it was started with KVCTL_AGENT=0, which switches the agent off", f"restart it by {_RUN}"
    own, theirs = os.environ.get("KVCTL_RUNTIME_DIR"), environ.get("KVCTL_RUNTIME_DIR")
    if agent == "1" and theirs != own:
        where = "without KVCTL_RUNTIME_DIR" if theirs is None else f"with KVCTL_RUNTIME_DIR={theirs}"
        set_it = "unset KVCTL_RUNTIME_DIR" if theirs is None else f"export KVCTL_RUNTIME_DIR={shlex.quote(theirs)}"
        return f"it was started {where}, so its agent listens elsewhere", f"{set_it}, then try again"
    if (off := _off_file()) is not None:
        return (
            f"the file {off} switches every agent off",
            f"rm {shlex.quote(str(off))}, then restart the engine by {_RUN}: an agent that is off stays off",
        )
    if (deaf := paths.deaf()) is not None:
        return f"no agent can listen here: {deaf}", "see kvctl doctor"
    if agent == "1":
        why = "it was started with an agent, which was switched off, has failed, or is not ready yet"
        return why, f"its log says which, in lines with kvctl; to have the agent back restart the engine by {_RUN}"
    return "no socket in the runtime folders carries its pid", f"start the engine by {_RUN}; {_LIST}"


def _off_file() -> Path | None:
    return next((at / paths.KILL_FILE for at in paths.folders() if paths.switched_off(at) is not None), None)


def _program(pid: int) -> str | None:
    """Return the program that a process runs; None where nobody may see it."""
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - an executable that was replaced is no path any more
    except OSError:
        return None


def _named(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or "another program"
    except OSError:
        return "another program"


def _environ(pid: int) -> dict[str, str]:
    """Return what a process was started with; empty where nobody may see it."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (line.decode(errors="replace").partition("=") for line in lines if b"=" in line)
    return {name: value for name, _, value in pairs}
