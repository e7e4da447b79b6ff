"""The reading thread: what it reads, when it gives way, and how it comes back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from textual.message import Message

from agent.errors import TargetError
from agent.model.decision import Outcome
from inspector.tui import feed as module
from inspector.tui.feed import Feed
from inspector.tui.messages import Drawn, Lost
from inspector.tui.picture import NEEDS_TABLE, Pane, Picture
from tests.support.dashboard import Driver, ScriptedLink, drive
from tests.support.snapshots import decision, gemma
from tests.support.waiting import wait_for


@contextmanager
def running(link: ScriptedLink, interval_s: float = 0.01) -> Iterator[tuple[Feed, list[Message]]]:
    """Run a reading thread without an app."""
    posted: list[Message] = []
    feed = Feed(link, posted.append, interval_s)
    feed.start()
    try:
        yield feed, posted
    finally:
        feed.stop(30.0)


def drawn(posted: list[Message]) -> list[Drawn]:
    """Return the pictures so far."""
    return [message for message in posted if isinstance(message, Drawn)]


def pictures(posted: list[Message], pane: Pane) -> list[Picture]:
    """Return the pictures for one screen so far."""
    return [message.picture for message in drawn(posted) if message.picture.pane is pane]


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "BACKOFF_S", (0.01, 0.02))


@pytest.mark.usefixtures("_quick")
def test_newer_picture_supersedes() -> None:
    """A picture gives way to a newer picture and to nothing else."""
    with running(ScriptedLink(gemma())) as (_, posted):
        first, second = wait_for(lambda: drawn(posted)[1:] and drawn(posted)[:2], "two pictures")
    assert first.can_replace(second)
    assert not first.can_replace(Lost(TargetError("gone"), 1.0))


@pytest.mark.usefixtures("_quick")
def test_table_is_read_only_for_screens_that_show_it() -> None:
    """Overview, decisions and findings cost no page table."""
    link = ScriptedLink(gemma())
    with running(link) as (feed, posted):
        for pane in Pane:
            feed.want(pane)
            found = wait_for(partial(pictures, posted, pane), f"a picture for {pane}")
            picture = found[-1]
            assert (picture.snapshot.pages is not None) is (pane in NEEDS_TABLE)


@pytest.mark.usefixtures("_quick")
def test_lost_and_found() -> None:
    """An engine that dies is reported with its reason, looked for again, and shown when it is back."""
    link = ScriptedLink(gemma())
    with running(link) as (_, posted):
        wait_for(lambda: drawn(posted), "a picture")
        link.broken = TargetError("the engine ended", why="its socket was closed")
        lost = wait_for(lambda: [m for m in posted if isinstance(m, Lost)][1:], "two tries")
        assert lost[0].error.why == "its socket was closed"
        before = len(drawn(posted))
        link.broken = None
        wait_for(lambda: len(drawn(posted)) > before, "a picture after the engine came back")
        assert link.connected == 2


@pytest.mark.usefixtures("_quick")
def test_decisions_are_counted_once() -> None:
    """A decision that comes unexplained first and explained later is one decision, and in the history once."""
    now = time.time_ns()
    late = replace(decision(7, "late", Outcome.REUSE, 1_000, 800, 800), time_ns=now)
    snapshot = gemma()
    snapshot = replace(snapshot, decisions=tuple(replace(item, time_ns=now) for item in snapshot.decisions or ()))
    link = ScriptedLink(snapshot, fresh=[(replace(late, logical=None),), (late,), (late,)])
    with running(link) as (feed, posted):
        feed.want(Pane.DECISIONS)

        def explained() -> bool:
            latest = drawn(posted)[-1].picture.snapshot.decisions if drawn(posted) else None
            return not link.fresh and bool(latest) and latest is not None and latest[-1].logical == 800

        wait_for(explained, "the explained decision")
        picture = drawn(posted)[-1].picture
    assert [item.id for item in picture.snapshot.decisions or ()] == [1, 2, 3, 4, 5, 6, 7]
    assert sum(part.lookup for part in picture.series.slices if part) == 768 + 2_050 + 1_500 + 1_800 + 3_000 + 1_000


@pytest.mark.usefixtures("_quick")
def test_what_is_explained_here_has_its_keys() -> None:
    """Another reader's explanation gives way to the own one, which has the keys, and is not counted again."""
    now = time.time_ns()
    own = replace(decision(7, "late", Outcome.REUSE, 1_000, 800, 800), time_ns=now, chain=(bytes(16),))
    shared = replace(own, chain=None, shared=True)
    link = ScriptedLink(replace(gemma(), decisions=()), fresh=[(shared,), (own,), (shared,)])
    with running(link) as (feed, posted):
        feed.want(Pane.DECISIONS)
        wait_for(lambda: not link.fresh and drawn(posted)[-1].picture.snapshot.decisions, "all of them")
        wait_for(lambda: drawn(posted)[-1].picture.snapshot.decisions == (own,), "the own one")
        picture = drawn(posted)[-1].picture
    assert sum(part.lookup for part in picture.series.slices if part) == 1_000


