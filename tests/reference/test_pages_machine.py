"""The allocator as a state machine: every transition is reached, no other one can be made, gate 1 holds throughout."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agent.model.states import State
from agent.reference.pages import (
    NULL,
    TRANSITIONS,
    IllegalMoveError,
    Move,
    OutOfPagesError,
    Pages,
    PageState,
)
from tests.support.reference import NIGHTLY

REACHED: Counter[tuple[PageState, Move]] = Counter()
SIZES = {State.COMPRESSED: 5, State.SWA: 3}
GROUP = {State.COMPRESSED: 0, State.SWA: 1}


class AllocatorMachine(RuleBasedStateMachine):
    """Random holders, registrations and evictions against a model that is a plain dictionary of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages(SIZES, ghosts=4)
        self.holders: Counter[int] = Counter()
        self.keys: dict[int, bytes] = {}
        self.copied: list[int] = []
        self.pages.on_copy_out = self.copied.append
        self.serial = 0

    def _in(self, *states: PageState) -> list[int]:
        return [page for page in range(1, self.pages.count) if self.pages.state(page) in states]

    @rule(pool=st.sampled_from(sorted(SIZES)), count=st.integers(0, 4))
    def take(self, pool: State, count: int) -> None:
        """Allocate, evicting if need be, or be refused without effect."""
        room = self.pages.available(pool)
        before = list(self.pages.generation)
        if count > room:
            with pytest.raises(OutOfPagesError):
                self.pages.take(GROUP[pool], pool, count)
            assert self.pages.generation == before
            return
        for page in self.pages.take(GROUP[pool], pool, count):
            assert not self.holders[page]
            assert self.pages.pool_of[page] is pool
            self.holders[page] = 1
            self.keys.pop(page, None)

    @precondition(lambda self: self._in(PageState.ALLOCATED))
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """Complete a page."""
        self.pages.fill(data.draw(st.sampled_from(self._in(PageState.ALLOCATED))))

    @precondition(lambda self: self._in(PageState.FILLED))
    @rule(data=st.data(), same=st.booleans())
    def register(self, data: st.DataObject, same: bool) -> None:
        """Put a page under a key of its own, or under one that another page has already."""
        page = data.draw(st.sampled_from(self._in(PageState.FILLED)))
        self.serial += not same
        key = self.serial.to_bytes(16, "little")
        self.pages.register(page, key, 16)
        self.keys[page] = key

    @precondition(lambda self: self._in(PageState.CACHED, PageState.EVICTABLE))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """Add a holder."""
        page = data.draw(st.sampled_from(self._in(PageState.CACHED, PageState.EVICTABLE)))
        self.pages.share(page)
        self.holders[page] += 1

    @precondition(lambda self: self._in(PageState.EVICTABLE))
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        """Hold a page again that nobody held."""
        page = data.draw(st.sampled_from(self._in(PageState.EVICTABLE)))
        self.pages.share(page)
        self.holders[page] += 1

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Take a holder away."""
        page = data.draw(st.sampled_from(sorted(+self.holders)))
        generation = self.pages.generation[page]
        self.pages.release(page)
        self.holders[page] -= 1
        if not self.holders[page] and page not in self.keys:
            assert self.pages.generation[page] == generation + 1, "the content lost its owner"
        else:
            assert self.pages.generation[page] == generation, "somebody may still come back for it"

    @precondition(lambda self: self._in(PageState.EVICTABLE))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """Evict a page that nobody holds."""
        page = data.draw(st.sampled_from(self._in(PageState.EVICTABLE)))
        generation = self.pages.generation[page]
        self.pages.evict(page)
        assert self.pages.generation[page] == generation + 1
        assert self.copied[-1] == page
        del self.keys[page]

    @precondition(lambda self: bool(self.keys))
    @rule(data=st.data())
    def invalidate(self, data: st.DataObject) -> None:
        """Take a key away; holders stay."""
        page = data.draw(st.sampled_from(sorted(self.keys)))
        if page not in self._in(PageState.CACHED, PageState.EVICTABLE):
            return
        self.pages.invalidate(page)
        del self.keys[page]

    @precondition(lambda self: self._in(PageState.CACHED))
    @rule(data=st.data())
    def invalidate_shared(self, data: st.DataObject) -> None:
        """Take the key of a page away that two hold, and let one of them go."""
        page = data.draw(st.sampled_from(self._in(PageState.CACHED)))
        self.pages.share(page)
        self.pages.invalidate(page)
        self.pages.release(page)
        del self.keys[page]
        assert self.pages.state(page) is PageState.FILLED

    @rule(page=st.integers(0, sum(SIZES.values())), move=st.sampled_from(Move))
    def illegal(self, page: int, move: Move) -> None:
        """A move that the table does not have raises and changes nothing."""
        state = self.pages.state(page)
        if page != NULL and (state, move) in TRANSITIONS:
            return
        before = (list(self.pages.generation), dict(self.pages.moves), list(self.pages.references))
        with pytest.raises(IllegalMoveError):
            self.pages._move(page, move)
        assert (list(self.pages.generation), dict(self.pages.moves), list(self.pages.references)) == before
        assert self.pages.state(page) is state

    @invariant()
    def gate_1(self) -> None:
        """Counts, free list, hash table and states agree."""
        pages = self.pages
        evicted = [page for page in self.keys if pages.key[page] != self.keys[page]]
        for page in evicted:  # evicted by an allocation
            del self.keys[page]
        free = [page for pool in pages.free.values() for page in pool]
        idle = [page for pool in pages.evictable.values() for page in pool]
        assert sorted(free) == self._in(PageState.FREE)
        assert sorted(idle) == self._in(PageState.EVICTABLE)
        assert not self._in(PageState.EVICTED), "evicted is passed through under the lock"
        assert [pages.references[page] for page in range(pages.count)] == [self.holders[p] for p in range(pages.count)]
        assert self._in(PageState.ALLOCATED, PageState.FILLED, PageState.CACHED) == sorted(+self.holders)
        assert self._in(PageState.CACHED, PageState.EVICTABLE) == sorted(self.keys)
        named = {(pages.group[page], key, page) for page, key in self.keys.items()}
        assert named == {(group, key, page) for (group, key), found in pages.index.items() for page in found}
        assert pages.state(NULL) is PageState.FREE
        assert len(pages.ghosts) <= 4
        assert not set(pages.ghosts) & set(pages.index)

    def teardown(self) -> None:
        """Remember which transitions were made."""
        REACHED.update({row: count for row, count in self.pages.moves.items() if count})


def test_allocator_under_random_use() -> None:
    """Gate 1 holds after every step, and every transition of the table was made."""
    REACHED.clear()
    run_state_machine_as_test(
        AllocatorMachine,
        settings=settings(
            max_examples=400 if NIGHTLY else 120,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert set(REACHED) == set(TRANSITIONS), f"never made: {set(TRANSITIONS) - set(REACHED)}"


def test_the_table_has_no_dead_end() -> None:
    """From every state a page finds its way back to free."""
    reaches = {PageState.FREE}
    while True:
        more = {state for (state, _), after in TRANSITIONS.items() if after in reaches} - reaches
        if not more:
            break
        reaches |= more
    assert reaches == set(PageState)


def test_a_page_freed_twice_is_handed_out_once() -> None:
    """A free list that names a page twice is noticed at the second time, and the page has one owner."""
    pages = Pages({State.SWA: 2})
    pages.free[State.SWA].append(2)
    assert sorted(pages.take(0, State.SWA, 2)) == [1, 2]
    with pytest.raises(OutOfPagesError):
        pages.take(0, State.SWA, 1)
    assert pages.refused == 1
    assert pages.references[1:] == [1, 1]


def test_least_recently_used_pages_go_first() -> None:
    """Allocation evicts the page that nobody held for longest."""
    pages = Pages({State.SWA: 3})
    taken = pages.take(0, State.SWA, 3)
    for number, page in enumerate(taken):
        pages.fill(page)
        pages.register(page, bytes([number]) * 16, 16)
    for page in (taken[1], taken[2], taken[0]):
        pages.release(page)
    pages.share(taken[1])
    pages.release(taken[1])
    assert pages.take(0, State.SWA, 1) == [taken[2]]
    assert pages.find(0, bytes([2]) * 16) is None
    assert pages.ghosts == {(0, bytes([2]) * 16): "evicted"}
