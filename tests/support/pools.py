"""Healthy snapshots of any group mix, filled the way an engine fills its pool.

Invariant: what ``PoolBuilder.build`` gives has no fault unless a test edits it. For tests of gates and of analysis.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from agent.explain import explain
from agent.gates.editor import Editor
from agent.gates.presence import KeyPresence
from agent.gates.view import View
from agent.model.decision import Decision, Outcome, Phase
from agent.model.evidence import Evidence
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Capture, Consistency, EngineInfo, Level, PageColumns, PoolInfo, RequestInfo, Snapshot
from agent.model.states import GroupId, PageId, Requirement, ResumeKind, State, Tokens

PROVEN_ENGINE = EngineInfo(
    pid=4711,
    start_ticks=1,
    engine="vllm",
    version="0.32.0",
    model="fixture",
    details={"scheduler": "Scheduler", "executor": "uni", "async_scheduling": "false", "tier": "none"},
)


def chain_of(name: str, tokens: Tokens, unit: Tokens, *, fork: tuple[str, Tokens] | None = None) -> tuple[bytes, ...]:
    """Give the chained keys of a prompt; with ``fork`` it shares the first tokens with another prompt."""
    keys: list[bytes] = []
    before = b""
    for end in range(unit, tokens + 1, unit):
        owner = fork[0] if fork is not None and end <= fork[1] else name
        before = blake2b(before + owner.encode() + end.to_bytes(4, "little"), digest_size=16).digest()
        keys.append(before)
    return tuple(keys)


@dataclass(slots=True)
class Evicted:
    """The memory of removed keys; everything else was certainly never registered."""

    keys: set[tuple[int, bytes]] = field(default_factory=set)

    def seen(self, group: GroupId | None, key: bytes, /) -> bool | None:
        """See ``agent.resume.Ghost``."""
        return any(known == key and group in {None, owner} for owner, known in self.keys)

    def taken(self, group: GroupId | None, key: bytes, /) -> bool:
        """Nobody takes anything out on purpose here."""
        del group, key
        return False


@dataclass(slots=True)
class PoolBuilder:
    """A pool that is filled page by page; page 0 is the null page."""

    geometry: Geometry
    pages: int = 256
    parents: bool = True
    rows: dict[int, tuple[int, bytes, Tokens, int, bytes]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    requests: list[RequestInfo] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    ghost: Evicted = field(default_factory=Evicted)
    evidence: Evidence = field(default_factory=Evidence)
    cursor: int = 1
    step: int = 1

    def take(self) -> int:
        """Take the next page that was never used."""
        if self.cursor >= self.pages:
            raise ValueError("the fixture's pool is too small")
        self.cursor += 1
        return self.cursor - 1

    def cache(self, chain: Sequence[bytes], group: Group, ends: Iterable[Tokens]) -> dict[Tokens, int]:
        """Cache the pages of one group that end at some boundaries; a page that is there already is shared."""
        unit = self.geometry.hash_unit
        found: dict[Tokens, int] = {}
        for end in ends:
            key = chain[end // unit - 1]
            page = next((page for page, row in self.rows.items() if row[0] == group.id and row[1] == key), None)
            if page is None:
                page = self.take()
                before = end - group.block_size
                parent = chain[before // unit - 1][:8] if before > 0 else bytes(8)
                self.rows[page] = (group.id, key, end, self.step << 20, parent)
            found[end] = page
        self.step += 1
        return found

    def needed(self, group: Group, tokens: Tokens, *, dense: bool) -> list[Tokens]:
        """Boundaries that an engine registers for a prompt: all, or only the tail that a resumption needs."""
        block, unit = group.block_size, self.geometry.alignment
        whole = range(block, tokens + 1, block)
        end = tokens // unit * unit
        if dense or group.kind is ResumeKind.FULL:
            return list(whole)
        if group.kind is ResumeKind.WINDOW:
            start = max(0, end - (group.window_past_tokens or 0)) // block * block
            return [at for at in whole if start < at <= end]
        if group.kind is ResumeKind.CHUNKED:
            start = end // (group.chunk_tokens or 1) * (group.chunk_tokens or 1) // block * block
            return [at for at in whole if start < at <= end]
        return [end] if group.kind is ResumeKind.RECURRENT and end else []

    def prompt(
        self, chain: Sequence[bytes], tokens: Tokens, *, dense: bool = False, request: str | None = None
    ) -> None:
        """Cache a prompt in every group; with ``request``, its request still runs and holds the pages."""
        tables: list[tuple[PageId, ...]] = []
        for group in self.geometry.groups:
            cacheable = group.kind not in {ResumeKind.NONE, ResumeKind.UNKNOWN}
            ends = self.needed(group, tokens, dense=dense) if cacheable else []
            pages = self.cache(chain, group, ends)
            row = [PageId(pages.get(end, 0)) for end in range(group.block_size, tokens + 1, group.block_size)]
            if request is not None:
                row.append(PageId(self.take()))
                for page in row:
                    self.counts[page] = self.counts.get(page, 0) + (page != 0)
            tables.append(tuple(row))
        if request is not None:
            self.requests.append(
                RequestInfo(
                    id=request,
                    status="running",
                    tokens=tokens + 1,
                    prompt_tokens=tokens,
                    computed_tokens=tokens,
                    tables=tuple(tables),
                )
            )

    def evict(self, chain: Sequence[bytes], group: int, end: Tokens) -> int:
        """Evict one page; the ghost remembers it."""
        key = chain[end // self.geometry.hash_unit - 1]
        page = next(page for page, row in self.rows.items() if row[0] == group and row[1] == key)
        del self.rows[page]
        self.ghost.keys.add((group, key))
        return page

    def look_up(
        self, chain: Sequence[bytes], tokens: Tokens, answer: Tokens | None = None, **fields: object
    ) -> Decision:
        """Decide a look-up as the session does; the engine's answer is ours unless it is given."""
        snapshot = self.build()
        record = Decision(
            id=len(self.decisions) + 1, time_ns=0, step=self.step, request=f"request {len(self.decisions) + 1}",
            phase=Phase.FIRST, outcome=Outcome.UNKNOWN, lookup_tokens=tokens, engine_usable=answer or 0, logical=None,
            usable=None, external=0, limiting_group=None, limiting_state=None, reason=None, chain=tuple(chain),
            epoch=7,
        )  # fmt: skip
        record = replace(record, **fields)  # type: ignore[arg-type]
        presence = KeyPresence(View(snapshot), chain)
        decided = explain(self.geometry, presence, self.ghost, record)
        if answer is None and decided.usable:
            decided = explain(self.geometry, presence, self.ghost, replace(record, engine_usable=decided.usable))
        self.decisions.append(decided)
        return decided

    def columns(self) -> PageColumns:
        """Give the page table."""
        n = self.pages
        key, parent = np.zeros((n, 16), "u1"), np.zeros((n, 8), "u1")
        group, tokens, stamp = np.zeros(n, "u1"), np.zeros(n, "<u4"), np.zeros(n, "<u8")
        counts = np.zeros(n, "<i4")
        for page, row in self.rows.items():
            group[page], key[page], tokens[page], stamp[page] = row[0], np.frombuffer(row[1], "u1"), row[2], row[3]
            parent[page] = np.frombuffer(row[4], "u1")
        for page, number in self.counts.items():
            counts[page] = number
        free = (counts == 0).astype("u1")
        free[0] = 0
        parts = {"key": key, "group": group, "tokens": tokens, "stamp": stamp, "references": counts, "free": free}
        if self.parents:
            parts["parent"] = parent
        views: dict[str, Any] = {name: memoryview(array.tobytes()) for name, array in parts.items()}
        return PageColumns(count=n, committed_step=self.step, **views)

    def build(self) -> Snapshot:
        """Give the snapshot."""
        columns = self.columns()
        free = tuple(PageId(page) for page in range(1, self.pages) if not self.counts.get(page))
        return Snapshot(
            engine=PROVEN_ENGINE,
            capture=Capture(consistency=Consistency.ATOMIC, level=Level.REFERENCES, epoch=7, taken_ns=0),
            geometry=self.geometry,
            pool=PoolInfo(
                pages=self.pages, null_page=PageId(0), free=len(free), keys=len({row[:2] for row in self.rows.values()})
            ),
            pages=columns,
            requests=tuple(self.requests),
            decisions=tuple(self.decisions),
            holders={},
            free_list=free,
            evidence=self.evidence,
        )

    def edit(self) -> Editor:
        """Give the snapshot for editing."""
        return Editor(self.build())


