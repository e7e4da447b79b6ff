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
from .port import PoolPort, Registration, Remember

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
    """Fold the log of registration calls into one stamp a page."""

    def __init__(self, port: PoolPort) -> None:
        self._port = port
        self.page_stamps = array("Q", bytes(8 * port.pages))
        self.log: deque[Registration] = deque(maxlen=LOG_LIMIT)
        self.lost = False
        """Calls were dropped because nobody folded them: tables of readers are wrong."""
        self.dropped = False
        """Calls were dropped at some time: what is remembered of keys is not all of them."""
        self.fresh: Fresh | None = None
        """Where registrations go for the next cut; None while nobody follows."""
        self.folded: list[tuple[int, Sequence[Registration]]] = []
        """Folded calls of the current phase with the stamp before the first, for the commit fence."""
        self.remember: Remember | None = None
        """Where registered keys are remembered; None: nowhere."""
        self.adapters: Adapters | None = None
        """Where it is kept which adapter computed a page; None: this engine serves none, or nobody asked."""
        self.committed = 0
        """Last step whose output was processed."""
        self.weights: list[int] = []
        """Stamps after which pages were computed with other weights than before."""
        self._step = 0
        self._base = 0
        self._calls = 0
        self._late: int | None = None
        self._loaded = 0
        self._saved = 0

    @property
    def latest(self) -> int:
        """Stamp of the last folded registration of the current phase, or the one before its first."""
        return self._base + self._calls

    # ---------------------------------------------------------------- phases

    def begin_step(self, step: int) -> None:
        """Registrations from now on belong to schedule call ``step``."""
        if self.log:
            self.fold()
        self.folded.clear()
        self._step = step
        self._base = step << STEP_SHIFT
        self._calls = 0
        self._late = (max(step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def begin_update(self, step: int) -> None:
        """Registrations from now on belong to ``step``, whose output is being processed."""
        if self.log:
            self.fold()
        self.enter_update(step)

    def enter_update(self, step: int) -> None:
        """What is in the log belongs to the update of ``step``, too."""
        self.folded.clear()
        self._saved = self._calls
        self._base = (step << STEP_SHIFT) + UPDATE_CALLS
        self._calls = 0
        self._late = None

    def end_update(self, step: int) -> None:
        """The output of ``step`` was processed: its pages are committed."""
        if self.log:
            self.fold()
        self.committed = max(self.committed, step)
        self._base = self._step << STEP_SHIFT
        self._calls = self._saved
        self._late = (max(self._step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def note_weights_change(self, step: int) -> None:
        """Pages of calls after ``step`` are computed with new weights."""
        self.weights.append((step + 1) << STEP_SHIFT)
        del self.weights[:-WEIGHTS_LIMIT]

    # ------------------------------------------------------------------ fold

    def fold(self) -> None:
        """Give every page in the log its stamp, in the order of the calls."""
        log = self.log
        if not log:
            return
        entries = list(log)
        log.clear()
        if len(entries) == LOG_LIMIT:
            self.lost = self.dropped = True
        first = self._base + self._calls
        self._calls = min(self._calls + len(entries), CALL_MASK)
        self.folded.append((first, entries))
        fresh = self.fresh
        if fresh is not None and len(fresh.pages) > EVENT_LIMIT:  # nobody cuts
            fresh.clear()
            self.lost = True
        if fresh is None:
            self._fold_stamps(first, entries)
        else:
            self._fold_runs(first, entries, fresh)
        if self.adapters is not None:
            self.adapters.note(entries, self.page_stamps)

    def _fold_stamps(self, first: int, entries: list[Registration]) -> None:
        late = self._late is not None
        store, stamps = self._port.stamp, self.page_stamps
        pages: list[Any] = []
        sizes: list[int] = []
        for mark, entry in enumerate(entries, first + 1):
            name, _, seen, mask, start, size, computed, _ = entry
            if start + size <= computed and (late or name is None):
                self._stamp_special(mark, entry)
                sizes.append(0)
                continue
            if mask is not None:
                seen = list(compress(seen, mask))
            store(seen, stamps, mark)
            pages += seen
            sizes.append(len(seen))
        if pages and self.remember is not None:
            self.remember(range(first + 1, first + 1 + len(sizes)), sizes, self._port.keys(pages))

    def _stamp_special(self, stamp: int, entry: Registration) -> None:
        """A move, or pages that were computed before."""
        if entry[0] is None:
            self._move(entry[2])
        for mark, _, part in self._parts(stamp, entry, split=False):
            self._port.stamp(part, self.page_stamps, mark)
            if part and self.remember is not None:
                self.remember((mark,), (len(part),), self._port.keys(part))

    def _fold_runs(self, stamp: int, entries: list[Registration], fresh: Fresh) -> None:
        parent, store = self._port.parent, self._port.stamp
        stamps = self.page_stamps
        pages, runs = fresh.pages, fresh.runs
        pages_before, runs_before = len(pages), len(runs)
        for entry in entries:
            stamp += 1
            name, request, seen, mask, start, size, computed, _ = entry
            if len(seen) == 1 and mask is None and start + size > computed:
                store(seen, stamps, stamp)
                pages.append(seen[0])
                runs.append((stamp, parent(request, start), 1))
            elif name is None:
                self._move(seen)
                pages.append(seen[1])
                runs.append((stamps[self._port.ids(seen[1:])[0]], NO_PARENT, 1))
            else:
                for mark, tokens, part in self._parts(stamp, entry, split=True):
                    store(part, stamps, mark)
                    pages += part
                    runs.append((mark, parent(request, tokens), len(part)))
        if self.remember is not None and len(pages) > pages_before:
            made = runs[runs_before:]
            keys = self._port.keys(pages[pages_before:])
            self.remember([mark for mark, _, _ in made], [count for _, _, count in made], keys)

    def _move(self, pair: Sequence[Any]) -> None:
        source, target = self._port.ids(pair)
        self.page_stamps[target] = self.page_stamps[source]

    def _parts(self, stamp: int, entry: Registration, *, split: bool) -> Iterable[tuple[int, int, list[Any]]]:
        """Cut one call where the stamp changes, and with ``split`` also where its chain has gaps.

        Yields:
            Stamp, tokens before the first page, pages.
        """
        request, _, seen, mask, start, size, computed, status = entry
        if request is None:
            return
        pages = list(seen)
        wanted = [True] * len(pages) if mask is None else list(mask)
        late = 0
        mark = stamp
        if self._late is not None and start + size <= computed:
            late = min(max((computed - start) // size, 0), len(pages))
            mark = self._late_stamp(stamp, status)
        for begin, end, part_stamp in ((0, late, mark), (late, len(pages), stamp)):
            if begin == end:
                continue
            if not split:
                yield part_stamp, start + begin * size, list(compress(pages[begin:end], wanted[begin:end]))
                continue
            for low, high in self._spans(pages, wanted, begin, end):
                yield part_stamp, start + low * size, pages[low:high]

    def _late_stamp(self, stamp: int, status: Any) -> int:
        if self._port.loaded(status):
            self._loaded = (self._loaded + 1) & CALL_MASK
            return (self.committed << STEP_SHIFT) + LOADED_CALLS + self._loaded
        return (self._late or 0) + (stamp & CALL_MASK)

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
