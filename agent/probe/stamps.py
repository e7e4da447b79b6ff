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
from typing import TYPE_CHECKING, Any

from ..feedformat import CALL_MASK, LATE_CALLS, LOADED_CALLS, STEP_SHIFT, UPDATE_CALLS
from .port import GROUP_BYTES, PoolPort, Registered, Registration, Remember, Special, Words

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


def stamp_each(
    port: PoolPort, calls: Sequence[Registration], first: int, stamps: Words, special: Special, *, late: bool
) -> Registered:
    """Do what :meth:`PoolPort.stamp_calls` does, call by call."""
    lengths: list[int] = []
    hashes: list[bytes] = []
    for mark, call in enumerate(calls, first + 1):
        if call[0] is None or (late and call[4] + call[5] <= call[6]):
            special(mark, call)
            lengths.append(0)
            continue
        pages = call[2]
        port.stamp(pages, stamps, mark)
        hashes.append(b"".join(port.hashes(call)))
        lengths.append(len(hashes[-1]))
    return lengths, [call[-1] for call in calls], b"".join(hashes)


def null_name(port: PoolPort) -> int:
    """Return the name of the page that means "no page"; -1 where there is none."""
    page = port.null_page
    return -1 if page is None else next(iter(port.names(port.take(page, page + 1))), -1)


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
        self._null_name = null_name(port)
        self.page_stamps = array("Q", bytes(8 * port.pages))
        self.log: deque[Registration] = deque(maxlen=LOG_LIMIT)
        self.taken = 0
        """Calls that were folded, since the start."""
        self.lost = False
        """Calls were dropped because nobody folded them: tables of readers are wrong."""
        self.dropped = False
        """Calls were dropped at some time: what is remembered of keys is not all of them."""
        self.fresh: Fresh | None = None
        """Where registrations go for the next cut; None while nobody follows. See :meth:`follow`."""
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
        self._mark = 0  # of the last folded call of the current phase, or the one before its first
        self._late: int | None = None
        self._loaded = 0
        self._saved = 0
        self._parts_of: dict[int, list[tuple[int, int, list[Any]]]] = {}  # of the special calls of one fold

    @property
    def hash_bytes(self) -> int:
        """Bytes of a hash: a key without its group."""
        return self._port.key_bytes - GROUP_BYTES

    @property
    def mark(self) -> int:
        """Stamp of the last registration of the current phase, folded or not, or the one before its first."""
        return self._mark + len(self.log)

    def follow(self, fresh: Fresh | None) -> None:
        """Collect registrations for cuts from now on, or, with None, no longer."""
        self.fold()
        self.fresh = fresh

    # ---------------------------------------------------------------- phases

    def begin_step(self, step: int) -> None:
        """Registrations from now on belong to schedule call ``step``."""
        if self.log:
            self.fold()
        self.folded.clear()
        self._step = step
        self._mark = step << STEP_SHIFT
        self._late = (max(step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def begin_update(self, step: int) -> None:
        """Registrations from now on belong to ``step``, whose output is being processed."""
        if self.log:
            self.fold()
        self.enter_update(step)

    def enter_update(self, step: int) -> None:
        """What is in the log belongs to the update of ``step``, too."""
        self.folded.clear()
        self._saved = self._mark
        self._mark = (step << STEP_SHIFT) + UPDATE_CALLS
        self._late = None

    def end_update(self, step: int) -> None:
        """The output of ``step`` was processed: its pages are committed."""
        if self.log:
            self.fold()
        self.committed = max(self.committed, step)
        self._mark = self._saved
        self._late = (max(self._step - 1, 0) << STEP_SHIFT) + LATE_CALLS

    def note_weights_change(self, step: int) -> None:
        """Pages of calls after ``step`` are computed with new weights."""
        self.weights.append((step + 1) << STEP_SHIFT)
        del self.weights[:-WEIGHTS_LIMIT]

    # ------------------------------------------------------------------ fold

    def fold(self) -> None:
        """Give every page in the log its stamp, in the order of the calls.

        The log is emptied at the end: what fails here is done again, in the same phase, at the next fold.
        """
        log = self.log
        if not log:
            return
        entries = list(log)
        first, late = self._mark, self._late is not None
        lengths, groups, hashes = self._port.stamp_calls(entries, first, self.page_stamps, self._special, late=late)
        if self.remember is not None and hashes:
            self.remember(range(first + 1, first + 1 + len(entries)), lengths, groups, hashes)
        if self.fresh is not None:
            self._note_runs(first, entries, self.fresh)
        if self._parts_of:
            self._parts_of.clear()
        if self.adapters is not None:
            self.adapters.note(entries, self.page_stamps)
        if len(entries) == LOG_LIMIT:
            self.lost = self.dropped = True
        self._mark += len(entries)
        self.folded.append((first, entries))
        self.taken += len(entries)
        log.clear()

    def registered_since(self, mark: int) -> frozenset[int]:
        """Return the pages that were registered in this phase after the call with this stamp, whatever their own is."""
        self.fold()
        later = [call for first, calls in self.folded for number, call in enumerate(calls, first + 1) if number > mark]
        return frozenset(page for call in later for page in self._port.ids(call[2]))

    def _special(self, mark: int, entry: Registration) -> None:
        """Stamp the pages of a move, or of a call some of whose pages were computed before."""
        if entry[0] is None:
            source, target = self._port.ids(entry[2])
            self.page_stamps[target] = self.page_stamps[source]
            return
        port = self._port
        parts = self._parts_of[mark] = list(self._parts(mark, entry))
        for part_mark, _, pages in parts:
            port.stamp(pages, self.page_stamps, part_mark)
        if self.remember is not None and parts:
            named = zip(port.hashes(entry), port.ids(entry[2]), strict=True)
            hashes = b"".join([known for known, page in named if page != port.null_page])
            self.remember((mark,), (len(hashes),), (entry[-1],), hashes)

    def _note_runs(self, first: int, entries: Sequence[Registration], fresh: Fresh) -> None:
        """Note for the next cut what has just been stamped."""
        if len(fresh.pages) > EVENT_LIMIT:  # nobody cuts
            fresh.clear()
            self.lost = True
        parent, parts_of = self._port.parent, self._parts_of
        pages, runs = fresh.pages, fresh.runs
        for mark, entry in enumerate(entries, first + 1):
            name, request, seen, places, start, size, computed, _, _ = entry
            if name is None:
                pages.append(seen[1])
                runs.append((self.page_stamps[self._port.ids(seen[1:])[0]], NO_PARENT, 1))
            elif len(seen) == 1 and places is None and start + size > computed:
                pages.append(seen[0])
                runs.append((mark, parent(request, start), 1))
            else:
                for part_mark, tokens, part in parts_of.get(mark) or self._parts(mark, entry):
                    pages += part
                    runs.append((part_mark, parent(request, tokens), len(part)))

    def _parts(self, stamp: int, entry: Registration) -> Iterable[tuple[int, int, list[Any]]]:
        """Cut one call where the stamp changes and where its chain has gaps.

        Yields:
            Stamp, tokens before the first page, pages.
        """
        _, _, pages, places, start, size, computed, *_ = entry
        late = self._late is not None and start + size <= computed
        if not late and self._null_name not in self._port.names(pages):
            if places is None:
                yield stamp, start, list(pages)
                return
            begin = 0
            for end in range(1, len(places) + 1):
                if end == len(places) or places[end] != places[end - 1] + 1:
                    yield stamp, start + places[begin] * size, list(pages[begin:end])
                    begin = end
            return
        yield from self._uneven_parts(stamp, entry, late=late)

    def _uneven_parts(self, stamp: int, entry: Registration, *, late: bool) -> Iterable[tuple[int, int, list[Any]]]:
        """Do that for a call with pages that were computed before, or with a null page among them."""
        _, _, pages, places, start, size, computed, status, _ = entry
        null, ids = self._port.null_page, self._port.ids(pages)
        before, mark = ((computed - start) // size, self._late_stamp(stamp, status)) if late else (0, stamp)
        held = zip(range(len(ids)) if places is None else places, ids, pages, strict=True)
        part: list[Any] = []
        begin = end = 0
        for place, page_id, page in held:
            if part and (place != end or place == before or page_id == null):
                yield mark if begin < before else stamp, start + begin * size, part
                part = []
            if page_id != null:
                begin, end = begin if part else place, place + 1
                part.append(page)
        if part:
            yield mark if begin < before else stamp, start + begin * size, part

    def _late_stamp(self, stamp: int, status: Any) -> int:
        if self._port.loaded(status):
            self._loaded = (self._loaded + 1) & CALL_MASK
            return (self.committed << STEP_SHIFT) + LOADED_CALLS + self._loaded
        return (self._late or 0) + (stamp & CALL_MASK)
