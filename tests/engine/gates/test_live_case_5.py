"""Cases 5 and 5b in a live engine: it would reuse more than every group can resume, and ``validate`` says so before.

The faults are planted by the test: vLLM does neither by itself on these models. A request waits meanwhile, so that the
engine can be asked what it would reuse; once the plant is gone the answer is right again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from agent.model.finding import Finding
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.models import write_model
from tests.support.prompts import prompt
from tests.support.validating import findings

CHUNK = 2 * BLOCK
ODD_CHUNK = BLOCK + BLOCK // 2
"""A chunk that ends in the middle of a page."""


def found(engine: Engine) -> dict[str, Finding]:
    """Run all gates on the engine as it is now, as a new ``kvctl validate`` would."""
    with engine.session() as session:
        return findings(session)


def pool_of(engine: Engine) -> Any:
    """The block pool."""
    return engine.core.scheduler.kv_cache_manager.block_pool


@pytest.fixture
def recurrent(tmp_path: Path) -> Iterator[Engine]:
    """A Qwen3-Next-like engine: three recurrent groups and a dense one."""
    # More heads make the page smaller: a page of a dense group is as large as a recurrent state.
    folder = write_model(tmp_path, "qwen3next", seed=1, num_key_value_heads=4, head_dim=64)
    with engine_in_process(
        folder, pages=64, block_size=None, max_model_len=2048, max_num_batched_tokens=1024
    ) as running:
        yield running


def test_case_5_recurrent_groups_raise_the_common_prefix(recurrent: Engine) -> None:
    """Dense two pages, recurrent three; the hash table names a foreign page, and the engine would reuse three."""
    engine = recurrent
    pool = pool_of(engine)
    with engine.session() as session:
        *_, dense = session.geometry.groups
        page = dense.block_size
    ids = prompt("case 5", 3 * page + 40)
    engine.run("two", ids[: 2 * page + 1])
    engine.run("three", ids[: 3 * page + 1])
    engine.add("waits", ids)
    (waiting,) = engine.core.scheduler.requests.values()
    key = make_block_hash_with_group_id(waiting.block_hashes[2], dense.id)
    (lost,) = [block.block_id for block in pool.blocks if block._block_hash == key]
    pool.evict_blocks({lost})
    assert found(engine) == {}
    foreign = next(block for block in pool.blocks if block._block_hash not in {None, key})
    pool.cached_block_hash_to_block.insert(key, foreign)
    planted = found(engine)
    pool.cached_block_hash_to_block.pop(key, foreign.block_id)
    assert planted.keys() == {"KV101", "KV305", "KV307"}
    assert planted["KV101"].pages == (foreign.block_id,)
    assert (planted["KV305"].values["engine"], planted["KV305"].values["usable"]) == (3 * page, 2 * page)
    assert planted["KV305"].tokens == (2 * page, 3 * page)
    assert planted["KV307"].group == dense.id
    assert found(engine) == {}
    engine.finish()
    assert engine.results["waits"].num_cached_tokens == 2 * page
    assert found(engine) == {}


@pytest.fixture
def chunked(tmp_path: Path) -> Iterator[Engine]:
    """An engine with one chunked-local group: a Llama-4-like model without a dense layer."""
    only = {"no_rope_layers": [1] * 4, "layer_types": ["chunked_attention"] * 4, "attention_chunk_size": CHUNK}
    with engine_in_process(write_model(tmp_path, "llama4", seed=1, **only), pages=64) as running:
        yield running


@contextmanager
def odd_chunk(engine: Engine) -> Iterator[None]:
    """Have the engine look up as if its chunks ended in the middle of a page; nothing is computed meanwhile."""
    (manager,) = engine.core.scheduler.kv_cache_manager.coordinator.single_type_managers
    object.__setattr__(manager.kv_cache_spec, "attention_chunk_size", ODD_CHUNK)
    try:
        yield
    finally:
        object.__setattr__(manager.kv_cache_spec, "attention_chunk_size", CHUNK)


def test_case_5b_a_chunk_that_nobody_verified(chunked: Engine) -> None:
    """The engine takes the page in which a chunk begins for granted; it is nowhere, so nothing can be resumed."""
    engine = chunked
    ids = prompt("case 5b", CHUNK - 3)
    engine.run("fresh", prompt("another", CHUNK))
    engine.add("waits", ids)
    assert found(engine) == {}
    with odd_chunk(engine):
        planted = found(engine)
    assert planted.keys() == {"KV305"}
    assert (planted["KV305"].values["engine"], planted["KV305"].values["usable"]) == (BLOCK, 0)
    assert planted["KV305"].tokens == (0, BLOCK)
    assert str(planted["KV305"].values["request"]).startswith("waits")
    assert found(engine) == {}
    engine.finish()
    assert engine.results["waits"].num_cached_tokens == 0
    assert found(engine) == {}
