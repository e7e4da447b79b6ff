"""What the gates need beyond the tables, read from a live engine at one safe point."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Llama-like engine."""
    with engine_in_process(model("llama", seed=1), pages=96) as running:
        yield running


def test_the_hash_table_is_the_engines_own(engine: Engine) -> None:
    """Every pair of key and page is there, duplicates included, and equals the table of the feed."""
    ids = prompt("table", 300)
    engine.run("table0", ids)
    engine.run("table1", ids, prompt_logprobs=0)
    with engine.session() as session:
        snapshot = session.snapshot(free_list=True)
    assert snapshot.evidence is not None
    table, pages = snapshot.evidence.hash_table, snapshot.pages
    assert table is not None
    assert pages is not None
    assert table.count == 2 * (300 // BLOCK)
    keys, tokens = bytes(pages.key), memoryview(pages.tokens).cast("B").cast("I")
    held = memoryview(table.page).cast("B").cast("I")
    named = {page: bytes(table.key)[16 * row : 16 * row + 16] for row, page in enumerate(held)}
    carried = {page: keys[16 * page : 16 * page + 16] for page in range(pages.count) if tokens[page]}
    assert named == carried


def test_changes_of_weights_are_seen(engine: Engine) -> None:
    """A new weight version is a change point: pages from before carry smaller stamps, pages from after larger ones."""
    old, new = prompt("old weights", 100), prompt("new weights", 100)
    engine.run("old0", old)
    with engine.session() as session:
        before = session.snapshot(free_list=True)
        engine.core.set_weight_version("v2")
        engine.run("new0", new)
        after = session.snapshot(free_list=True)
    assert before.evidence is not None
    assert before.evidence.weights is not None
    assert before.evidence.weights.changes == ()
    assert before.evidence.weights.watched
    assert after.evidence is not None
    assert after.evidence.weights is not None
    (change,) = after.evidence.weights.changes
    assert after.evidence.weights.causes == ("update",)
    assert before.pages is not None
    assert after.pages is not None
    old_stamps = [stamp for stamp in memoryview(before.pages.stamp).cast("B").cast("Q") if stamp]
    new_stamps = [stamp for stamp in memoryview(after.pages.stamp).cast("B").cast("Q") if stamp]
    assert max(old_stamps) < change
    assert len([stamp for stamp in new_stamps if stamp >= change]) == 100 // BLOCK


def does_something(_worker: object) -> None:
    """Stand for whatever an operator may call on the workers."""


def test_an_unknown_call_to_the_workers_ends_the_claim(engine: Engine) -> None:
    """After a worker method whose effect is not known nobody claims that every change of weights was seen."""
    engine.core.collective_rpc("get_kv_cache_spec")
    with engine.session() as session:
        known = session.snapshot(free_list=True).evidence
        engine.core.collective_rpc(does_something)
        unknown = session.snapshot(free_list=True).evidence
    assert known is not None
    assert known.weights is not None
    assert known.weights.watched
    assert unknown is not None
    assert unknown.weights is not None
    assert not unknown.weights.watched


def test_look_ups_of_the_same_moment(engine: Engine) -> None:
    """The engine's answers for its own requests come with the keys that were asked and the epoch of the table."""
    ids = prompt("moment", 200)
    engine.run("moment0", ids)
    engine.add("moment1", [*ids, 1, 2, 3], 30)
    engine.step(3)
    with engine.session() as session:
        snapshot = session.snapshot(lookups=8)
    engine.finish()
    assert snapshot.evidence is not None
    assert snapshot.evidence.lookups
    (look_up,) = snapshot.evidence.lookups
    assert look_up.epoch == snapshot.capture.epoch
    assert look_up.answer == 200 // BLOCK * BLOCK
    assert len(look_up.chain) == look_up.limit // BLOCK
