"""The probes of this process, and what a fork does to them.

Invariant: a forked child has none: its hooks are passages and its copies of the parent's sockets are closed. Called by
``lifecycle``.
"""

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lifecycle import Probe

_running: "weakref.WeakSet[Probe]" = weakref.WeakSet()
_watching = False


def running() -> list["Probe"]:
    """Return the probes of this process."""
    return list(_running)


def watch(probe: "Probe") -> None:
    """Abandon this probe in children that are forked from now on."""
    global _watching  # noqa: PLW0603 - such a hook cannot be taken back, so it is installed once
    _running.add(probe)
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_abandon_all)


def forget(probe: "Probe") -> None:
    """The probe has stopped."""
    _running.discard(probe)


def _abandon_all() -> None:
    for probe in running():
        probe.guard.attempt(probe.abandon)
    _running.clear()
