"""Realistic snapshots without an engine: Gemma-3-like and DeepSeek-V4-like groups, prefixes, requests, decisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from agent.model.decision import Decision, Outcome, Phase, Reason, WaterfallStep
from agent.model.groups import Geometry, Group, Layer
from agent.model.snapshot import (
    Capability,
    Capture,
    Consistency,
    EngineInfo,
    Level,
    PageColumns,
    PoolInfo,
    RequestInfo,
    Snapshot,
)
from agent.model.states import GroupId, PageId, ResumeKind, State, Tokens

NOON_NS = 1_790_000_000_000_000_000
"""A fixed wall clock, so that golden files hold still."""

Prompt = Sequence[tuple[str, Tokens]]
"""Segments of text, each with the token position that it ends at: ``[("system", 1280), ("user-a", 2000)]``."""


def key_of(prompt: Prompt, position: Tokens) -> bytes:
    """Return the chained key of the prefix of ``prompt`` that ends at ``position``."""
    path = []
    for name, end in prompt:
        path.append(name)
        if position <= end:
            return blake2b(f"{'/'.join(path)}@{position}".encode(), digest_size=16).digest()
    raise ValueError(f"{position} lies beyond the prompt")


def chain_of(prompt: Prompt, hash_unit: Tokens) -> tuple[bytes, ...]:
    """Return the keys at every hash unit of a prompt."""
    return tuple(key_of(prompt, at) for at in range(hash_unit, prompt[-1][1] + 1, hash_unit))


@dataclass
class Pool:
    """A page table that is filled prefix by prefix; page 0 is the null page."""

    geometry: Geometry
    size: int
    next_page: int = 1
    rows: dict[int, tuple[int, bytes, Tokens, bytes | None, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    calls: int = 0

    def keep(self, prompt: Prompt, group: int, positions: Iterable[Tokens], *, step: int = 10) -> list[int]:
        """Register the pages of one group that end at ``positions``; a key that is there already is shared."""
        block = self.geometry.groups[group].block_size
        self.calls += 1
        pages = []
        for position in positions:
            key = key_of(prompt, position)
            known = next((p for p, row in self.rows.items() if row[0] == group and row[1] == key), None)
            if known is None:
                known = self.next_page
                self.next_page += 1
                parent = key_of(prompt, position - block) if position > block else None
                self.rows[known] = (group, key, position, parent, (step << 20) | self.calls)
            pages.append(known)
        return pages

    def keep_all(self, prompt: Prompt, group: int, upto: Tokens, *, step: int = 10) -> list[int]:
        """Register every page of one group of the first ``upto`` tokens."""
        block = self.geometry.groups[group].block_size
        return self.keep(prompt, group, range(block, upto + 1, block), step=step)

    def keep_tail(self, prompt: Prompt, group: int, at: Tokens, *, step: int = 10) -> list[int]:
        """Register only the pages that resuming at ``at`` needs: what an engine retains of a window by default."""
        item = self.geometry.groups[group]
        past = item.window_past_tokens or 0
        first = max(0, at - past) // item.block_size * item.block_size + item.block_size
        return self.keep(prompt, group, range(first, at + 1, item.block_size), step=step)

    def evict(self, prompt: Prompt, group: int, position: Tokens) -> None:
        """Take the page of one group that ends at ``position`` out of the cache."""
        key = key_of(prompt, position)
        for page in [p for p, row in self.rows.items() if row[0] == group and row[1] == key]:
            del self.rows[page]

    def columns(self, *, references: bool = True, late: bool = False) -> PageColumns:
        """Return the table as columns; ``late``: as a reader sees it that joined afterwards, without parents."""
        n = self.size
        key = np.zeros((n, 16), np.uint8)
        parent = np.zeros((n, 8), np.uint8)
        group = np.zeros(n, np.uint8)
        tokens = np.zeros(n, np.uint32)
        stamp = np.zeros(n, np.uint64)
        counts = np.zeros(n, np.int32)
        for page, (gid, own, position, before, registered) in self.rows.items():
            key[page] = np.frombuffer(own, np.uint8)
            if before is not None and not late:
                parent[page] = np.frombuffer(before[:8], np.uint8)
            group[page], tokens[page], stamp[page] = gid, position, registered
        for page, number in self.held.items():
            counts[page] = number
        free = (counts == 0).astype(np.uint8)
        free[0] = 0
        return PageColumns(
            count=n,
            key=_bytes(key),
            group=_bytes(group),
            tokens=_bytes(tokens),
            stamp=_bytes(stamp),
            parent=_bytes(parent),
            references=_bytes(counts) if references else None,
            free=_bytes(free) if references else None,
            committed_step=1_000,
        )

    def info(self) -> PoolInfo:
        """Return the counters of the pool."""
        return PoolInfo(
            pages=self.size,
            null_page=PageId(0),
            free=self.size - 1 - len(self.held),
            keys=len({row[:2] for row in self.rows.values()}),
            page_bytes=64 * 1024,
        )


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.tobytes())


def gemma_geometry() -> Geometry:
    """Return Gemma-3-like groups: two of sliding windows, one of full attention, block 16."""

    def layers(first: int, state: State) -> tuple[Layer, ...]:
        return tuple(Layer(name=f"model.layers.{first + i}.self_attn.attn", state=state) for i in range(2))

    window = [
        Group(
            id=GroupId(at),
            name=f"swa16/w1024#{at}",
            states=(State.SWA,),
            kind=ResumeKind.WINDOW,
            block_size=16,
            window_past_tokens=1023,
            layers=layers(at * 2, State.SWA),
            page_bytes=64 * 1024,
            spec="SlidingWindowSpec",
        )
        for at in (0, 1)
    ]
    full = Group(
        id=GroupId(2),
        name="compressed16#2",
        states=(State.COMPRESSED,),
        kind=ResumeKind.FULL,
        block_size=16,
        layers=layers(4, State.COMPRESSED),
        page_bytes=64 * 1024,
        spec="FullAttentionSpec",
        lookup_class=1,
    )
    return Geometry(groups=(*window, full), hash_unit=16, alignment=16, retention_interval=0, max_model_tokens=32_768)


def deepseek_geometry() -> Geometry:
    """Return the five groups that vLLM makes for DeepSeek-V4: hash unit 4, alignment 256."""

    def window(at: int, state: State, block: Tokens, past: Tokens, layer: str) -> Group:
        return Group(
            id=GroupId(at),
            name=f"{state}{block}/w{past + 1}#{at}",
            states=(state,),
            kind=ResumeKind.WINDOW,
            block_size=block,
            window_past_tokens=past,
            layers=(Layer(name=layer, state=state, page_bytes=37_440),),
            page_bytes=37_440,
            spec="SlidingWindowMLASpec",
            lookup_class=at,
        )

    main = Group(
        id=GroupId(2),
        name="compressed256/m4#2",
        states=(State.COMPRESSED, State.INDEXER),
        kind=ResumeKind.FULL,
        block_size=256,
        tokens_per_entry=4,
        layers=(
            Layer(name="model.layers.2.attn.mla", state=State.COMPRESSED, page_bytes=37_440),
            Layer(name="model.layers.2.attn.indexer.k_cache", state=State.INDEXER, page_bytes=8_640),
        ),
        page_bytes=46_080,
        spec="MLAAttentionSpec",
        lookup_class=2,
    )
    return Geometry(
        groups=(
            window(0, State.SWA, 64, 127, "model.layers.0.attn.swa_cache"),
            window(1, State.SWA, 64, 127, "model.layers.1.attn.swa_cache"),
            main,
            window(3, State.TAIL, 4, 7, "model.layers.2.attn.compressor.state"),
            window(4, State.TAIL, 8, 127, "model.layers.3.attn.compressor.state"),
        ),
        hash_unit=4,
        alignment=256,
        retention_interval=0,
        max_model_tokens=65_536,
    )


def _engine(model: str, name: str, pid: int) -> EngineInfo:
    return EngineInfo(
        pid=pid,
        start_ticks=123_456,
        engine="vllm",
        version="0.32.0",
        model=model,
        name=name,
        agent_version="0.1.0",
        devices=("NVIDIA H200",),
    )


def _capture() -> Capture:
    return Capture(
        consistency=Consistency.ATOMIC,
        level=Level.REFERENCES,
        epoch=4_211,
        taken_ns=NOON_NS,
        age_ns=12_000_000,
        duration_ns=2_900_000,
    )


CAPABILITIES = (
    Capability(name="decisions", on=True),
    Capability(name="feed", on=True),
    Capability(name="commit_fence", on=True),
    Capability(name="changes", on=False, reason="the engine was started read-only (kvctl run --allow-changes)"),
)

COUNTERS = {
    "reuse_lookup_tokens": 409_600.0,
    "reuse_logical_tokens": 352_256.0,
    "reuse_usable_tokens": 151_552.0,
    "decisions": 200.0,
}


def decision(
    at: int,
    request: str,
    outcome: Outcome,
    lookup: Tokens,
    logical: Tokens | None,
    usable: Tokens,
    *,
    group: int | None = None,
    state: State | None = None,
    reason: Reason | None = None,
    phase: Phase = Phase.FIRST,
    per_group: tuple[Tokens | None, ...] | None = None,
) -> Decision:
    """Return a decision whose waterfall has one step for the loss, if there is one."""
    lost = 0 if logical is None else logical - usable
    limiting = None if group is None else GroupId(group)
    steps = (
        (WaterfallStep(group=limiting, reason=reason, from_tokens=usable + lost, to_tokens=usable),)
        if lost and reason is not None
        else ()
    )
    return Decision(
        id=at,
        time_ns=NOON_NS - (100 - at) * 250_000_000,
        step=900 + at,
        request=request,
        phase=phase,
        outcome=outcome,
        lookup_tokens=lookup,
        engine_usable=usable,
        logical=logical,
        usable=None if logical is None else usable,
        external=0,
        limiting_group=limiting,
        limiting_state=state,
        reason=reason,
        lost=((reason, limiting, lost),) if lost and reason is not None else (),
        per_group=per_group,
        waterfall=steps,
        lookups=1 + at % 3,
        duration_ns=41_000 + at * 100,
        epoch=4_000 + at,
    )


SYSTEM: Prompt = (("system", 1_280), ("alice", 2_048))
SIBLING: Prompt = (("system", 1_280), ("bob", 1_792))
OTHER: Prompt = (("other", 768),)


def gemma(request_prefix: str = "chatcmpl-") -> Snapshot:
    """Return a Gemma-3-like engine: one whole prefix, a sibling whose window was not kept, one with a hole."""
    pool = Pool(gemma_geometry(), 1_025)
    full = pool.keep_all(SYSTEM, 2, 2_048)
    windows = [pool.keep_tail(SYSTEM, group, 2_048) for group in (0, 1)]
    pool.keep_all(SIBLING, 2, 1_792)
    pool.keep_tail(SIBLING, 0, 1_792)
    pool.keep_tail(SIBLING, 1, 1_792)
    pool.evict(SIBLING, 1, 1_600)
    for group in (0, 1, 2):
        pool.keep_all(OTHER, group, 768)
    pool.held = dict.fromkeys([*full, *windows[0], *windows[1]], 1)
    window_table = tuple(PageId(page) for page in windows[0])
    requests = (
        RequestInfo(
            id=f"{request_prefix}alice",
            status="running",
            tokens=2_061,
            prompt_tokens=2_050,
            computed_tokens=2_060,
            in_flight_tokens=1,
            tables=(window_table, tuple(PageId(p) for p in windows[1]), tuple(PageId(p) for p in full)),
        ),
        RequestInfo(
            id=f"{request_prefix}carol", status="waiting", tokens=900, prompt_tokens=900, computed_tokens=0, tables=None
        ),
    )
    hole, kept = Reason.WINDOW_HOLE, Reason.NOT_RETAINED
    swa = State.SWA
    decisions = (
        decision(1, f"{request_prefix}zoe", Outcome.RECOMPUTE, 768, 0, 0, reason=Reason.COLD),
        decision(2, f"{request_prefix}alice", Outcome.REUSE, 2_050, 2_048, 2_048, per_group=(2_048, 2_048, 2_048)),
        decision(3, f"{request_prefix}bob", Outcome.RECOMPUTE, 1_500, 1_280, 0, group=0, state=swa, reason=kept),
        decision(4, f"{request_prefix}dave", Outcome.RECOMPUTE, 1_800, 1_792, 0, group=1, state=swa, reason=hole,
                 per_group=(1_792, 576, 1_792)),
        decision(5, f"{request_prefix}erin", Outcome.PARTIAL, 3_000, 2_048, 768, group=1, state=swa, reason=hole),
        decision(6, f"{request_prefix}frank", Outcome.REUSE, 500, None, 480, phase=Phase.RESUMED),
    )  # fmt: skip
    return Snapshot(
        engine=_engine("google/gemma-3-4b-it", "gemma", 4_711),
        capture=_capture(),
        geometry=pool.geometry,
        pool=pool.info(),
        pages=pool.columns(),
        requests=requests,
        decisions=decisions,
        counters=COUNTERS,
        capabilities=CAPABILITIES,
    )


def deepseek() -> Snapshot:
    """Return a DeepSeek-V4-like engine: a whole prefix of 2,000 tokens and one whose tail page is gone (cases 1, 3)."""
    pool = Pool(deepseek_geometry(), 513)
    whole: Prompt = (("whole", 2_000),)
    broken: Prompt = (("broken", 2_000),)
    for prompt in (whole, broken):
        pool.keep_all(prompt, 2, 1_792)
        for group in (0, 1, 3, 4):
            pool.keep_tail(prompt, group, 1_792)
    pool.evict(broken, 3, 1_792)
    decisions = (
        decision(1, "req-whole", Outcome.REUSE, 2_050, 1_792, 1_792, per_group=(1_792,) * 5),
        decision(2, "req-broken", Outcome.RECOMPUTE, 2_050, 1_792, 0, group=3, state=State.TAIL,
                 reason=Reason.TAIL_MISSING, per_group=(1_792, 1_792, 1_792, 0, 1_792)),
    )  # fmt: skip
    return Snapshot(
        engine=_engine("deepseek-ai/DeepSeek-V4-Flash", "deepseek", 4_712),
        capture=_capture(),
        geometry=pool.geometry,
        pool=pool.info(),
        pages=pool.columns(),
        requests=(),
        decisions=decisions,
        counters=COUNTERS,
        capabilities=CAPABILITIES,
    )
