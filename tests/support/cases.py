"""Faults that happened to people, reduced to a few pages: one snapshot a case.

Invariant: the numbers are the case's own; each differs from a healthy snapshot in its fault only. Tests of the gates,
of the command line and of the dashboard share them.
"""

from collections.abc import Callable
from dataclasses import replace

from agent.gates.editor import Editor
from agent.model.decision import Outcome, Phase
from agent.model.evidence import (
    CapturedBatch,
    Contract,
    EngineLookup,
    Evidence,
    Graphs,
    IdentityProbe,
    PlanRecord,
    TierEntry,
    TierReport,
    Weights,
    WorkerTensor,
)
from agent.model.groups import Geometry
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, PageId, ResumeKind, State, Tokens
from tests.support.pools import PoolBuilder, chain_of, deepseek_v4, group_of, plain

PROMPT = 2_000
EXTENDED = 2_050


def _deepseek(*, dense: bool = False) -> tuple[PoolBuilder, tuple[bytes, ...]]:
    """Cache 2,000 tokens on DeepSeek-V4's groups; give the chain of a request that extends them by 50."""
    pool = PoolBuilder(geometry=deepseek_v4(), pages=1_024)
    chain = chain_of("a", EXTENDED, 4)
    pool.prompt(chain, PROMPT, dense=dense)
    return pool, chain


def case_1() -> Snapshot:
    """All pages are there: 1,792 of 2,050 tokens are reused, the rest is cold or below one alignment unit."""
    pool, chain = _deepseek()
    pool.look_up(chain, EXTENDED)
    return pool.build()


def case_2() -> Snapshot:
    """One window page (tokens 1,728-1,791) is evicted: nothing is usable."""
    pool, chain = _deepseek()
    pool.evict(chain, 0, 1_792)
    pool.look_up(chain, EXTENDED)
    return pool.build()


def case_3() -> Snapshot:
    """One page of the C4 state (tokens 1,788-1,791) is gone: nothing is usable."""
    pool, chain = _deepseek()
    pool.evict(chain, 3, 1_792)
    pool.look_up(chain, EXTENDED)
    return pool.build()


def case_4() -> Snapshot:
    """The request shares 1,500 tokens only, where window and tail were never kept."""
    pool, _ = _deepseek()
    pool.look_up(chain_of("b", 1_550, 4, fork=("a", 1_500)), 1_550)
    return pool.build()


def case_5() -> Snapshot:
    """Dense group 2,048, recurrent 3,072, the engine reuses 3,072."""
    geometry = Geometry(
        groups=(group_of(0, ResumeKind.FULL, 1_024), group_of(1, ResumeKind.RECURRENT, 1_024)),
        hash_unit=1_024,
        alignment=1_024,
    )
    pool = PoolBuilder(geometry=geometry)
    chain = chain_of("a", 4_096, 1_024)
    pool.cache(chain, geometry.groups[0], [1_024, 2_048, 3_072])
    pool.cache(chain, geometry.groups[1], [2_048, 3_072])
    pool.evict(chain, 0, 3_072)
    pool.look_up(chain, 4_097, answer=3_072)
    pool.evidence = Evidence(lookups=(EngineLookup(request="a", chain=chain, limit=4_096, answer=3_072, epoch=7),))
    return pool.build()


def case_5b() -> Snapshot:
    """A chunk of 24 on blocks of 16: the engine takes the block that the chunk starts in for granted."""
    geometry = Geometry(groups=(group_of(0, ResumeKind.CHUNKED, 16, chunk_tokens=24),), hash_unit=16, alignment=16)
    pool = PoolBuilder(geometry=geometry)
    chain = chain_of("a", 64, 16)
    pool.evidence = Evidence(lookups=(EngineLookup(request="a", chain=chain, limit=40, answer=16, epoch=7),))
    return pool.build()


def case_6() -> Snapshot:
    """Five groups, one answers 0 for every request of the last 1,000."""
    pool, chain = _deepseek(dense=True)
    for end in range(4, PROMPT + 1, 4):
        pool.evict(chain, 3, end)
    decided = pool.look_up(chain, EXTENDED)
    pool.decisions = [replace(decided, id=at, chain=decided.chain if at == 1_000 else None) for at in range(1, 1_001)]
    return pool.build()


def case_7() -> Snapshot:
    """Prompts of 500 tokens on groups of block 128, 4,096, 32, 2 and 8."""
    blocks: tuple[Tokens, ...] = (128, 4_096, 32, 2, 8)
    groups = tuple(group_of(at, ResumeKind.FULL, block) for at, block in enumerate(blocks))
    pool = PoolBuilder(geometry=Geometry(groups=groups, hash_unit=2, alignment=4_096))
    chain = chain_of("a", 500, 2)
    for _ in range(40):
        pool.look_up(chain, 500)
    return pool.build()


