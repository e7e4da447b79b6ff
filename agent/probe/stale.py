"""What is done when the weights change: nothing (it is reported), or all pages of older weights are taken out.

Invariant: acts only where the operator asked for it when the engine was started; in slices at safe points, and nothing
without the audit log. Engine's thread.
"""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from .safepoint import AGAIN, Job

if TYPE_CHECKING:
    from .lifecycle import Probe

VARIABLE = "KVCTL_ON_WEIGHTS_CHANGE"
"""``invalidate``, or anything else: report."""
INVALIDATE = "invalidate"

SLICE_PAGES = 8192
"""Pages looked at in one safe point: about half a millisecond."""

DEADLINE_S = 600.0
"""An engine that passes no safe point for so long keeps its pages; they are reported as stale, as ever."""


class StaleRemoval:
    """Take pages of older weights out of the cache, after every change.

    Args:
        probe: Whose engine it is; its feed is on.
    """

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._cursor = 0
        self._removed = 0
        self._job: Job | None = None
        self._running: set[str] = set()

    def changed(self, running: Collection[str]) -> None:
        """The weights changed: look through the whole pool from its first page on.

        Args:
            running: Requests that are computed with the old ones, in part.
        """
        self._cursor = 0
        self._running.update(running)
        if self._job is None:
            self._removed = 0
            submit = self._probe.safe_point.submit
            self._job = submit(self._slice, label="stale pages", deadline_s=DEADLINE_S, done=self._done)

    def _slice(self) -> Any:
        probe = self._probe
        if self._cursor == 0:
            self._write("begun")
            # Not only those that hold a page with a key: what another fills next is half of the older weights.
            hold_back = getattr(probe.adapter, "hold_back", None)
            if hold_back is not None:
                hold_back(self._running)
            self._running.clear()
        stop = min(self._cursor + SLICE_PAGES, probe.pages)
        pages = probe.feed.stale_pages(self._cursor, stop)
        if pages:
            # The requests that hold such pages go on, and what they register on top is taken out as well.
            removed = probe.adapter.evict(probe.adapter.keys_of(pages), quarantine=True)
            self._removed += sum(removed.values())
            probe.changes.took("stale", sum(removed.values()))
        self._cursor = stop
        if stop < probe.pages:
            return AGAIN
        self._write("done")
        return None

    def _done(self, job: Job) -> None:
        self._job = None
        if job.error is not None:
            self._probe.guard.fault(job.error, self._slice)

    def _write(self, result: str) -> None:
        self._probe.audit_log.write(
            os.getuid(), os.getpid(), "weights change", {"removed": self._removed, "result": result}
        )


def removal_of(probe: "Probe", environ: Mapping[str, str]) -> StaleRemoval | None:
    """Return what the operator asked for."""
    return StaleRemoval(probe) if environ.get(VARIABLE) == INVALIDATE else None
