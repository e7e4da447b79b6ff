"""Static decode: buffers never move, padding rows hold the null page, and the checks notice when that is not so."""

import random

import pytest
import torch

from agent.reference.config import EngineConfig
from agent.reference.engine import Engine
from agent.reference.faults import Fault
from agent.reference.graph import AddressMovedError
from tests.support.reference import MODEL, Recorder, Truth


def _engine(truth: Truth) -> Engine:
    engine = Engine(MODEL, EngineConfig(poison=True), weights=truth.weights)
    dice = random.Random(1)
    for number, count in enumerate((40, 20, 9, 30, 5)):
        engine.submit(f"r{number}", dice.choices(range(MODEL.vocabulary), k=count), 6 + 3 * number)
    return engine


def test_addresses_never_move() -> None:
    """Over a whole run with changing batches every buffer keeps the address recorded at capture."""
    engine = _engine(Truth())
    first = engine.decode.addresses()
    engine.run()
    assert engine.decode.addresses() == first
    assert len(engine.decode.captures) > 2
    assert all(addresses == first for addresses in engine.decode.captures.values())


def test_a_moved_buffer_is_refused() -> None:
    """A buffer that was replaced instead of copied into stops the next replay with its name."""
    engine = _engine(Truth())
    while not engine.decode.captures:
        engine.step()
    engine.decode.positions = torch.zeros_like(engine.decode.positions)
    with pytest.raises(AddressMovedError, match="positions"):
        engine.run()


def test_padding_rows_hold_the_null_page() -> None:
    """After every step the rows beyond the live ones name no page."""
    engine = _engine(Truth())
    padded = 0
    while not engine.idle:
        engine.step()
        padded += engine.decode.padded > engine.decode.live
        assert not engine.decode.dirty_rows()
    assert padded > 0


def test_dirty_padding_spoils_answers_and_is_seen() -> None:
    """Padding rows that keep old page ids write into pages of others: seen in the buffers, and in the answers."""
    truth = Truth()
    engine = _engine(truth)
    engine.faults.switch(Fault.DIRTY_PADDING)
    recorder, dirty = Recorder(engine), 0
    engine.submit("long", random.Random(2).choices(range(MODEL.vocabulary), k=50), 40)
    while not engine.idle:
        engine.step()
        dirty += bool(engine.decode.dirty_rows())
    assert dirty > 0
    assert recorder.worst(truth) > 1e-9


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """The same request decodes to the same states alone and in a batch of five."""
    truth = Truth()
    engine = _engine(truth)
    recorder = Recorder(engine)
    engine.run()
    alone = Engine(MODEL, EngineConfig(max_batch=1), weights=truth.weights)
    single = Recorder(alone)
    for request in recorder.requests.values():
        alone.submit(request.id, request.prompt, request.max_new)
    alone.run()
    assert {n: r.tokens for n, r in recorder.requests.items()} == {n: r.tokens for n, r in single.requests.items()}
    assert max(recorder.worst(truth), single.worst(truth)) < 1e-9
