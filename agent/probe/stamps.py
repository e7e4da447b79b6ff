"""Stamps: which registration gave each page its key, with one hook a registration call and one word a page.

Invariant: a page's stamp is ``step << 20 | call`` of its last registration; it is meaningless without a key, so
removals need no hook. Bounded memory: one word a page, and the calls of one step. Called by the feed on the engine's
thread.

A page belongs to the schedule call that computes its last token. That is the call that registers it, unless the
request had computed the page already (the step before, sub-range *late*); pages registered while an output is processed
belong to that output's step; pages of a finished load are there at once (design: architecture.md, "Commit fence").
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from ..feedformat import CALL_MASK, LATE_CALLS, LOADED_CALLS, STEP_SHIFT, UPDATE_CALLS
from .port import PoolPort, Registration, Remember, pages_of

if TYPE_CHECKING:
    from .adapters import Adapters

EVENT_LIMIT = 1 << 20
"""Registered pages that are kept for the next cut."""

LOG_LIMIT = 1 << 16
"""Calls that are kept when nobody folds them. A step has about a hundred."""

WEIGHTS_LIMIT = 64
"""Changes of weights that are remembered."""


Run = tuple[int, bytes, int]
"""Pages of one registration that follow each other in one chain: stamp, first 8 bytes of the key before the first page,
number of pages."""

NO_PARENT = bytes(8)
GROUP_BYTES = 4


class Fresh:
    """Registrations since the last cut: pages and their runs. Filled while somebody follows the feed."""

    def __init__(self) -> None:
        self.pages: list[Any] = []
        self.runs: list[Run] = []

    def clear(self) -> None:
        """Forget them."""
        self.pages.clear()
        self.runs.clear()


class Stamps:
    """One stamp a page, given by the hooks, and the log of registration calls for what is worked out of them later."""

    def __init__(self, port: PoolPort) -> None:
        self._port = port
        self.hash_bytes = port.key_bytes - GROUP_BYTES
        """Bytes of a hash: a key without its group."""
        self.page_stamps = array("Q", bytes(8 * port.pages))
        self.log: deque[Registration] = deque(maxlen=LOG_LIMIT)
        self.taken = 0
        """Calls that were folded, since the start."""
        self.mark = 0
        """Stamp of the last registration of the current phase, or the one before its first."""
        self.late: int | None = None
        """Base of the stamps of pages that were computed before their registration; None: there are none now."""
        self.lost = False
        """Calls were dropped because nobody folded them: tables of readers are wrong."""
        self.dropped = False
        """Calls were dropped at some time: what is remembered of keys is not all of them."""
        self.fresh: Fresh | None = None
        """Where registrations go for the next cut; None while nobody follows. See :meth:`follow`."""
        self.keep = False
        self.folded: list[Registration] = []
        """Folded calls of the current phase, for the commit fence."""
        self.remember: Remember | None = None
        """Where registered keys are remembered; None: nowhere."""
        self.adapters: Adapters | None = None
        """Where it is kept which adapter computed a page; None: this engine serves none, or nobody asked."""
        self.committed = 0
        """Last step whose output was processed."""
        self.weights: list[int] = []
        """Stamps after which pages were computed with other weights than before."""
        self._step = 0
        self._loaded = 0
        self._saved = 0
        self._special: dict[int, list[tuple[int, int, list[Any]]]] = {}
        """Parts of the calls in the log that were not stamped as a whole, by the stamp of the call."""

    def follow(self, fresh: Fresh | None) -> None:
        """Collect registrations for cuts from now on, or, with None, no longer."""
        self.fold()
        self.fresh, self.keep = fresh, fresh is not None

    # ---------------------------------------------------------------- phases

    def begin_step(self, step: int) -> None:
        """Registrations from now on belong to schedule call ``step``."""
        if self.log:
            self.fold()
        self.folded.clear()
        self._step = step
        self.mark = step << STEP_SHIFT
        self.late = (max(step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def begin_update(self, step: int) -> None:
        """Registrations from now on belong to ``step``, whose output is being processed."""
        if self.log:
            self.fold()
        if self.folded:
            self.folded.clear()
        self._saved = self.mark
        self.mark = (step << STEP_SHIFT) + UPDATE_CALLS
        self.late = None

    def end_update(self, step: int) -> None:
        """The output of ``step`` was processed: its pages are committed."""
        if self.log:
            self.fold()
        self.committed = max(self.committed, step)
        self.mark = self._saved
        self.late = (max(self._step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def note_weights_change(self, step: int) -> None:
        """Pages of calls after ``step`` are computed with new weights."""
        self.weights.append((step + 1) << STEP_SHIFT)
        del self.weights[:-WEIGHTS_LIMIT]

    # ------------------------------------------------------------ registrations

    def note(
        self,
        name: str | None,
        request: Any,
        pages: Sequence[Any],
        mask: Sequence[bool] | None,
        start: int,
        size: int,
        computed: int,
        status: Any,
        group: int,
        hashes: bytes,
    ) -> None:
        """Stamp the pages of one registration call and log it; a hook may do the same by itself where it is plain."""
        self.mark = mark = self.mark + 1
        entry = (mark, name, request, pages, None, mask, start, size, computed, status, group, hashes)
        if name is None:
            source, target = self._port.ids(pages)
            self.page_stamps[target] = self.page_stamps[source]
        elif self.late is not None and start + size <= computed:
            parts = self._special[mark] = list(self._parts(entry))
            for part_mark, _, part in parts:
                self._port.stamp(part, self.page_stamps, part_mark)
        else:
            self._port.stamp(pages if mask is None else compress(pages, mask), self.page_stamps, mark)
        self.log.append(entry)

    def registered_since(self, mark: int) -> frozenset[int]:
        """Return the pages that were registered in this phase after the call with this stamp, whatever their own is."""
        port, calls = self._port, [call for call in (*self.folded, *self.log) if call[0] > mark]
        return frozenset(page for call in calls for page in port.ids(pages_of(call)))

    def fold(self) -> None:
        """Work out of the log what is needed of it: keys to remember, rows of the next cut, owners of pages."""
        log = self.log
        if not log:
            return
        entries = list(log)
        log.clear()
        self.taken += len(entries)
        if len(entries) == LOG_LIMIT:
            self.lost = self.dropped = True
        self.folded += entries
        if self.remember is not None:
            marks, *_, groups, hashes = zip(*entries, strict=True)
            self.remember(marks, tuple(map(len, hashes)), groups, b"".join(hashes))
        if self.fresh is not None:
            self._note_runs(entries, self.fresh)
        if self._special:
            self._special.clear()
        if self.adapters is not None:
            self.adapters.note(entries, self.page_stamps)

    def _note_runs(self, entries: Sequence[Registration], fresh: Fresh) -> None:
        """Note for the next cut what was registered."""
        if len(fresh.pages) > EVENT_LIMIT:  # nobody cuts
            fresh.clear()
            self.lost = True
        parent, special = self._port.parent, self._special
        pages, runs = fresh.pages, fresh.runs
        for entry in entries:
            mark, name, request, seen, _, mask, start, size, computed, _, _, _ = entry
            if name is None:
                pages.append(seen[1])
                runs.append((self.page_stamps[self._port.ids(seen[1:])[0]], NO_PARENT, 1))
            elif len(seen) == 1 and mask is None and start + size > computed:
                pages.append(seen[0])
                runs.append((mark, parent(request, start), 1))
            else:
                for part_mark, tokens, part in special.get(mark) or self._parts(entry):
                    pages += part
                    runs.append((part_mark, parent(request, tokens), len(part)))

    def _parts(self, entry: Registration) -> Iterable[tuple[int, int, list[Any]]]:
        """Cut one call where the stamp changes and where its chain has gaps.

        Yields:
            Stamp, tokens before the first page, pages.
        """
        stamp, _, _, seen, _, mask, start, size, computed, status, _, _ = entry
        pages = list(seen)
        wanted = [True] * len(pages) if mask is None else list(mask)
        late = 0
        mark = stamp
        if self.late is not None and start + size <= computed:
            late = min(max((computed - start) // size, 0), len(pages))
            mark = self._late_stamp(stamp, status)
        for begin, end, part_stamp in ((0, late, mark), (late, len(pages), stamp)):
            for low, high in self._spans(pages, wanted, begin, end):
                yield part_stamp, start + low * size, pages[low:high]

    def _late_stamp(self, stamp: int, status: Any) -> int:
        if self._port.loaded(status):
            self._loaded = (self._loaded + 1) & CALL_MASK
            return (self.committed << STEP_SHIFT) + LOADED_CALLS + self._loaded
        return (self.late or 0) + (stamp & CALL_MASK)

    def _spans(self, pages: list[Any], wanted: list[bool], begin: int, end: int) -> Iterable[tuple[int, int]]:
        null = self._port.null_page
        if null is not None:
            ids = self._port.ids(pages)
            if null in ids:
                wanted = [want and page != null for want, page in zip(wanted, ids, strict=True)]
        position = begin
        while True:
            try:
                low = wanted.index(True, position, end)
            except ValueError:
                return
            try:
                position = wanted.index(False, low, end)
            except ValueError:
                position = end
            yield low, position
