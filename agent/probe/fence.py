"""The commit fence: which registered pages were never computed, and what was computed on top of them.

Invariant: uses only which requests a schedule call really scheduled. A page that was registered by a call which then
did not schedule its request is never computed; pages of a request that reused such a page are tainted, and so on.
Costs a set difference a step while there is nothing of that kind. Called by the feed on the engine's thread. The same
holds once the weights have changed: pages of the old ones are bad, and who reuses them carries that on.

Why it is needed: the engine registers keys when it allocates. Under priority scheduling it can preempt a request that
it has already scheduled in the same call; the keys stay (upstream issue 57580).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..feedformat import CALL_MASK
from .port import PoolPort, Registration
from .stamps import Stamps

PRUNE_AT = 1024
"""Bad pages that are remembered before dead ones are looked for."""

PRUNE_STEPS = 256
"""Steps between two looks for dead ones."""

PRUNE_PAGES = 512
"""Bad pages looked at in one step of such a look: about 0.3 ms, each lies somewhere else in memory."""

LOOK_PAGES = 8192
"""Pages looked at then for older weights: about 0.3 ms."""


class Fence:
    """Never-computed registrations and tainted pages that still carry a key."""

    def __init__(self, port: PoolPort, stamps: Stamps) -> None:
        self._port = port
        self._stamps = stamps
        self.never: dict[int, tuple[int, ...]] = {}
        """Stamp of a registration -> its pages."""
        self.tainted: dict[int, int] = {}
        """Page -> the stamp under which it is tainted."""
        self.outdated: dict[int, int] = {}
        """Page -> the stamp under which it was computed with older bytes of one adapter."""
        self.new_never: list[int] = []
        self.new_tainted: list[tuple[int, int]] = []
        """(stamp, page), not yet told to readers."""
        self._bad: dict[int, int] = {}
        self._clean: dict[str, Any] = {}
        self._carriers: dict[str, Any] = {}
        self.shrunk = False
        """Something was forgotten: readers need the whole list."""
        self._prune_at = PRUNE_AT
        self._left: list[int] = []  # bad pages that the look for dead ones has still to come to
        self._steps = 0
        self._old = 0  # pages stamped lower were computed with other weights than now; 0: there are none
        self._cursor = 0  # how far the pool was looked through for such pages
        self._old_left = False

    def note_weights_change(self, before: int, running: Iterable[str]) -> None:
        """Pages stamped below ``before`` belong to other weights, and what is computed on top of them is tainted.

        That holds for requests that reuse such a page, and for those that run on while the weights change.
        """
        self._old = before
        self._cursor, self._old_left = 0, False
        self.outdated.clear()
        self._carry(running)

    def note_adapter_change(self, pages: Mapping[int, int], requests: Iterable[str]) -> None:
        """These pages, each with its stamp, are of older bytes of one adapter, and so is what these requests hold.

        Pages of other adapters, and of none, stay as they are.
        """
        self.outdated.update(pages)
        self._bad.update(pages)
        self._prune_at = max(self._prune_at, 2 * len(self._bad))
        self._carry(requests)

    def _carry(self, requests: Iterable[str]) -> None:
        """What these running requests hold is bad, pages without a key among it; the others are looked at anew."""
        self._clean.clear()
        for request in requests:
            if tables := self._port.tables(request):
                self._carriers[request] = tables[0]

    def scheduled(self, requests: Collection[str]) -> bool:
        """Judge the registrations of a schedule call that scheduled ``requests``.

        Pages are looked at only where something is wrong; else their stamps wait for the shadow of the batch.

        Returns:
            Whether something was wrong, so that there may be news.
        """
        stamps = self._stamps
        folded = stamps.folded
        missing = {entry[0] for entry in stamps.log if entry[0] not in requests}
        if folded:
            missing.update([entry[0] for _, entries in folded for entry in entries if entry[0] not in requests])
        missing.discard(None)
        wrong = bool(missing or self._bad or self._old or self._carriers)
        if wrong:
            stamps.fold()
        if missing:
            for first, entries in folded:
                self._brand(first, entries, missing)
        if self._bad or self._old or self._carriers:
            self._follow_moves()
            self._find_carriers(requests)
            for first, entries in folded:
                self._taint(first, entries)
            self._steps += 1
            if self._left:
                self._prune_some()
            elif self._steps >= PRUNE_STEPS or len(self._bad) >= self._prune_at:
                self._begin_prune()
                if self._old:
                    self._look_for_old()
        folded.clear()
        return wrong

    def processed(self) -> None:
        """Look at the registrations that were made while an output was processed; they are folded."""
        stamps = self._stamps
        if self._bad:
            self._follow_moves()
        if self._carriers:
            for first, entries in stamps.folded:
                self._taint(first, entries)
        stamps.folded.clear()

    def _follow_moves(self) -> None:
        """A key that moved to another page took its stamp along, and what is wrong with it."""
        bad, page_stamps = self._bad, self._stamps.page_stamps
        for _, entries in self._stamps.folded:
            for entry in entries:
                if entry[0] is not None:
                    continue
                source, target = self._port.ids(entry[2])
                mark = page_stamps[target]
                if bad.get(source) != mark:
                    continue
                bad[target] = mark
                if self.tainted.get(source) == mark:
                    self.tainted[target] = mark
                    self.new_tainted.append((mark, target))
                if self.outdated.get(source) == mark:
                    self.outdated[target] = mark
                if mark in self.never:
                    self.never[mark] = (*self.never[mark], target)

    def _brand(self, first: int, entries: Sequence[Registration], missing: set[str | None]) -> None:
        page_stamps = self._stamps.page_stamps
        for stamp, entry in enumerate(entries, first + 1):
            if entry[0] not in missing:
                continue
            ids = [page for page in self._registered(entry) if page_stamps[page] == stamp]
            if not ids:
                continue
            self.never[stamp] = tuple(ids)
            self.new_never.append(stamp)
            self._bad.update(dict.fromkeys(ids, stamp))

    def _registered(self, entry: Registration) -> list[int]:
        return [page for page in self._port.ids(entry[2]) if page != self._port.null_page]

    # ----------------------------------------------------------------- taint

    def _find_carriers(self, requests: Collection[str]) -> None:
        """Look once at the tables of every newly admitted request: does it reuse a bad page?

        A table object lives from admission to preemption or end, so its identity tells admissions apart.
        """
        bad = self._bad
        page_stamps = self._stamps.page_stamps
        for request in requests:
            tables = self._port.tables(request)
            if not tables:
                continue
            mark = tables[0]
            if self._clean.get(request) is mark or self._carriers.get(request) is mark:
                continue
            found = any(
                page_stamps[page] == bad[page] and self._has_key(page)
                for table in tables
                for page in bad.keys() & self._port.ids(table)
            ) or any(map(self._holds_old, tables))
            (self._carriers if found else self._clean)[request] = mark
            (self._clean if found else self._carriers).pop(request, None)
        if len(self._clean) + len(self._carriers) > 2 * len(requests) + PRUNE_AT:
            self._forget()

    def _holds_old(self, table: Sequence[Any]) -> bool:
        """Return whether a table holds a page that was computed with other weights."""
        old, page_stamps = self._old, self._stamps.page_stamps
        if not old:
            return False
        port = self._port
        return any(
            tokens and page_stamps[page] < old for page, tokens in zip(port.ids(table), port.tokens(table), strict=True)
        )

    def stale_pages(self, start: int, stop: int) -> list[int]:
        """Return the pages ``start .. stop`` that carry a key and belong to other weights, or build on bad ones."""
        old, stamps, tainted, outdated = self._old, self._stamps.page_stamps, self.tainted, self.outdated
        tokens = self._port.tokens(self._port.take(start, stop))
        return [
            page
            for page, held in enumerate(tokens, start)
            if held and (stamps[page] < old or stamps[page] in {tainted.get(page), outdated.get(page)})
        ]

    def _look_for_old(self) -> None:
        """Look through some pages; once a whole round finds none of other weights, nothing has to be watched."""
        stop = min(self._cursor + LOOK_PAGES, self._port.pages)
        self._old_left = self._old_left or bool(self.stale_pages(self._cursor, stop))
        self._cursor = stop
        if stop == self._port.pages:
            self._forget()
            if not self._old_left and not self._carriers:
                self._old = 0
            self._cursor, self._old_left = 0, False

    def _has_key(self, page: int) -> bool:
        """Return whether a page has a key; one that was handed out again has none and still its old stamp."""
        return self._port.tokens(self._port.take(page, page + 1))[0] > 0

    def _taint(self, first: int, entries: Sequence[Registration]) -> None:
        if not self._carriers:
            return
        page_stamps = self._stamps.page_stamps
        for stamp, entry in enumerate(entries, first + 1):
            request = entry[0]
            if request is None or request not in self._carriers:
                continue
            tables = self._port.tables(request)
            if not tables or tables[0] is not self._carriers[request]:
                continue
            for page in self._registered(entry):
                mark = page_stamps[page]
                same_call = (mark ^ stamp) & CALL_MASK == 0
                if mark < self._old:  # of a batch that was on its way when the weights changed: old itself
                    continue
                if same_call and mark not in self.never and self.tainted.get(page) != mark:
                    self.tainted[page] = mark
                    self.new_tainted.append((mark, page))
                    self._bad[page] = mark

    def _forget(self) -> None:
        for known in (self._clean, self._carriers):
            for request in list(known):
                tables = self._port.tables(request)
                if not tables or tables[0] is not known[request]:
                    del known[request]

    # ------------------------------------------------------------------ size

    def prune(self) -> None:
        """Forget all pages that lost their key or were registered anew."""
        self._begin_prune()
        while self._left:
            self._prune_some()

    def _begin_prune(self) -> None:
        self._left = list(self._bad)
        self._steps = 0
        self._prune_some()

    def _prune_some(self) -> None:
        """Look at some of the bad pages; whatever became bad since the look began waits for the next one."""
        port, bad, page_stamps = self._port, self._bad, self._stamps.page_stamps
        ids = self._left[-PRUNE_PAGES:]
        del self._left[-PRUNE_PAGES:]
        held = port.tokens([port.take(page, page + 1)[0] for page in ids])
        for page, tokens in zip(ids, held, strict=True):
            stamp = bad.get(page)
            good = stamp if tokens and page_stamps[page] == stamp else None
            if good is None:
                bad.pop(page, None)
            if self.outdated.get(page) != good:
                self.outdated.pop(page, None)
            if self.tainted.get(page, good) != good:
                del self.tainted[page]
                self.shrunk = True
        if not self._left:
            self._end_prune()

    def _end_prune(self) -> None:
        bad, before = self._bad, len(self.never)
        self.never = {
            stamp: pages for stamp, pages in self.never.items() if any(bad.get(page) == stamp for page in pages)
        }
        self._prune_at = max(PRUNE_AT, 2 * len(bad))
        self._forget()
        if not bad and not self._old:
            self._clean.clear()
        self.shrunk = self.shrunk or len(self.never) != before

    def forget_news(self) -> None:
        """Readers know everything now, or there are none."""
        self.new_never.clear()
        self.new_tainted.clear()
        self.shrunk = False

    def reset(self) -> None:
        """The cache was emptied: nothing bad carries a key any more."""
        self.shrunk = self.shrunk or bool(self._bad)
        self.never.clear()
        self.tainted.clear()
        self.outdated.clear()
        self._bad.clear()
        self._left.clear()
        self._old = 0
        self._clean.clear()
        self._carriers.clear()
