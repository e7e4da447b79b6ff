"""Acting a fault out on a running engine: ``--inject``.

Invariant: every fault that a gate should name has one entry here; it does what the fault's name says and no more.
Called by the serving loop between two steps.
"""

import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from .disk import PageName, encode
from .faults import Fault
from .geometry import GroupName

if TYPE_CHECKING:
    from .engine import Engine


def _drop(engine: "Engine", name: GroupName) -> None:
    """Evict the pages that one group has of the deepest cached prefixes, as a pool that is too small does."""
    group = engine.pools.by_name[name].id
    with engine.pages.lock:
        idle = [page for pool in engine.pages.evictable.values() for page in pool if engine.pages.group[page] == group]
        for page in sorted(idle, key=engine.pages.tokens.__getitem__)[-48:]:
            key = engine.pages.key[page]
            engine.pages.evict(page)
            if key is not None:
                engine.tiers.drop(group, key)


def _tear(engine: "Engine") -> None:
    """Cut the file of a page that is ready, as a broken copy of the folder would; or the next one to be written."""
    disk = engine.tiers.disk
    if disk is None or not disk.ready:
        engine.faults.once(Fault.TEAR_DISK_FILE)
        return
    name = max(disk.ready, key=lambda ready: ready.file)
    os.truncate(disk.folder / name.file, disk.sizes[name] // 2)


def _foreign(engine: "Engine") -> None:
    """Put a page of another engine into the folder, and open it as a restart does."""
    disk = engine.tiers.disk
    if disk is None:
        return
    name = PageName(group=0, key=random.randbytes(16))  # noqa: S311 - any key
    content = engine.pools.tensors[engine.pools.specs[0].state][0, : engine.pools.specs[0].elements]
    (disk.folder / name.file).write_bytes(encode(name, 16, content, "another engine"))
    disk.rescan()


def _steal(engine: "Engine") -> None:
    """Have the pages that the next look-up checked taken by another prefix before they are bound."""

    def between() -> None:
        engine.reuser.between = None
        engine.faults.switch(Fault.UNGUARDED_BIND, on=False)
        pages = engine.pages
        for pool, idle in pages.evictable.items():
            for page in list(idle):
                pages.evict(page)
            group = next(spec for spec in engine.pools.specs if spec.state is pool)
            for taken in pages.take(group.id, pool, len(pages.free[pool])):
                pages.fill(taken)
                pages.register(taken, random.randbytes(16), group.block)  # noqa: S311 - any key
                pages.release(taken)

    engine.reuser.between = between
    engine.faults.switch(Fault.UNGUARDED_BIND)


def _double_free(engine: "Engine") -> None:
    """Free a page that is free: once more in the list, and a count below zero."""
    pages = engine.pages
    with pages.lock:
        free = max(pages.free.values(), key=len)
        page = free[-1] if free else next(page for idle in pages.evictable.values() for page in idle)
        pages.free[pages.pool_of[page]].append(page)
        pages.references[page] -= 1


def _skip(engine: "Engine") -> None:
    """Stop raising generations, and let somebody in between check and bind."""
    engine.faults.switch(Fault.SKIP_GENERATION)
    _steal(engine)


def _change_weights(engine: "Engine") -> None:
    engine.faults.once(Fault.CHANGE_WEIGHTS)
    engine.load_weights(engine.model.seed + 1)


ACTS: Mapping[Fault, Callable[["Engine"], None]] = {
    Fault.DROP_WINDOW_PAGE: lambda engine: _drop(engine, GroupName.WINDOW),
    Fault.DROP_INDEXER_PAGE: lambda engine: _drop(engine, GroupName.INDEXER),
    Fault.TEAR_DISK_FILE: _tear,
    Fault.FOREIGN_DISK_FILE: _foreign,
    Fault.CHANGE_WEIGHTS: _change_weights,
    Fault.SKIP_GENERATION: _skip,
    Fault.UNGUARDED_BIND: _steal,
    Fault.DIRTY_PADDING: lambda engine: engine.faults.switch(Fault.DIRTY_PADDING),
    Fault.LOSE_ACKNOWLEDGEMENT: lambda engine: engine.faults.once(Fault.LOSE_ACKNOWLEDGEMENT, 8),
    Fault.DOUBLE_FREE: _double_free,
    Fault.FULL_DISK: lambda engine: engine.faults.once(Fault.FULL_DISK, 8),
}


def inject(engine: "Engine", fault: Fault) -> None:
    """Act a fault out now, or from now on."""
    ACTS[fault](engine)
