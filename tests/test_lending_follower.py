"""A follower takes over a table where one is handed over, says so, and takes back what turns out to be wrong."""

from pathlib import Path

import numpy as np
import pytest

from agent import columns
from agent import follower as module
from agent.follower import Follower
from agent.model.snapshot import Consistency, Level, PageColumns
from agent.table import RingReader
from tests.support.lending import Lending, follower, pretending, serving


@pytest.fixture
def lending(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Lending:
    """A pool with a feed; its readers' sockets are in a private folder."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    return Lending(runtime)


@pytest.fixture
def old(lending: Lending) -> RingReader:
    """A reader that saw five pages being cached."""
    old = lending.bootstrapped()
    lending.work()
    old.poll()
    return old


def table(joined: Follower) -> tuple[PageColumns, str | None]:
    """The table, and where it came from if not from the engine."""
    pages, consistency, notes = joined.pages_at(None, deadline_s=30.0)
    assert consistency is Consistency.ATOMIC
    assert len(notes) < 2
    return pages, notes[0] if notes else None


def linked(pages: PageColumns) -> int:
    """Pages with a known parent."""
    found = columns.parents(pages)
    assert found is not None
    return int(np.count_nonzero(found))


def test_alone_it_asks_the_engine(lending: Lending, old: RingReader) -> None:
    """Where nobody serves, or the only one keeps silent, all is as it was: a bootstrap, without a note."""
    del old
    joined, engine = follower(lending)
    with pretending(lending, lambda _link: None):
        joined.bootstrap(progress=None, deadline_s=1.0)
    assert (engine.bootstraps, table(joined)[1]) == (1, None)
    joined.close()


def test_it_takes_over_a_table_and_says_so(lending: Lending, old: RingReader) -> None:
    """No bootstrap, progress up to 1, parents known, and a note with the reader and the epoch."""
    joined, engine = follower(lending)
    progress: list[float] = []
    with serving(lending, old):
        joined.bootstrap(progress=progress.append, deadline_s=60.0)
    pages, note = table(joined)
    assert (engine.bootstraps, progress, linked(pages)) == (0, [1.0], 4)
    assert note is not None
    assert note.startswith("the page table was taken over from reader ")
    assert note.endswith(f", at epoch {old.epoch}")
    joined.close()


def test_what_the_other_lacks_the_engine_sends(lending: Lending, old: RingReader) -> None:
    """At a higher level the engine sends the table, the parents stay, and the note speaks of those alone."""
    joined, engine = follower(lending, Level.REFERENCES)
    with serving(lending, old):
        joined.bootstrap(progress=None, deadline_s=60.0)
    pages, note = table(joined)
    assert (engine.bootstraps, linked(pages)) == (1, 4)
    assert pages.references is not None
    assert note is not None
    assert note.startswith("the parents of cached pages were taken over from reader ")
    joined.close()


@pytest.mark.parametrize("level", Level)
def test_a_wrong_table_is_read_anew(lending: Lending, old: RingReader, level: Level) -> None:
    """What the engine contradicts is thrown away, parents included; a note names the reader."""
    old.table.stamp[7] += 1
    old.table.parent[7] = 99
    joined, engine = follower(lending, level)
    with serving(lending, old):
        joined.bootstrap(progress=None, deadline_s=60.0)
    lending.feed.audit()
    pages, note = table(joined)
    assert note is not None
    assert note.startswith("the page table of reader ")
    assert note.endswith(" was wrong: it was read anew from the engine")
    found = columns.parents(pages)
    assert found is not None
    assert 99 not in found
    assert columns.stamps(pages).tolist() == lending.bootstrapped().table.stamp.tolist()
    assert engine.bootstraps == (1 if level is Level.CONTENT else 2)
    joined.close()


def test_after_a_gap_only_the_parents_are_the_others(lending: Lending, old: RingReader) -> None:
    """Once the engine had to send the table the note no longer says that it was taken over."""
    joined, engine = follower(lending)
    with serving(lending, old):
        joined.bootstrap(progress=None, deadline_s=60.0)
    for _ in range(400):
        lending.feed.put_decision(bytes(1000))
    pages, note = table(joined)
    assert (engine.bootstraps, linked(pages)) == (1, 4)
    assert note is not None
    assert note.startswith("the parents of cached pages were taken over")
    joined.close()


def test_one_that_stays_serves_and_one_that_looks_once_does_not(
    lending: Lending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket is there from the first look a second after the table on, until the reader leaves."""
    joined, _ = follower(lending)
    joined.bootstrap(progress=None, deadline_s=60.0)
    joined.serve()
    assert list(lending.folder.iterdir()) == []
    joined.close()
    monkeypatch.setattr(module, "SERVE_AFTER_S", 0.0)
    joined, _ = follower(lending)
    joined.serve()
    assert list(lending.folder.iterdir()) == []
    joined.bootstrap(progress=None, deadline_s=60.0)
    joined.serve()
    (path,) = lending.folder.iterdir()
    assert path.is_socket()
    joined.serve()
    joined.close()
    assert not path.exists()


def test_a_table_that_comes_quicker_than_a_reader_looks_is_not_asked_for_again_and_again(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an idle engine sends more than the ring holds between two looks, the reader stays until it has it all."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    lending = Lending(runtime, pages=4000, ring_bytes=1 << 16)
    joined, engine = follower(lending)
    joined.bootstrap(progress=None, deadline_s=60.0)
    for looks in range(2, 5):
        lending.feed.request_bootstrap()  # another reader
        while lending.feed.idle():
            pass
        joined.keep_up()
        assert joined._reader.complete
        assert (engine.bootstraps, joined._reader.overruns) == (looks, looks - 1)
    joined.close()


def test_references_of_another_reader_are_not_shown_as_ones_own(lending: Lending, old: RingReader) -> None:
    """What rides along with another reader goes stale when that one leaves: who does not follow them has none."""
    del old
    lending.feed.join(Level.REFERENCES)
    joined, _ = follower(lending)
    joined.bootstrap(progress=None, deadline_s=60.0)
    assert joined._reader.table.has_references
    lending.feed.leave(Level.REFERENCES)
    assert table(joined)[0].references is None
    joined.close()


def test_who_judges_asks_the_engine(lending: Lending, old: RingReader) -> None:
    """What decides about pages takes nothing from another reader, however well that one serves."""
    joined, engine = follower(lending)
    with serving(lending, old):
        joined.bootstrap(progress=None, deadline_s=60.0, borrows=False)
    assert (engine.bootstraps, table(joined)[1]) == (1, None)
    joined.close()
