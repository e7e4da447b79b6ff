"""The ``on_disk`` state: a host pool and a disk folder that hold pages which left the device.

Invariant: a page is ready here only after the acknowledgement of the copy that brought it; until then it is in
transit. Called with the allocator's lock held; the copying itself happens in ``transfers``.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .disk import Disk, PageName, UnusableFileError
from .lookup import TierStatus
from .transfers import Acknowledgement, Job, Transfers


@dataclass(slots=True, kw_only=True)
class _Slot:
    row: int
    elements: int
    ready: bool
    forgotten: bool = False
    """The host tier was lost while the copy into this row was under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    name: PageName
    to_disk: bool
    since: float = field(default_factory=time.monotonic)


class Tiers:
    """Host memory, and disk behind it.

    Args:
        transfers: Does the copying.
        pool: [pages, elements] tensor of the host tier, None without one.
        disk: Disk tier, None without one.
        backlog: Stores that may wait; a page that leaves while so many do leaves without a copy.
    """

    def __init__(
        self, transfers: Transfers, *, pool: torch.Tensor | None, disk: Disk | None, backlog: int = 1024
    ) -> None:
        self.transfers, self.pool, self.disk, self._backlog = transfers, pool, disk, backlog
        self._free = list(range(pool.shape[0])) if pool is not None else []
        self.host: OrderedDict[PageName, _Slot] = OrderedDict()
        self._stores: dict[int, _Store] = {}
        self._to_disk: set[PageName] = set()
        self._dropped: set[PageName] = set()
        """Pages to forget as soon as the copy of them that is under way has arrived."""
        self.lost: dict[str, int] = {}
        """Copies that failed or were not begun, by reason."""

    @property
    def on(self) -> bool:
        """Whether there is any other tier."""
        return self.pool is not None or self.disk is not None

    def offer(self, group: int, key: bytes, tokens: int, content: torch.Tensor) -> None:
        """Take a copy of a page that is about to leave the device."""
        name = PageName(group=group, key=key)
        pool, disk = self.pool, self.disk
        if len(self._stores) >= self._backlog:
            self.lost["backlog"] = self.lost.get("backlog", 0) + 1
            return
        if pool is not None and name not in self.host:
            row = self._host_row()
            if row is not None:
                slot = self.host[name] = _Slot(row=row, elements=content.numel(), ready=False)
                self._submit(_Store(name=name, to_disk=False), _into_host(pool, slot, content))
        if disk is not None and name not in disk.ready and name not in self._to_disk:
            self._to_disk.add(name)
            self._submit(_Store(name=name, to_disk=True), _into_disk(disk, name, tokens, content))

    def _submit(self, store: _Store, job: Job) -> None:
        self._stores[self.transfers.submit(job)] = store

    def _host_row(self) -> int | None:
        """Return a free row of the host pool; the least recently used ready page makes room."""
        if self._free:
            return self._free.pop()
        victim = next((name for name, slot in self.host.items() if slot.ready), None)
        return None if victim is None else self.host.pop(victim).row

    def in_transit(self) -> list[tuple[PageName, bool, float]]:
        """Return the copies without an acknowledgement: page, whether it goes to the disk, seconds since it began."""
        now = time.monotonic()
        return [(store.name, store.to_disk, now - store.since) for store in self._stores.values()]

    def ask(self, group: int, key: bytes) -> TierStatus:
        """Tell whether a page can be had from here."""
        name = PageName(group=group, key=key)
        slot = self.host.get(name)
        if name in self._dropped:
            return TierStatus.ABSENT
        if (slot is not None and slot.ready) or (self.disk is not None and name in self.disk.ready):
            return TierStatus.READY
        if slot is not None or name in self._to_disk:
            return TierStatus.IN_TRANSIT
        if self.disk is not None and name in self.disk.foreign:
            return TierStatus.FOREIGN
        return TierStatus.ABSENT

    def load(self, wanted: Sequence[tuple[int, bytes]]) -> int | None:
        """Start loading pages; returns the number of the transfer, None if one of them is not ready."""
        names = [PageName(group=group, key=key) for group, key in wanted]
        if any(self.ask(name.group, name.key) is not TierStatus.READY for name in names):
            return None
        sources: list[torch.Tensor | PageName] = []
        for name in names:
            slot = self.host.get(name)
            if slot is not None and slot.ready and self.pool is not None:
                self.host.move_to_end(name)
                # Read now: the row may be given to another page before the job runs.
                sources.append(self.pool[slot.row, : slot.elements].clone())
            else:
                sources.append(name)
        disk = self.disk

        def job() -> list[torch.Tensor]:
            content = []
            for source in sources:
                if isinstance(source, PageName):
                    if disk is None:
                        raise UnusableFileError("gone", source.file)
                    content.append(disk.read(source))
                else:
                    content.append(source)
            return content

        return self.transfers.submit(job, load=True)

    def acknowledge(self, done: Acknowledgement) -> bool:
        """Take the acknowledgement of a store; returns False if it is not one of ours."""
        store = self._stores.pop(done.number, None)
        if store is None:
            return False
        if done.error is not None:
            self.lost[done.error] = self.lost.get(done.error, 0) + 1
        if store.to_disk:
            self._to_disk.discard(store.name)
            if self.disk is not None and done.error is None:
                self.disk.acknowledge(store.name)
        elif (slot := self.host.get(store.name)) is not None:
            slot.ready = done.error is None and not slot.forgotten
            if not slot.ready:
                self._free.append(self.host.pop(store.name).row)
        if store.name in self._dropped:
            self._dropped.discard(store.name)
            self.drop(store.name.group, store.name.key)  # waits again where the other copy is still under way
        return True

    def drop(self, group: int, key: bytes) -> None:
        """Forget one page: it was invalidated and must not come back from here, nor from a copy under way."""
        name = PageName(group=group, key=key)
        slot = self.host.get(name)
        if (slot is not None and not slot.ready) or name in self._to_disk:
            self._dropped.add(name)
            return
        if slot is not None:
            self._free.append(self.host.pop(name).row)
        if self.disk is not None:
            self.disk.drop(name)

    def rebrand(self, fingerprint: str) -> None:
        """Go on under another fingerprint: nothing stored so far may be used any more."""
        for number in self._stores:
            self.transfers.abandon(number)
        self._stores.clear()
        self._to_disk.clear()
        self._dropped.clear()
        self.host.clear()
        if self.pool is not None:
            # A copy still under way writes into the old tensor, which nobody reads any more.
            self.pool = torch.zeros_like(self.pool)
            self._free = list(range(self.pool.shape[0]))
        if self.disk is not None:
            self.disk.rebrand(fingerprint)

    def forget_host(self) -> None:
        """Drop the host tier's pages, as a restart does; copies on their way are dropped as well."""
        for name, slot in list(self.host.items()):
            if slot.ready:
                self._free.append(self.host.pop(name).row)
            slot.forgotten = True


def _into_host(pool: torch.Tensor, slot: _Slot, content: torch.Tensor) -> Job:
    def job() -> list[torch.Tensor]:
        pool[slot.row, : slot.elements] = content.to(pool.device)
        return []

    return job


def _into_disk(disk: Disk, name: PageName, tokens: int, content: torch.Tensor) -> Job:
    fingerprint = disk.fingerprint  # of the moment the page left, whatever is current when the job runs

    def job() -> list[torch.Tensor]:
        disk.write(name, tokens, content, fingerprint)
        return []

    return job
