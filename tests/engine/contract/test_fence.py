"""The commit fence on this version's two schedulers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.step_engine import Setting, StepEngine

pytestmark = pytest.mark.engine

PREEMPTIONS = 40
STEP_LIMIT = 20_000


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_commit_fence(model: Callable[..., Path], *, asynchronous: bool) -> None:
    """Through preemptions no page that was computed is called never-computed, and none is missed."""
    setting = Setting(
        policy="fcfs",
        asynchronous=asynchronous,
        in_flight=2 if asynchronous else 0,
        pages=90,
        requests=16,
        outputs=(60, 200),
        patient=0,
    )
    engine = StepEngine(model("llama"), setting)
    assert engine.feed.reason is None
    for step in range(STEP_LIMIT):
        if engine.preemptions >= PREEMPTIONS:
            break
        engine.add_requests()
        engine.step()
        if step % 25 == 0:
            engine.judge()
    assert engine.preemptions >= PREEMPTIONS
    verdicts = engine.verdicts
    assert verdicts.committed
    assert not verdicts.never | verdicts.missed | verdicts.tainted
