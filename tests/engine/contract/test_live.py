"""A model running on this version with the agent in it; only builds with kernels for this machine collect this."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.model.snapshot import Level
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.bare_engine import distinct_keys
from tests.support.prompts import prompt, sibling

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine: window groups and a full one."""
    with engine_in_process(model("gemma3", seed=1), pages=160) as running:
        yield running


def test_every_capability_is_on(engine: Engine) -> None:
    """On an engine that runs a model nothing is off except the hook of a connector, which it does not have."""
    with engine.session() as session:
        found = session.overview().capabilities
    assert found
    assert {item.name for item in found if not item.on} <= {"external"}


def test_decisions_and_the_table_are_the_engines(engine: Engine) -> None:
    """Through prefills, decoding and hits the reported reuse is the engine's, our usable equals it, audits agree."""
    stem = prompt("live", 400)
    prompts = [stem, stem, sibling(stem, 200, "live2", 90), stem[:-1]]
    with engine.session() as session:
        session.follow(Level.REFERENCES)
        for number, ids in enumerate(prompts):
            output = engine.run(f"live{number}", ids)
            (decision,) = session.poll()
            assert decision.engine_usable == decision.usable == output.num_cached_tokens
            session.call("audit")
        session.poll()
        snapshot = session.snapshot()
    assert snapshot.pages is not None
    assert snapshot.pool is not None
    assert 0 < distinct_keys(snapshot.pages) == snapshot.pool.keys


def test_a_prefix_is_taken_out(engine: Engine) -> None:
    """After an invalidation by key the same prompt is computed anew, and hits again after that."""
    ids = prompt("taken out", 300)
    engine.run("out0", ids)
    engine.add("keys", ids, 2)
    engine.step()
    with engine.session() as session:
        name = next(name for name in engine.core.scheduler.requests if name.startswith("keys"))
        joined = bytes.fromhex(session.call("chain", request=name)["keys"])
        engine.finish()
        chain = [joined[start : start + 16] for start in range(0, len(joined), 16)][: len(ids) // BLOCK]
        keys = [[int(group.id), key.hex()] for group in session.geometry.groups for key in chain]
        done = session.call("invalidate_apply", plan=session.call("invalidate_plan", keys=keys))
        assert done["removed"] >= len(chain)
    assert engine.run("out1", ids).num_cached_tokens == 0
    assert engine.run("out2", ids).num_cached_tokens == len(ids) // BLOCK * BLOCK