def group_of(number: int, kind: ResumeKind, block: Tokens, **fields: object) -> Group:
    """Make one group; its state follows from its kind unless it is given."""
    state = {
        ResumeKind.WINDOW: State.SWA,
        ResumeKind.CHUNKED: State.SWA,
        ResumeKind.UNKNOWN: State.UNKNOWN,
    }.get(kind, State.COMPRESSED)
    plain = Group(
        id=GroupId(number),
        name=f"{kind}{block}#{number}",
        states=(state,),
        kind=kind,
        block_size=block,
        lookup_class=number,
        requirement=Requirement.TRANSIENT if kind is ResumeKind.NONE else Requirement.REQUIRED,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def deepseek_v4(retention: Tokens | None = 0) -> Geometry:
    """Give the five groups of DeepSeek-V4: two windows, the compressed group with the indexer, two tails."""
    window, tail = ResumeKind.WINDOW, (State.TAIL,)
    return Geometry(
        groups=(
            group_of(0, window, 64, window_past_tokens=127),
            group_of(1, window, 64, window_past_tokens=127, lookup_class=0),
            group_of(2, ResumeKind.FULL, 256, states=(State.COMPRESSED, State.INDEXER), tokens_per_entry=4),
            group_of(3, window, 4, window_past_tokens=7, states=tail),
            group_of(4, window, 8, window_past_tokens=127, states=tail),
        ),
        hash_unit=4,
        alignment=256,
        retention_interval=retention,
    )


def plain(block: Tokens = 16) -> Geometry:
    """Give one group of full attention."""
    return Geometry(groups=(group_of(0, ResumeKind.FULL, block),), hash_unit=block, alignment=block)
