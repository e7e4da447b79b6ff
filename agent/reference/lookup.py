"""The five independent checks: is each state there, so that a request can resume at a boundary?

Invariant: reads, never changes; call it with the allocator's lock held, and act on the answer before giving it back.
Each check is a function of its own and shares no rule with another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..model.states import State, Status
from .geometry import GroupName, GroupSpec
from .keys import Chain
from .pages import Pages


class TierStatus(StrEnum):
    """What another tier says of one page."""

    ABSENT = "absent"
    IN_TRANSIT = "in_transit"
    READY = "ready"
    FOREIGN = "foreign"
    """It is there under another fingerprint."""


TierAsk = Callable[[int, bytes], TierStatus]
"""Asks the tiers for (group id, key)."""

Block = tuple[GroupName, int]
"""A block of a group's table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the device pools hold of one request's prefix."""

    specs: Mapping[GroupName, GroupSpec]
    pages: Mapping[GroupName, Sequence[int | None]]
    """For each block up to the limit the page under the request's own key, None where there is none."""
    generations: Mapping[int, int]
    """Generation of each of these pages at the check."""
    run: Mapping[GroupName, int]
    """Blocks that are there without a gap from the first on."""
    stale: int
    """Pages that were left out because they were registered under other weights."""
    limit: int

    def logical(self) -> int:
        """Return the largest boundary up to the limit at which any group holds anything."""
        best = 0
        for name, pages in self.pages.items():
            for block in range(len(pages) - 1, -1, -1):
                if pages[block] is not None:
                    best = max(best, (block + 1) * self.specs[name].block)
                    break
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheck:
    """Answer of one check for one boundary."""

    state: State
    missing: tuple[Block, ...]
    status: Status


def read_held(pages: Pages, specs: Mapping[GroupName, GroupSpec], chain: Chain, limit: int) -> Held:
    """Look every block of a prefix up, under its own key and in the current weights epoch."""
    found: dict[GroupName, list[int | None]] = {}
    run: dict[GroupName, int] = {}
    generations: dict[int, int] = {}
    stale = 0
    for name, spec in specs.items():
        row: list[int | None] = []
        for block in range(limit // spec.block):
            page = pages.find(spec.id, chain.at((block + 1) * spec.block))
            if page is not None and pages.epoch[page] != pages.weights_epoch:
                page, stale = None, stale + 1
            if page is not None:
                generations[page] = pages.generation[page]
            row.append(page)
        found[name] = row
        run[name] = next((block for block, page in enumerate(row) if page is None), len(row))
    return Held(specs=specs, pages=found, generations=generations, run=run, stale=stale, limit=limit)


def _answer(state: State, required: int, missing: list[Block]) -> StateCheck:
    status = Status.READY if not missing else Status.PARTIAL if len(missing) < required else Status.MISSING
    return StateCheck(state=state, missing=tuple(missing), status=status)


def check_compressed(held: Held, boundary: int) -> StateCheck:
    """Full history: every block of compressed entries and of full attention, and the checkpoint at the boundary."""
    missing: list[Block] = []
    required = 0
    for name in (GroupName.COMPRESSED, GroupName.FULL):
        if name in held.pages:
            count = boundary // held.specs[name].block
            required += count
            if held.run[name] < count:
                missing += [(name, block) for block in range(count) if held.pages[name][block] is None]
    if GroupName.CHECKPOINT in held.pages and boundary:
        block = boundary // held.specs[GroupName.CHECKPOINT].block - 1
        required += 1
        if held.pages[GroupName.CHECKPOINT][block] is None:
            missing.append((GroupName.CHECKPOINT, block))
    return _answer(State.COMPRESSED, required, missing)


def check_tail(held: Held, boundary: int) -> StateCheck:
    """Compressor inputs: the blocks that hold the last tokens an open group can still need."""
    missing: list[Block] = []
    required = 0
    for name in (GroupName.CSA_TAIL, GroupName.HCA_TAIL):
        if name in held.pages:
            spec = held.specs[name]
            blocks = range(max(0, boundary - spec.reach) // spec.block, boundary // spec.block)
            required += len(blocks)
            missing += [(name, block) for block in blocks if held.pages[name][block] is None]
    return _answer(State.TAIL, required, missing)


def check_window(held: Held, boundary: int) -> StateCheck:
    """Sliding window: the blocks that intersect the last W - 1 tokens before the boundary."""
    if GroupName.WINDOW not in held.pages:
        return _answer(State.SWA, 0, [])
    spec, row = held.specs[GroupName.WINDOW], held.pages[GroupName.WINDOW]
    oldest = max(0, boundary - spec.reach)
    blocks = range(oldest // spec.block, boundary // spec.block)
    return _answer(State.SWA, len(blocks), [(GroupName.WINDOW, block) for block in blocks if row[block] is None])


def check_indexer(held: Held, boundary: int) -> StateCheck:
    """Indexer keys: exactly the blocks that the compressed entries have."""
    if GroupName.INDEXER not in held.pages:
        return _answer(State.INDEXER, 0, [])
    count = boundary // held.specs[GroupName.INDEXER].block
    row = held.pages[GroupName.INDEXER]
    return _answer(State.INDEXER, count, [(GroupName.INDEXER, block) for block in range(count) if row[block] is None])


def check_on_disk(held: Held, chain: Chain, ask: TierAsk, wanted: Sequence[Block]) -> StateCheck:
    """Other tiers: can every block that is wanted from them be had, complete and acknowledged?"""
    missing: list[Block] = []
    worst = Status.READY
    for name, block in wanted:
        spec = held.specs[name]
        said = ask(spec.id, chain.at((block + 1) * spec.block))
        if said is TierStatus.READY:
            continue
        missing.append((name, block))
        if said is TierStatus.IN_TRANSIT and worst is not Status.MISSING:
            worst = Status.IN_TRANSIT
        elif said is TierStatus.FOREIGN and worst is Status.READY:
            worst = Status.STALE
        elif said is TierStatus.ABSENT:
            worst = Status.MISSING
    return StateCheck(state=State.ON_DISK, missing=tuple(missing), status=worst)
