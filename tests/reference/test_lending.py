"""The demo's engine under traffic, a reader that follows it, and one that joins with its table."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from agent import follower, readers
from agent.columns import parents
from agent.model.snapshot import Consistency, Level, PageColumns
from agent.session import Session, open_target
from agent.table import RingReader, handover
from kvctl.demo_engine import DemoEngine
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoEngine]:
    """A reference engine under mixed traffic."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCTL_RUNTIME_DIR", str(folder))
        engine = DemoEngine(rate=20.0, seed=3)
        try:
            engine.start(nullcontext)
            yield engine
        finally:
            engine.close()


@contextmanager
def staying(engine: DemoEngine, level: Level = Level.CONTENT) -> Iterator[None]:
    """A reader on a thread of its own that stays, and so serves its table."""
    stop = threading.Event()

    def run() -> None:
        with open_target(engine.pid) as session:
            session.follow(level)
            while not stop.wait(0.02):
                session.poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(readers.endpoints, "the reader to serve")
        yield
    finally:
        stop.set()
        thread.join(30)
    assert readers.endpoints() == []


def pages_of(session: Session) -> tuple[PageColumns, tuple[str, ...]]:
    """The table and what is said of it."""
    snapshot = session.snapshot(tables=False)
    assert snapshot.pages is not None
    assert snapshot.capture.consistency is Consistency.ATOMIC
    return snapshot.pages, snapshot.capture.notes


def audited(session: Session) -> None:
    """Hold the whole table against the engine's, at one place of the ring."""
    session.call("audit")
    assert session._follower is not None
    reader = session._follower._reader

    def compared() -> bool:
        session.poll()
        return reader.audits > 0

    wait_for(compared, "the audit")
    assert (reader.failed_audits, reader.table.mismatches) == (0, 0)


@pytest.mark.parametrize("level", Level)
def test_the_table_is_the_engines(engine: DemoEngine, level: Level) -> None:
    """Taken over at either level and gone on from, it has the engine's checksum, and a note says where it is from."""
    with staying(engine, level), open_target(engine.pid) as one:
        one.follow(level)
        pages, notes = pages_of(one)
        assert "the page table was taken over from reader " + str(os.getpid()) in notes[0]
        assert (pages.references is not None) == (level is Level.REFERENCES)
        known = parents(pages)
        assert known is not None
        assert known.any()
        audited(one)


def test_several_take_it_over(engine: DemoEngine) -> None:
    """Several that join beside each other all get it, and all have the engine's."""
    with staying(engine), open_target(engine.pid) as one, open_target(engine.pid) as other:
        for session in (one, other):
            session.follow()
            assert "taken over" in pages_of(session)[1][0]
        for session in (one, other):
            audited(session)


@pytest.mark.parametrize("level", Level)
def test_a_wrong_table_is_read_anew(engine: DemoEngine, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another reader hands over and the engine contradicts is thrown away, and the notes say so."""
    written = handover.write

    def wrong(reader: RingReader, *, references: bool) -> tuple[handover.Head, int]:
        reader.table.stamp[1:] += np.uint64(1)
        try:
            return written(reader, references=references)
        finally:
            reader.table.stamp[1:] -= np.uint64(1)

    monkeypatch.setattr(handover, "write", wrong)
    with staying(engine), open_target(engine.pid) as one:
        one.follow(level)
        said = f"the page table of reader {os.getpid()} was wrong: it was read anew from the engine"
        wait_for(lambda: said in pages_of(one)[1], "the difference to be found")
        audited(one)


def test_one_that_must_leave_nothing_does_not_serve(engine: DemoEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be killed without a trace, as the demo may, has no socket however long it follows."""
    monkeypatch.setattr(follower, "SERVE_AFTER_S", 0.0)
    with open_target(engine.pid) as silent, open_target(engine.pid) as other:
        silent.serves = False
        for session in (silent, other):
            session.follow()
            session.poll()
            assert len(readers.endpoints()) == int(session.serves)
