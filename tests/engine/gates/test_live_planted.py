"""Faults planted into a live engine are found through its socket, each by its own codes; healed, it is clean again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.session import Session
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt
from tests.support.validating import findings

FULL = 2
"""Group of full attention in the Gemma-3-like model; 0 and 1 are windows."""


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine with two requests that run and one that has ended."""
    with engine_in_process(model("gemma3", seed=1), pages=160) as running:
        running.run("ended", prompt("ended", 300))
        for name in ("left", "right"):
            running.add(name, prompt(name, 200), tokens=400)
        running.step(4)
        yield running


def manager_of(engine: Engine) -> Any:
    """The cache manager."""
    return engine.core.scheduler.kv_cache_manager


def table(engine: Engine, number: int, group: int) -> Any:
    """The page table of a running request in one group."""
    names = list(engine.core.scheduler.requests)
    return manager_of(engine).coordinator.single_type_managers[group].req_to_blocks[names[number]]


def free_block(engine: Engine) -> Any:
    """A page from the middle of the free list."""
    block = manager_of(engine).block_pool.free_block_queue.fake_free_list_head
    for _ in range(20):
        block = block.next_free_block
    return block


def test_case_9a_use_after_free(engine: Engine, session: Session) -> None:
    """A request's table names a page whose count is 0."""
    assert findings(session) == {}
    block = free_block(engine)
    table(engine, 0, FULL).append(block)
    found = findings(session)
    table(engine, 0, FULL).pop()
    assert found.keys() == {"KV109"}
    assert found["KV109"].pages == (block.block_id,)
    assert findings(session) == {}


def test_case_9b_one_count_for_two_holders(engine: Engine, session: Session) -> None:
    """A page stands in the tables of two requests that share no prefix; its count is 1."""
    pool = manager_of(engine).block_pool
    blocks = pool.get_new_blocks(1)
    for number in (0, 1):
        table(engine, number, FULL).append(blocks[0])
    found = findings(session)
    for number in (0, 1):
        table(engine, number, FULL).pop()
    pool.free_blocks(blocks)
    assert found.keys() == {"KV110"}
    assert found["KV110"].pages == (blocks[0].block_id,)
    assert findings(session) == {}


def test_case_9c_two_groups(engine: Engine, session: Session) -> None:
    """A page stands in the tables of two groups."""
    pool = manager_of(engine).block_pool
    blocks = pool.get_new_blocks(1)
    pool.touch([blocks[0]])
    for group in (0, 1):
        table(engine, 0, group).append(blocks[0])
    found = findings(session)
    for group in (0, 1):
        table(engine, 0, group).pop()
    pool.free_blocks(blocks)
    pool.free_blocks(blocks)
    assert found.keys() == {"KV111"}
    assert found["KV111"].pages == (blocks[0].block_id,)
    assert findings(session) == {}


def test_the_engine_reuses_what_is_not_there(engine: Engine, session: Session) -> None:
    """The hash table names foreign pages for a waiting request: the engine would reuse them, the rules say 0."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    pool = manager_of(engine).block_pool
    engine.add("waits", prompt("waits", 4 * BLOCK))
    request = next(item for item in engine.core.scheduler.requests.values() if item.request_id.startswith("waits"))
    keys = [make_block_hash_with_group_id(request.block_hashes[0], group) for group in range(FULL + 1)]
    foreign = [block for block in pool.blocks if block._block_hash is not None][: len(keys)]
    for key, block in zip(keys, foreign, strict=True):
        pool.cached_block_hash_to_block.insert(key, block)
    found = findings(session)
    for key, block in zip(keys, foreign, strict=True):
        pool.cached_block_hash_to_block.pop(key, block.block_id)
    assert found.keys() == {"KV101", "KV305"}
    assert (found["KV305"].values["engine"], found["KV305"].values["usable"]) == (BLOCK, 0)
    assert found["KV101"].pages == tuple(sorted(block.block_id for block in foreign))


def test_case_8_double_free(engine: Engine, session: Session) -> None:
    """A page is freed once more: count -1, twice in the free list, counter one too high. It is not healed."""
    pool = manager_of(engine).block_pool
    block = free_block(engine)
    pool.free_blocks([block])
    pool.free_block_queue.append_n([block])
    found = findings(session)
    assert found.keys() == {"KV103", "KV106", "KV107"}
    assert found["KV103"].pages == found["KV107"].pages == (block.block_id,)
