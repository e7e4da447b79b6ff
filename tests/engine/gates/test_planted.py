"""Faults planted into vLLM's real cache manager are found, each by its own codes."""

from random import Random
from typing import Any

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from agent.gates.runner import run
from agent.model.finding import Finding, GateName
from agent.model.snapshot import Snapshot
from tests.support.cache_core import Core, make_core
from tests.support.direct_reader import read
from tests.support.vllm_groups import Setup, chunked, full, mamba


def findings(snapshot: Snapshot) -> dict[str, Finding]:
    """Run the gates that judge the pool; no code may be found twice."""
    results = run(snapshot, [GateName.BLOCK, GateName.INTERSECTION])
    found = [finding for result in results for finding in result.findings]
    assert len({finding.code for finding in found}) == len(found)
    return {finding.code: finding for finding in found}


def busy(kind: str = "gemma3") -> tuple[Core, list[Any]]:
    """Give a manager with two running requests and one finished one, and the running ones."""
    core = make_core(kind, 2_000)
    dice = Random(7)
    running = []
    for number in range(3):
        request = core.request(str(number), [dice.randrange(1, 1_000) for _ in range(1_500)])
        blocks, hit, _ = core.manager.get_computed_blocks(request)
        assert core.manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None
        request.num_computed_tokens = request.num_tokens
        running.append(request)
    core.manager.free(running.pop())
    return core, running


def test_a_healthy_manager_is_clean() -> None:
    """Nothing planted, nothing found, for each group mix."""
    for kind in ("gemma3", "deepseek_v4", "mamba_partial"):
        core, running = busy(kind)
        assert findings(read(core.manager, running)) == {}


def free_block(core: Core) -> Any:
    """Pick a page from the middle of the free list."""
    block = core.pool.free_block_queue.fake_free_list_head
    for _ in range(20):
        block = block.next_free_block
    return block


def test_case_8_double_free() -> None:
    """A page is freed once more: count -1, twice in the free list, counter one above the different pages."""
    core, running = busy()
    block = free_block(core)
    core.pool.free_blocks([block])
    core.pool.free_block_queue.append_n([block])
    found = findings(read(core.manager, running))
    assert found.keys() == {"KV103", "KV106", "KV107"}
    assert found["KV103"].pages == found["KV107"].pages == (block.block_id,)
    assert found["KV106"].values["difference"] == 1


def test_case_9a_use_after_free() -> None:
    """A request's table names a page whose count is 0."""
    core, running = busy()
    block = free_block(core)
    core.managers[2].req_to_blocks[running[0].request_id].append(block)
    found = findings(read(core.manager, running))
    assert found.keys() == {"KV109"}
    assert found["KV109"].pages == (block.block_id,)


def test_case_9b_one_count_for_two_holders() -> None:
    """A page stands in the tables of two requests that share no prefix; its count is 1."""
    core, running = busy()
    block = core.pool.get_new_blocks(1)[0]
    for request in running:
        core.managers[2].req_to_blocks[request.request_id].append(block)
    found = findings(read(core.manager, running))
    assert found.keys() == {"KV110"}
    assert found["KV110"].pages == (block.block_id,)


def test_case_9c_two_groups() -> None:
    """A page stands in the tables of two groups."""
    core, running = busy()
    block = core.pool.get_new_blocks(1)[0]
    block.ref_cnt += 1
    for manager in core.managers[:2]:
        manager.req_to_blocks[running[0].request_id].append(block)
    found = findings(read(core.manager, running))
    assert found.keys() == {"KV111"}
    assert found["KV111"].pages == (block.block_id,)


def _plant_keys(manager: Any, group: int, chain: list[bytes], ends: list[int], unit: int) -> None:
    pool = manager.block_pool
    blocks = pool.get_new_blocks(len(ends))
    for block, end in zip(blocks, ends, strict=True):
        key = make_block_hash_with_group_id(chain[end // unit - 1], group)
        block.set_block_hash(key, end)
        pool.cached_block_hash_to_block.insert(key, block)
    pool.free_blocks(blocks)


def test_case_5_a_group_raised_the_common_prefix() -> None:
    """Dense 2,048, recurrent 3,072; the hash table names a foreign page, and the engine reuses 3,072."""
    manager = Setup(name="case 5", groups=(full(1_024), mamba(1_024)), unit=1_024).manager()
    dice = Random(5)
    chain = [dice.randbytes(32) for _ in range(4)]
    _plant_keys(manager, 0, chain, [1_024, 2_048], 1_024)
    _plant_keys(manager, 1, chain, [2_048, 3_072], 1_024)
    assert findings(read(manager, chains=[(chain, 4_096)])) == {}
    foreign = manager.block_pool.blocks[1]
    manager.block_pool.cached_block_hash_to_block.insert(make_block_hash_with_group_id(chain[2], 0), foreign)
    found = findings(read(manager, chains=[(chain, 4_096)]))
    assert found.keys() == {"KV101", "KV305", "KV307"}
    assert (found["KV305"].values["engine"], found["KV305"].values["usable"]) == (3_072, 2_048)
    assert (found["KV307"].group, found["KV307"].values["raised"]) == (0, 1)


def test_case_5b_a_chunk_that_nobody_verified() -> None:
    """A chunk of 24 on blocks of 16: the engine takes the block that the chunk starts in for granted."""
    manager = Setup(name="case 5b", groups=(chunked(16, 24),), unit=16).manager()
    dice = Random(9)
    chain = [dice.randbytes(32) for _ in range(4)]
    found = findings(read(manager, chains=[(chain, 40)]))
    assert found.keys() == {"KV305"}
    assert (found["KV305"].values["engine"], found["KV305"].values["usable"]) == (16, 0)


def test_an_orphaned_key_is_found() -> None:
    """A page keeps its key after the hash table has lost it."""
    core, running = busy()
    cached = core.pool.cached_block_hash_to_block._cache
    key, block = next((key, entry) for key, entry in cached.items() if not isinstance(entry, dict))
    del cached[key]
    found = findings(read(core.manager, running))
    assert found.keys() == {"KV102"}
    assert found["KV102"].pages == (block.block_id,)
