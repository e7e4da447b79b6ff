"""What recovery routes won is counted once, and shown where an operator looks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from agent.engines.reference.gains import gains
from agent.reference.config import EngineConfig, Recovery
from agent.reference.engine import Engine
from agent.reference.faults import Fault
from agent.reference.injection import inject
from agent.reference.request import Request
from agent.reference.reuse import Answer, ReuseRecord
from agent.reference.workload import Workload
from exporters.readings import of_counters
from inspector.report import Facts
from inspector.views.overview import overview
from tests.reference.test_cases_small import followed
from tests.support.reference import MODEL
from tests.support.snapshots import gemma

CONFIG = EngineConfig(
    compressed_pages=260, tail_pages=220, window_pages=64, indexer_pages=120, retention_interval=0, max_tokens=256
)


@pytest.mark.parametrize(
    ("routes", "degraded", "brought", "expected"),
    [
        ((Recovery.MAP,), False, 0, {"map_in_place": 64}),
        ((Recovery.MAP,), False, 48, {"map_in_place": 16, "transfer": 48}),
        ((Recovery.MAP, Recovery.WINDOW), False, 0, {"map_in_place": 64, "realign_window": 32}),
        (
            (Recovery.TRANSFER, Recovery.MAP, Recovery.INDEXER, Recovery.TAIL),
            False,
            64,
            {"transfer": 64, "rebuild_indexer+recompute_tail": 32},
        ),
        ((Recovery.MAP,), True, 0, {"map_in_place": 64, "recompute_layers": 32}),
    ],
)
def test_each_token_is_won_by_one(
    routes: tuple[Recovery, ...], degraded: bool, brought: int, expected: dict[str, int]
) -> None:
    """What was there, what was brought, and what lies beyond are counted apart, and together they are the reuse."""
    reused = sum(expected.values())
    record = SimpleNamespace(usable=64, reused=reused, routes=routes, degraded=degraded)
    assert gains(record, brought) == expected


def test_what_was_won_is_what_was_not_computed() -> None:
    """Over mixed traffic all routes together won what was reused, and recovery is among them."""
    engine = Engine(MODEL, replace(CONFIG, retention_interval=None))
    records: list[ReuseRecord] = []
    noted = engine.scheduler.note_admitted

    def note(request: Request, answer: Answer) -> None:
        records.append(answer.record)
        noted(request, answer)

    engine.scheduler.note_admitted = note  # type: ignore[method-assign]
    workload = Workload(vocabulary=MODEL.vocabulary, longest=CONFIG.max_tokens - 24, seed=1)
    with followed(engine) as session:
        for number in range(30):
            arrival = workload.next()
            engine.submit(arrival.name, arrival.prompt, arrival.max_new, identity=arrival.identity)
            engine.run()
            if number % 3 == 0:
                inject(engine, Fault.DROP_WINDOW_PAGE)
        counters = session.call("counters")["counters"]
    won = {name: value for name, value in counters.items() if name.startswith("recovered_tokens{")}
    assert sum(won.values()) == sum(record.reused for record in records) > 0
    assert 'recovered_tokens{route="map_in_place"}' in won
    assert len(won) > 1
    engine.close()


def test_the_overview_and_the_metrics_show_it() -> None:
    """The overview has a line for each route, most first; an engine that counts none has none, and no metric."""
    counters = {'recovered_tokens{route="realign_window"}': 320.0, 'recovered_tokens{route="map_in_place"}': 4096.0}

    def shown(counters: dict[str, float] | None) -> list[list[object]]:
        blocks = overview(replace(gemma(), counters=counters)).blocks
        facts = [fact for block in blocks if isinstance(block, Facts) for fact in block.facts]
        return [list(lines) for name, lines in facts if name == "RECOVERY"]

    assert shown(counters) == [["map_in_place    4,096 tokens", "realign_window    320 tokens"]]
    assert shown({}) == shown(None) == []
    (first, second) = of_counters(counters)
    assert {first.labels: first.value, second.labels: second.value} == {
        ("realign_window",): 320.0,
        ("map_in_place",): 4096.0,
    }