def case_8() -> Snapshot:
    """Page 33 was freed twice: count -1, twice in the free list, counter 16 with 15 different pages."""
    pool = PoolBuilder(geometry=plain(), pages=63)
    chain = chain_of("a", 16 * 48, 16)
    pool.prompt(chain, 16 * 47, request="runs")
    editor = _without(pool, 33)
    if editor.references is None or editor.free_list is None:
        raise AssertionError
    editor.references[33] = -1
    editor.free_list.append(PageId(33))
    editor.count_free(1)
    return editor.build()


def _without(pool: PoolBuilder, page: int) -> Editor:
    """Take a page, and all of its prefix, from the running request; it stays in the pool."""
    request = pool.requests[0]
    tables = tuple(tuple(PageId(0) if item == page else item for item in row) for row in request.tables or ())
    pool.requests[0] = replace(request, tables=tables)
    pool.rows.pop(page, None)
    pool.counts.pop(page, None)
    return pool.edit()


def _running() -> PoolBuilder:
    pool = PoolBuilder(geometry=deepseek_v4(), pages=512)
    pool.cursor = 64
    pool.prompt(chain_of("a", 768, 4), 768, request="one")
    return pool


def case_9a() -> Snapshot:
    """A request's table names page 41, whose count is 0."""
    editor = _running().edit()
    editor.add_request("late", {2: [41]})
    return editor.build()


def case_9b() -> Snapshot:
    """Page 41 stands in the tables of two requests that share no prefix; its count is 1."""
    editor = _running().edit()
    editor.hold(41, 1)
    editor.add_request("left", {2: [41]})
    editor.add_request("right", {2: [41]})
    return editor.build()


def case_9c() -> Snapshot:
    """Page 41 stands in the tables of two groups."""
    editor = _running().edit()
    editor.hold(41, 2)
    editor.add_request("both", {2: [41], 3: [41]})
    return editor.build()


def case_10() -> Snapshot:
    """Weights were replaced in memory, the cache was not reset: 412 cached pages are from before."""
    pool = PoolBuilder(geometry=plain(), pages=1_024)
    pool.prompt(chain_of("old", 16 * 412, 16), 16 * 412)
    change = pool.step
    pool.prompt(chain_of("new", 16 * 100, 16), 16 * 100)
    pool.evidence = Evidence(weights=Weights(changes=(change << 20,), causes=("update",)))
    return pool.build()


def case_24() -> Snapshot:
    """Paused without clearing the cache, weights overwritten, resumed."""
    snapshot = case_10()
    evidence = snapshot.evidence or Evidence()
    weights = evidence.weights
    if weights is None:
        raise AssertionError
    return replace(
        snapshot, evidence=replace(evidence, weights=replace(weights, causes=("digest",), last_good=1 << 20))
    )


def _tier(entry: TierEntry, *, own: str = "abcd1234") -> Snapshot:
    pool, _ = _deepseek()
    pool.evidence = Evidence(
        tiers=(TierReport(name=entry.tier, states=frozenset(State), entries=(entry,)),),
        contract=Contract(fields={}, fingerprint=own),
    )
    return pool.build()


def case_11() -> Snapshot:
    """On-disk record: KV pages 0-9 complete, indexer pages 0-6."""
    parts = {State.COMPRESSED: 10, State.INDEXER: 7}
    return _tier(TierEntry(tier="disk", name="record", fingerprint="abcd1234", pages=parts, page_tokens=256))


def case_12() -> Snapshot:
    """On-disk record, registered while its transfer is not acknowledged: it brought a waiting request nothing."""
    snapshot = _tier(TierEntry(tier="disk", name="record", fingerprint="abcd1234", acknowledged=False))
    pool = PoolBuilder(geometry=deepseek_v4(), pages=1_024)
    pool.evidence = snapshot.evidence or Evidence()
    pool.look_up(chain_of("a", EXTENDED, 4), EXTENDED, outcome=Outcome.PREFETCHING)
    return pool.build()


def case_13() -> Snapshot:
    """A file of 32 bytes where 64 belong; the index says that it is there."""
    return _tier(TierEntry(tier="disk", name="0f3a.bin", fingerprint="abcd1234", bytes=32, expected_bytes=64))


def case_14() -> Snapshot:
    """A plan made at generation 17, handed in at 19."""
    pool, _ = _deepseek()
    plan = PlanRecord(
        id="plan", planned={PageId(7): 17, PageId(8): 17}, found={PageId(7): 17, PageId(8): 19}, executed=False
    )
    pool.evidence = Evidence(plans=(plan,))
    return pool.build()


def case_15() -> Snapshot:
    """Looked up four times (allocation failed three times), preempted once and resumed: two decisions."""
    pool, chain = _deepseek()
    pool.look_up(chain, EXTENDED, lookups=4)
    pool.look_up(chain, EXTENDED, phase=Phase.RESUMED)
    return pool.build()


