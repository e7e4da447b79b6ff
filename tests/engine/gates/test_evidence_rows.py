"""Padding rows of a live engine's block tables: none holds a page, until an engine forgets to clear them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.finding import Finding
from agent.session import Session
from tests.engine.live.engines import BLOCK, Engine, engine_in_process
from tests.support.prompts import prompt
from tests.support.validating import validate


@pytest.fixture(scope="module")
def engine(model: Callable[..., Path]) -> Iterator[Engine]:
    """A Gemma-3-like engine: two groups of windows and one of full attention."""
    with engine_in_process(model("gemma3"), pages=128, load_format="dummy") as running:
        yield running


def tables_of(engine: Engine) -> Any:
    """The runner's persistent block tables, all groups in one."""
    return engine.core.model_executor.driver_worker.worker.model_runner.input_batch.block_table


def look(session: Session) -> tuple[int, dict[str, Finding]]:
    """Run all gates: padding rows that were looked at, and what was found."""
    _, results = validate(session)
    looked = sum(result.looked.get("KV532", 0) for result in results)
    return looked, {finding.code: finding for result in results for finding in result.findings}


def overlap(engine: Engine, name: str, each: Callable[[], None]) -> None:
    """Run requests of different lengths side by side: some end in the middle of the batch, others at its end."""
    for number in range(6):
        engine.add(f"{name}{number}", prompt(f"{name} {number}", 3 * BLOCK + 7 * number), tokens=4 + 3 * (number % 4))
    while engine.llm.has_unfinished_requests():
        engine.step()
        each()


def test_clean_while_requests_come_and_go(engine: Engine, session: Session) -> None:
    """In every step rows beyond the running requests were looked at, and none names a page."""

    def check() -> None:
        looked, found = look(session)
        assert looked > 0
        assert "KV532" not in found

    check()
    overlap(engine, "clean", check)


def test_rows_that_are_not_cleared(engine: Engine, session: Session) -> None:
    """A runner that leaves the row of an ended request as it was: the pages that it still names are told."""
    tables = tables_of(engine)
    tables.clear_row = lambda _row: None
    try:
        overlap(engine, "left", lambda: None)
        engine.run("next", prompt("next", BLOCK + 1))
    finally:
        del tables.clear_row
    _, found = look(session)
    assert found.keys() == {"KV532"}
    assert str(found["KV532"].values["name"]).startswith("block table of group ")
    assert 0 not in found["KV532"].pages
    for table in tables.block_tables:
        table.clear()
    assert look(session)[1] == {}