@pytest.mark.usefixtures("_quick")
def test_another_engine_starts_anew() -> None:
    """Decisions of an engine that was replaced are not mixed with those of its successor."""
    link = ScriptedLink(gemma())
    with running(link) as (_, posted):
        wait_for(lambda: drawn(posted), "a picture")
        old = link.snapshot
        link.snapshot = replace(old, engine=replace(old.engine, pid=99), decisions=old.decisions and old.decisions[:1])
        new = wait_for(lambda: [m for m in drawn(posted) if m.picture.snapshot.engine.pid == 99], "its successor")
        picture = new[0].picture
    assert [item.id for item in picture.snapshot.decisions or ()] == [1]


@pytest.mark.usefixtures("_quick")
def test_pause_loses_no_decision() -> None:
    """While the screen is held, nothing is posted and decisions are still followed."""
    link = ScriptedLink(gemma())
    with running(link) as (feed, posted):
        wait_for(lambda: drawn(posted), "a picture")
        feed.pause(on=True)
        link.fresh.append((decision(8, "held", Outcome.REUSE, 10, 10, 10),))
        wait_for(lambda: not link.fresh, "the decision to be followed")
        feed.pause(on=False)

        def there() -> bool:
            return any(item.id == 8 for item in drawn(posted)[-1].picture.snapshot.decisions or ())

        wait_for(there, "the decision that came while the screen was held")


def test_banner_keeps_the_last_picture() -> None:
    """When the engine goes, the screen says what, why and what next, keeps what it had, and recovers by itself."""
    link = ScriptedLink(gemma())

    async def script(driver: Driver) -> None:
        await driver.shows("chatcmpl-alice", "logical hit")
        link.broken = TargetError("the engine ended", why="its process is gone", next_step="start it again")
        await driver.shows("! the engine ended: its process is gone", "next: start it again", "LOST,", "logical hit")
        link.broken = None
        await driver.until(lambda text: "the engine ended" not in text and "LOST," not in text, "the engine to be back")

    drive(link, (100, 40), script)


def test_not_live_before_the_feed_is_joined() -> None:
    """The first picture says that the page table is still to come: decisions made until then have no keys."""
    link = ScriptedLink(gemma())
    link.joining.clear()

    async def script(driver: Driver) -> None:
        text = await driver.shows("chatcmpl-alice", "page table 0")
        assert "live," not in text
        link.joining.set()
        await driver.shows("live,")

    drive(link, (100, 40), script)


def test_no_feed_says_why() -> None:
    """On an engine without a feed the screen says why decisions come unexplained."""

    async def script(driver: Driver) -> None:
        await driver.shows("decisions come unexplained: the feed is off")

    drive(ScriptedLink(gemma(), unfollowed="the feed is off"), (100, 40), script)


HOSTILE = "[bold red]x[/] \x1b[31mred\x1b]0;title\x07 \u202eevil " + "A" * 10_000


@pytest.mark.parametrize("keys", [(), ("2",), ("5",), ("5", "enter"), ("5", "y"), ("question_mark",)], ids=str)
def test_hostile_names_are_plain_text(keys: tuple[str, ...]) -> None:
    """Markup, escape sequences and 10 kB in names of models and requests change nothing but the words themselves."""
    snapshot = gemma()
    decisions = tuple(replace(item, request=HOSTILE) for item in snapshot.decisions or ())
    snapshot = replace(snapshot, engine=replace(snapshot.engine, model=HOSTILE, name=HOSTILE), decisions=decisions)

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES", "[bold red]")
        await driver.press(*keys)
        text = await driver.shows("\n")
        assert not any(sign in text for sign in ("\x1b", "\x07", "\u202e"))
        assert all(len(line) <= 80 for line in text.splitlines())

    drive(ScriptedLink(snapshot, live=False), (80, 24), script)