def case_16() -> Snapshot:
    """A LoRA adapter is named like another tenant's salt: both get one key."""
    pool, chain = _deepseek()
    pool.evidence = Evidence(identities=(IdentityProbe(name="lora_named_like_salt", left=chain[0], right=chain[0]),))
    return pool.build()


def case_17() -> Snapshot:
    """Captured batch of 8, 5 live rows, rows 5-7 still hold page ids 88, 91 and 12."""
    pool, _ = _deepseek()
    ids = (1, 2, 3, 4, 5, 88, 91, 12)
    batch = CapturedBatch(name="decode 8", live=5, rows=tuple((PageId(page),) for page in ids))
    pool.evidence = Evidence(graphs=Graphs(batches=(batch,)))
    return pool.build()


def tensor(page_bytes: int, **fields: object) -> WorkerTensor:
    """Make a cache tensor of four pages."""
    plain_tensor = WorkerTensor(
        rank=0,
        layer="model.layers.2.attn",
        group=GroupId(2),
        dtype="uint8",
        shape=(4, page_bytes),
        strides=(page_bytes, 1),
        address=576 * 4096,
        page_bytes=page_bytes,
        block_stride=page_bytes,
        pages=4,
        allocation=(576 * 4096, 4 * page_bytes),
        layout="BLHNC",
    )
    return replace(plain_tensor, **fields)  # type: ignore[arg-type]


def case_18() -> Snapshot:
    """Host and device agree on bytes a page; the axes are permuted."""
    pool, _ = _deepseek()
    host = tensor(37_440, host=True, pinned=True, layout="LBHNC")
    pool.evidence = Evidence(tensors=(tensor(37_440), host))
    return pool.build()


def case_19(page_bytes: int = 37_376) -> Snapshot:
    """A page of 37,376 real bytes where the kernel wants multiples of 576."""
    pool, _ = _deepseek()
    pool.evidence = Evidence(tensors=(tensor(page_bytes, page_unit=576),))
    return pool.build()


def case_21() -> Snapshot:
    """Preempted in the step that allocated: 14 pages computed, 16 carry hashes."""
    pool = PoolBuilder(geometry=plain(32), pages=64)
    chain = chain_of("a", 512, 32)
    pool.prompt(chain, 448)
    pool.cache(chain, pool.geometry.groups[0], [480, 512])
    editor = pool.edit()
    editor.never_computed = {int(editor.stamp[15])}
    return editor.build()


def case_22() -> Snapshot:
    """A disk tier at the same path, filled by an engine with another configuration."""
    return _tier(TierEntry(tier="disk", name="1,024 tokens", fingerprint="other999"))


def case_23() -> Snapshot:
    """A hash held by two pages, one of them evicted: the prefix still hits."""
    pool, chain = _deepseek()
    other = {page: row for page, row in pool.rows.items() if row[0] == 0}
    for row in list(other.values()):
        pool.rows[pool.take()] = row
    del pool.rows[min(other)]
    pool.look_up(chain, EXTENDED)
    return pool.build()


EXPECTED: dict[str, tuple[Callable[[], Snapshot], frozenset[str]]] = {
    "1": (case_1, frozenset()),
    "2": (case_2, frozenset({"KV301"})),
    "3": (case_3, frozenset({"KV302"})),
    "4": (case_4, frozenset()),
    "5": (case_5, frozenset({"KV305", "KV307"})),
    "5b": (case_5b, frozenset({"KV305"})),
    "6": (case_6, frozenset({"KV302", "KV309"})),
    "7": (case_7, frozenset({"KV209"})),
    "8": (case_8, frozenset({"KV103", "KV106", "KV107"})),
    "9a": (case_9a, frozenset({"KV109"})),
    "9b": (case_9b, frozenset({"KV110"})),
    "9c": (case_9c, frozenset({"KV111"})),
    "10": (case_10, frozenset({"KV201"})),
    "11": (case_11, frozenset({"KV303", "KV311"})),
    "12": (case_12, frozenset({"KV308"})),
    "13": (case_13, frozenset({"KV408"})),
    "14": (case_14, frozenset({"KV521"})),
    "15": (case_15, frozenset()),
    "16": (case_16, frozenset({"KV207"})),
    "17": (case_17, frozenset({"KV532"})),
    "18": (case_18, frozenset({"KV208"})),
    "19": (case_19, frozenset({"KV403"})),
    "21": (case_21, frozenset({"KV118"})),
    "22": (case_22, frozenset({"KV206"})),
    "23": (case_23, frozenset()),
    "24": (case_24, frozenset({"KV201"})),
}
"""Each case with the codes that must be found, and no others. Case 20 is about files of the host, no snapshot."""
