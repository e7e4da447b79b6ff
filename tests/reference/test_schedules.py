"""Reuse equals full recomputation, whatever happens in between."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.reference import NIGHTLY, Truth, run_schedule

SCHEDULES = 2_000 if NIGHTLY else 200
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_reuse_equals_recomputation(part: int, tmp_path: Path) -> None:
    """Hidden states and logits of random schedules equal full recomputation to 1e-9, pages stay consistent."""
    truth = Truth()
    for seed in range(part, SCHEDULES, PARTS):
        folder = str(tmp_path / str(seed)) if seed % 4 == 0 else None
        assert run_schedule(seed, truth, folder=folder).worst < 1e-9, f"schedule {seed}"


def test_the_schedules_reach_everything(tmp_path: Path) -> None:
    """Thirty schedules see every route, the degradation chain, preemption, cancellation and loads from a tier."""
    truth, seen = Truth(), Counter[str]()
    for seed in range(30):
        result = run_schedule(seed, truth, folder=str(tmp_path / str(seed)))
        seen += result.records
        seen["preempted"] += result.preemptions
        seen["cancelled"] += result.cancelled
        seen["loaded"] += result.loaded
    wanted = {
        "map_in_place",
        "recompute_tail",
        "realign_window",
        "rebuild_indexer",
        "transfer",
        "degraded",
        "reuse",
        "partial",
        "prefetching",
        "recompute",
        "preempted",
        "cancelled",
        "loaded",
    }
    assert wanted <= set(seen), wanted - set(seen)
