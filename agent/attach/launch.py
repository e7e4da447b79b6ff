"""Start an engine with the agent in it: ``kvctl run -- vllm serve ...``.

Invariant: the engine becomes this very process (exec): signals, exit status and terminal are its own; only the
environment differs. Called by the command line.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .. import paths
from ..errors import TargetError, UsageError


def environment(
    environ: Mapping[str, str], *, allow_changes: bool, log: Path | None = None, on_weights_change: str | None = None
) -> dict[str, str]:
    """Return the engine's environment.

    Args:
        environ: The caller's environment.
        allow_changes: The agent may change things (invalidate, options).
        log: File that the agent writes its lines to.
        on_weights_change: ``report`` or ``invalidate``; None: as the caller's environment says.
    """
    changed = {**environ, "KVCTL_AGENT": "1"}
    changed.pop("KVCTL_ALLOW_CHANGES", None)
    if allow_changes:
        changed["KVCTL_ALLOW_CHANGES"] = "1"
    if log is not None:
        changed["KVCTL_LOG"] = str(log.absolute())
    if on_weights_change is not None:
        changed["KVCTL_ON_WEIGHTS_CHANGE"] = on_weights_change
    plugins = environ.get("VLLM_PLUGINS")
    if plugins is not None and "kvctl" not in plugins.split(","):
        # An explicit list of plugins would leave ours out silently.
        changed["VLLM_PLUGINS"] = f"{plugins},kvctl" if plugins else "kvctl"
    return changed


def find_program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a program.

    Raises:
        UsageError: There is none.
    """
    found = shutil.which(name, path=environ.get("PATH"))
    if found is None:
        raise UsageError(
            f"there is no program {name!r}",
            why="it is not on PATH; the engine has an environment of its own",
            next_step="put the engine environment's bin folder on PATH, or give the whole path of the program",
        )
    return found


def run(
    command: Sequence[str],
    *,
    allow_changes: bool = False,
    log: Path | None = None,
    on_weights_change: str | None = None,
) -> NoReturn:
    """Become the engine.

    Raises:
        UsageError: There is no command, or no such program.
        TargetError: No runtime folder can be used, or the kernel refuses to start it.
    """
    if not command:
        raise UsageError("there is nothing to run", next_step="kvctl run -- vllm serve MODEL")
    env = environment(os.environ, allow_changes=allow_changes, log=log, on_weights_change=on_weights_change)
    program = find_program(command[0], env)
    # Fails now, with a clear sentence, rather than silently inside the engine.
    paths.own_folder(env)
    try:
        os.execve(program, list(command), env)  # noqa: S606 - this is the purpose
    except OSError as error:
        raise TargetError(f"{program} cannot be started", why=(error.strerror or str(error)).lower()) from error
