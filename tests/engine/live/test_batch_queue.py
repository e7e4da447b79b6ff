"""The probe in the other loop of the engine, which has several batches in flight."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine.live.engines import engine_in_process
from tests.support.prompts import prompt, sibling

OUTPUT = 12


def prompts() -> list[list[int]]:
    """Prompts of which some share a prefix."""
    stem = prompt("queue", 500)
    return [sibling(stem, 96 * (number % 4), f"queue{number}", 70 + 20 * number) for number in range(10)]


def test_batches_in_flight(model: Callable[..., Path]) -> None:
    """With a batch queue every look-up agrees, the table is exact at each audit, and nothing is branded falsely."""
    with engine_in_process(model("llama", seed=1), pages=96, agent=False) as bare:
        wanted = [
            tuple(bare.run(f"q{number}", ids, OUTPUT).outputs[0].token_ids) for number, ids in enumerate(prompts())
        ]
    with engine_in_process(model("llama", seed=1), pages=96) as engine:
        core = engine.core
        core.batch_queue_size = 2
        core.batch_queue = deque(maxlen=2)
        core.step_fn = core.step_with_batch_queue
        shadows: list[int] = []
        feed = engine.probe.feed
        original = feed.shadow

        def shadow() -> None:
            shadows.append(len(core.batch_queue))
            original()

        feed.shadow = shadow
        seen: list[Any] = []
        with engine.session() as session:
            session.follow()
            for number, ids in enumerate(prompts()):
                engine.add(f"q{number}", ids, OUTPUT)
                engine.step(2)
                session.call("audit")
                seen += session.poll()
            engine.finish()
            seen += session.poll()
            reader = session._follower._reader  # type: ignore[union-attr]
            assert reader.audits == len(prompts())
            assert reader.failed_audits == 0
            status = session.call("capabilities")["feed"]
        assert [tuple(engine.results[f"q{number}"].outputs[0].token_ids) for number in range(10)] == wanted
        assert [item.usable for item in seen] == [item.engine_usable for item in seen]
        assert len(seen) == 10
        assert (status["never_computed"], status["tainted"]) == (0, 0)
        assert shadows, "the batch's shadow was never used"
        assert engine.probe.guard.errors == 0
        assert len(engine.probe.outputs) == len(core.batch_queue)
