"""How long all gates take over a pool of a million pages with 100,000 prefixes, on one core, and how much memory.

Goal: 0.5 s and 1 GB. Run it as ``python benchmarks/gates_speed.py [PAGES] [PREFIXES]``; prints one line a gate.
"""

import gc
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.gates.runner import run
from agent.model.decision import Decision, Outcome, Phase
from agent.model.evidence import EngineLookup, Evidence, HashTable, Weights
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Capture, Consistency, EngineInfo, Level, PageColumns, PoolInfo, RequestInfo, Snapshot
from agent.model.states import GroupId, PageId, ResumeKind, State

BLOCK = 16
HELD_SHARE = 0.25
LOOKUPS = 256
DECISIONS = 4_096
REQUESTS = 256


def geometry() -> Geometry:
    """Full attention and one window, as in gpt-oss."""
    full = Group(id=GroupId(0), name="full", states=(State.COMPRESSED,), kind=ResumeKind.FULL, block_size=BLOCK)
    window = Group(
        id=GroupId(1), name="window", states=(State.SWA,), kind=ResumeKind.WINDOW, block_size=BLOCK,
        window_past_tokens=2 * BLOCK - 1, lookup_class=1,
    )  # fmt: skip
    return Geometry(groups=(full, window), hash_unit=BLOCK, alignment=BLOCK)


def pool(pages: int, prefixes: int) -> Snapshot:
    """Fill a pool: each prefix has its full history and the last two windows, a quarter of the pages is held."""
    dice = np.random.default_rng(1)
    length = max(1, (pages - 1) // prefixes - 2)
    per = length + 2
    used = prefixes * per
    order = np.arange(used)
    place, chain = order % per, order // per
    boundary = np.where(place < length, place, place - 2)
    names = dice.integers(1, 1 << 63, size=(prefixes, length, 2), dtype=np.uint64)
    key = np.zeros((pages, 2), dtype="<u8")
    key[1 : used + 1] = names[chain, boundary]
    parent = np.zeros(pages, dtype="<u8")
    parent[1 : used + 1] = np.where(boundary > 0, names[chain, boundary - 1, 0], 0)
    group, tokens, stamp = np.zeros(pages, "u1"), np.zeros(pages, "<u4"), np.zeros(pages, "<u8")
    group[1 : used + 1] = place >= length
    tokens[1 : used + 1] = (boundary + 1) * BLOCK
    stamp[1 : used + 1] = (chain + 1) << 20
    requests = _requests(prefixes, per, length)
    counts = np.zeros(pages, "<i4")
    for request in requests:
        for row in request.tables or ():
            np.add.at(counts, np.array(row), 1)
    counts[0] = 0
    free = np.flatnonzero(counts == 0)[1:]
    table = _hash_table(key, group, tokens)
    columns = PageColumns(
        count=pages, key=key.data.cast("B"), group=group.data, tokens=tokens.data.cast("B"), stamp=stamp.data.cast("B"),
        parent=parent.data.cast("B"), references=counts.data.cast("B"), committed_step=prefixes + 1,
    )  # fmt: skip
    return Snapshot(
        engine=EngineInfo(pid=1, start_ticks=1, engine="vllm", version="0.32.0", model="benchmark"),
        capture=Capture(consistency=Consistency.ATOMIC, level=Level.REFERENCES, epoch=1, taken_ns=0),
        geometry=geometry(),
        pool=PoolInfo(pages=pages, null_page=PageId(0), free=len(free), keys=None),
        pages=columns,
        requests=requests,
        decisions=_decisions(),
        holders={},
        free_list=tuple(free.tolist()),
        evidence=Evidence(hash_table=table, lookups=_lookups(names, length), weights=Weights(changes=(1,))),
    )


def _requests(prefixes: int, per: int, length: int) -> tuple[RequestInfo, ...]:
    held = int(prefixes * HELD_SHARE)
    starts = np.array_split(np.arange(held), REQUESTS)
    requests = []
    for number, own in enumerate(starts):
        # One request holds one chain in a real pool; many short ones make as many table entries.
        for start in own[:1] if len(own) < 2 else own:
            first = 1 + int(start) * per
            tables = (
                tuple(PageId(page) for page in range(first, first + length)),
                tuple([PageId(0)] * (length - 2) + [PageId(first + length), PageId(first + length + 1)]),
            )
            requests.append(
                RequestInfo(
                    id=f"{number}-{start}", status="running", tokens=length * BLOCK + 1, prompt_tokens=length * BLOCK,
                    computed_tokens=length * BLOCK, tables=tables,
                )
            )  # fmt: skip
    return tuple(requests)


def _hash_table(key: np.ndarray, group: np.ndarray, tokens: np.ndarray) -> HashTable:
    rows = np.flatnonzero(tokens)
    return HashTable(
        count=len(rows),
        key=memoryview(key[rows].tobytes()),
        group=memoryview(group[rows].tobytes()),
        page=memoryview(rows.astype("<i4").tobytes()),
    )


def _lookups(names: np.ndarray, length: int) -> tuple[EngineLookup, ...]:
    lookups = []
    for number in range(LOOKUPS):
        chain = tuple(names[number, at].tobytes() for at in range(length))
        lookups.append(
            EngineLookup(request=str(number), chain=chain, limit=length * BLOCK, answer=length * BLOCK, epoch=1)
        )
    return tuple(lookups)


def _decisions() -> tuple[Decision, ...]:
    one = Decision(
        id=1, time_ns=0, step=1, request="r", phase=Phase.FIRST, outcome=Outcome.REUSE, lookup_tokens=200,
        engine_usable=128, logical=128, usable=128, external=0, limiting_group=None, limiting_state=None, reason=None,
        per_group=(128, 128),
    )  # fmt: skip
    return tuple(replace(one, id=number) for number in range(DECISIONS))


def main() -> None:
    """Measure and print."""
    pages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    prefixes = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    snapshot = pool(pages, prefixes)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    best: list[float] = []
    for _ in range(5):
        began = time.process_time()
        results = run(snapshot)
        best.append(time.process_time() - began)
    for result in results:
        print(f"{result.gate:13} {result.verdict:8} checked {result.checked:>10,}  {result.duration_ns / 1e6:8.1f} ms")
        for finding in result.findings:
            print(f"    {finding.code} {finding.sentence}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{pages:,} pages, {prefixes:,} prefixes, {len(snapshot.requests or ()):,} requests: {min(best):.3f} s CPU")
    print(f"peak {peak:.0f} MiB, of which the snapshot {before:.0f} MiB")


if __name__ == "__main__":
    main()
