"""The commit fence against the truth about every slot, on vLLM's own schedulers."""

import os
from pathlib import Path

import pytest

from tests.support.models import write_model
from tests.support.step_engine import Setting, StepEngine

pytestmark = pytest.mark.engine

NIGHTLY = bool(os.environ.get("KVCTL_NIGHTLY"))
PREEMPTIONS = 1700 if NIGHTLY else 170
"""For each of six schedulers: 10^3 in all, 10^4 nightly."""
NEVER = 40 if NIGHTLY else 4
STEP_LIMIT = 200_000

SCHEDULERS = [(asynchronous, in_flight) for asynchronous in (False, True) for in_flight in (0, 2, 4)]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's configuration; there are no weights, nothing is computed."""
    return write_model(tmp_path_factory.mktemp("models"), "llama")


@pytest.mark.parametrize(("asynchronous", "in_flight"), SCHEDULERS)
def test_first_come_order_brands_no_page(model: Path, *, asynchronous: bool, in_flight: int) -> None:
    """Through many preemptions under first-come order no page is called never-computed, and none is."""
    engine = StepEngine(
        model,
        Setting(
            policy="fcfs",
            asynchronous=asynchronous,
            in_flight=in_flight,
            pages=90,
            requests=16,
            outputs=(60, 200),
            patient=0,
            seed=5 + in_flight,
        ),
    )
    assert engine.feed.reason is None
    judged = 0
    for step in range(STEP_LIMIT):
        if engine.preemptions >= PREEMPTIONS:
            break
        engine.add_requests()
        engine.step()
        if step % 25 == 0:
            engine.judge()
            judged += 1
    assert engine.preemptions >= PREEMPTIONS
    assert judged > 3
    assert not engine.verdicts.never
    assert not engine.verdicts.tainted
    assert not engine.verdicts.missed
    assert engine.verdicts.committed


@pytest.mark.parametrize(("asynchronous", "in_flight"), SCHEDULERS)
def test_every_never_computed_page_is_found_under_priority(model: Path, *, asynchronous: bool, in_flight: int) -> None:
    """In a load that makes them, all never-computed pages are named, and nothing else; what was built on them too."""
    engine = StepEngine(
        model,
        Setting(
            policy="priority",
            asynchronous=asynchronous,
            in_flight=in_flight,
            pages=150,
            requests=20,
            patient=3,
            patient_tokens=(600, 900),
            chunk=48,
            outputs=(10, 60),
            wave_steps=20,
            seed=3,
        ),
    )
    named: set[int] = set()
    for _ in range(STEP_LIMIT):
        if len(engine.verdicts.never) >= NEVER and engine.preemptions >= PREEMPTIONS // 4:
            break
        engine.add_requests()
        engine.step(engine.judge if named else None)
        fresh = engine.feed.never_computed() - named
        named |= fresh
        if fresh:
            engine.relieve()
    verdicts = engine.verdicts
    assert len(verdicts.never) >= NEVER
    assert verdicts.never_falsely <= verdicts.left_over
    assert not verdicts.missed
    assert not verdicts.tainted_missed
    assert bool(verdicts.left_over) or not verdicts.tainted_falsely


def test_what_is_built_on_a_never_computed_page_is_named_tainted(model: Path) -> None:
    """A preempted request that resumes on its own never-computed pages taints what it computes from there."""
    engine = StepEngine(
        model,
        Setting(
            policy="priority",
            asynchronous=False,
            in_flight=0,
            pages=150,
            requests=20,
            patient=3,
            patient_tokens=(600, 900),
            chunk=48,
            outputs=(10, 60),
            wave_steps=20,
            seed=3,
        ),
    )
    named: set[int] = set()
    for _ in range(STEP_LIMIT):
        if engine.verdicts.tainted:
            break
        engine.add_requests()
        engine.step(engine.judge if named else None)
        fresh = engine.feed.never_computed() - named
        named |= fresh
        if fresh:
            engine.relieve()
    assert engine.verdicts.tainted
    assert not engine.verdicts.tainted_missed
    assert not engine.verdicts.tainted_falsely
