"""The gates stay silent on vLLM's real cache manager while it is full and everything happens to it."""

from dataclasses import replace
from random import Random

import pytest

from agent.gates.runner import run
from agent.model.finding import GateName
from agent.model.snapshot import Snapshot
from tests.support.cache_core import KINDS, Workload, make_core
from tests.support.direct_reader import read

CHECKS = 340
"""Checks of a pool that is more than 95 % full, for each of three group mixes: more than 1,000 in all."""


def fullness(snapshot: Snapshot) -> float:
    """Share of the pool that is held or cached."""
    if snapshot.pages is None or snapshot.pages.references is None:
        raise AssertionError
    counts = snapshot.pages.references.cast("i")
    tokens = snapshot.pages.tokens.cast("I")
    return sum(bool(counts[page] or tokens[page]) for page in range(1, snapshot.pages.count)) / (
        snapshot.pages.count - 1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_finding_on_a_full_pool(kind: str) -> None:
    """Over admissions, chunked prefill, decoding, evictions, aborts and resets no gate says anything."""
    core = make_core(kind, {"gemma3": 700, "deepseek_v4": 1_500, "mamba_partial": 150}[kind])
    load = Workload(core, Random(kind))
    full = steps = 0
    while full < CHECKS:
        steps += 1
        assert steps < 20 * CHECKS, f"the pool was full in {full} steps only"
        load.schedule()
        chains = [(list(request.block_hashes), request.num_tokens - 1) for request in load.running[:4]]
        snapshot = read(core.manager, load.running, chains=chains)
        full += fullness(snapshot) > 0.95
        counted = replace(snapshot, evidence=None)
        results = (*run(snapshot, [GateName.BLOCK, GateName.INTERSECTION]), *run(counted, [GateName.BLOCK]))
        assert [finding.sentence for result in results for finding in result.findings] == []
    assert load.totals.evictions > 0
    assert load.totals.requests > CHECKS / 2
