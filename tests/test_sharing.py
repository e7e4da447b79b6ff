"""Explanations that travel between the readers of one engine, over its real socket."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import sharing as module
from agent.client import Client
from agent.discovery import Endpoint, discover
from agent.errors import AgentError, KvctlError, UsageError
from agent.model.decision import Outcome
from agent.probe.operations import Operations
from agent.session import Session
from agent.sharing import BUSY_S, LINES, PENDING, POST_S, Sharing
from exporters.accounting import Accountant
from exporters.labels import key_of
from tests.support.cli import Runner, check_schema
from tests.support.sharing import decide, explained, kept, post
from tests.support.tiny_engine import TinyEngine, tiny_engine
from tests.support.waiting import wait_for


@pytest.fixture
def endpoint(engine: TinyEngine, runtime: Path) -> Endpoint:
    """Where it listens."""
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    return found


@pytest.fixture
def run(runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run commands on the engines there."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    return Runner(capsys)


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """What it says now."""
        return self.now


def test_what_one_reader_explained_every_reader_shows(engine: TinyEngine, endpoint: Endpoint) -> None:
    """Every field but the keys is the same; what nobody explained is unknown, and what was recorded is the engine's."""
    decide(engine, 3)
    with Session.open(endpoint) as session:
        first, second, third = session.decisions()
        own = explained(second)
        # What somebody posts never reaches what the engine itself recorded.
        assert post(endpoint, [replace(own, request="forged", lookup_tokens=9, engine_usable=9)])["taken"] == 1
        told = (first, replace(own, chain=None, shared=True), third)
        assert session.decisions() == told
        assert session.overview().decisions == told
        assert session.decisions(since=1, limit=1) == told[1:2]
        assert (told[0].logical, told[0].outcome, told[0].shared) == (None, Outcome.UNKNOWN, False)
    with Session.open(endpoint) as late:
        assert late.overview(decisions=2).decisions == told[1:]
        assert late.decisions() == told


def test_what_is_explained_late_is_shown_from_then_on(
    engine: TinyEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stays asks for what is new, of however many decisions, and forgets the oldest explanations."""
    monkeypatch.setattr(module, "KNOWN", 4)
    decide(engine, 8)
    with Session.open(endpoint) as session:
        made = [explained(item) for item in session.decisions()]
        for number in (8, 2, 5, 1, 7, 3, 6, 4):
            assert session.overview(decisions=1).decisions == session.decisions()[-1:]
            assert session.decisions()[number - 1].logical is None
            post(endpoint, [made[number - 1]])
            assert session.decisions()[number - 1].logical == 48
        session.overview(decisions=1)
        assert len(session._sharing._known) == 1


def test_an_explanation_that_cannot_be_about_its_decision_is_not_used(engine: TinyEngine, endpoint: Endpoint) -> None:
    """More tokens than were looked up, of a decision that does not exist, or of another engine's groups."""
    decide(engine, 2)
    with Session.open(endpoint) as session:
        before = session.decisions()
        too_much, no_group = explained(before[0], logical=65), explained(before[1], per_group=(16, 16))
        not_made = explained(before[1], id=3)
        assert post(endpoint, [too_much, no_group, not_made]) == {"taken": 1, "refused": 2}
        assert session.decisions() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"lines": 7},
        {"lines": ["x"]},
        {"lines": None},
        {"lines": "x" * 200_000},
        {"since": -1},
        {"since": True},
        {"since": "0"},
        {"since": 0, "after": 1.5},
        {"since": 0, "after": []},
        {"more": 1},
    ],
    ids=str,
)
def test_a_question_that_makes_no_sense_is_refused(
    engine: TinyEngine, endpoint: Endpoint, arguments: dict[str, Any]
) -> None:
    """The probe answers with an error, keeps nothing, and goes on."""
    with Client(endpoint) as client:
        with pytest.raises(UsageError):
            client.call("explained", **arguments)
        assert client.call("explained", since=0) == {"taken": 0, "refused": 0, "lines": "", "mark": 0}
    assert engine.probe is not None
    assert engine.probe.guard.errors == 0


def test_posting_is_for_read_only_engines_and_needs_no_engine(engine: TinyEngine, endpoint: Endpoint) -> None:
    """It changes nothing in the engine, and its thread has no part in it: it may be busy for long."""
    decide(engine, 1)
    go_on = engine.block()
    try:
        with Session.open(endpoint) as session:
            assert not session.info.allow_changes
            (bare,) = session.decisions()
            assert post(endpoint, [explained(bare)])["taken"] == 1
            assert session.decisions()[0].logical == 48
    finally:
        go_on()


def test_a_reader_posts_at_once_and_then_once_a_second(engine: TinyEngine, endpoint: Endpoint) -> None:
    """One post is under way at a time, a full one waits less, and nobody waits for any of them."""
    decide(engine, 3 * LINES)
    clock = Clock()
    with Client(endpoint) as client, Session.open(endpoint) as session:
        sharing, made = Sharing(client, clock), [explained(item) for item in session.decisions()]
        sharing.add(made[0])
        sharing.post()
        wait_for(lambda: kept(endpoint) == 1, "the first post")
        sharing.add(made[1])
        sharing.post()
        clock.now += POST_S - 0.01
        sharing.post()
        assert kept(endpoint) == 1
        clock.now += 0.02
        sharing.post()
        wait_for(lambda: kept(endpoint) == 2, "the second post")
        for item in made[2:]:
            sharing.add(item)
        for number in (1, 2):
            clock.now += BUSY_S
            sharing.post()
            wait_for(lambda: kept(endpoint) == 2 + number * LINES, "a full post")  # noqa: B023 - called at once
        sharing.post(last=True)
        wait_for(lambda: kept(endpoint) == len(made), "what was left")
        assert sharing.off is None
        assert client.call("ping")["guard"]["on"]


def test_one_post_is_under_way_at_a_time(
    engine: TinyEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the agent has answered, whatever the time, nothing more is sent: nobody ever waits for room."""
    decide(engine, 2)
    clock = Clock()
    with Client(endpoint) as client, Session.open(endpoint) as session:
        sharing, made = Sharing(client, clock), [explained(item) for item in session.decisions()]
        with monkeypatch.context() as patch:
            patch.setattr(Client, "_hear", lambda _client: None)
            for item in made:
                sharing.add(item)
                sharing.post()
                clock.now += 10 * POST_S
            sharing.post(last=True)
            wait_for(lambda: kept(endpoint) == 1, "the first post")
            assert len(sharing._pending) == 1

        def posted() -> bool:
            sharing.post()
            return kept(endpoint) == 2

        wait_for(posted, "the second post")


def test_who_leaves_right_after_a_post_loses_nothing(engine: TinyEngine, endpoint: Endpoint) -> None:
    """What was explained while a post was on its way is there for whoever asks as soon as this reader has left."""
    decide(engine, 2)
    with Session.open(endpoint) as other:
        first, second = other.decisions()
        with Session.open(endpoint) as session:
            session._sharing.add(explained(first))
            session._sharing.post()
            session._sharing.add(explained(second))
            session._sharing.post(last=True)
        assert [item.logical for item in other.decisions()] == [48, 48]


def test_only_what_was_explained_is_posted(engine: TinyEngine, endpoint: Endpoint) -> None:
    """Neither decisions without a table, nor look-ups that are not decided yet."""
    decide(engine, 1)
    with Client(endpoint) as client, Session.open(endpoint) as session:
        sharing, (bare,) = Sharing(client), session.decisions()
        for item in (bare, explained(bare, id=0)):
            sharing.add(item)
        sharing.post()
        assert not client.telling
        assert client.call("explained", since=0)["lines"] == ""


def test_what_nobody_takes_does_not_pile_up(engine: TinyEngine, endpoint: Endpoint) -> None:
    """A reader keeps the latest explanations, so many and no more, for an agent that does not answer."""
    decide(engine, 1)
    with Client(endpoint) as client, Session.open(endpoint) as session:
        sharing, (bare,) = Sharing(client), session.decisions()
        for number in range(1, 2 * PENDING):
            sharing.add(explained(bare, id=number))
        assert len(sharing._pending) == PENDING


def test_an_agent_without_the_operation_is_left_alone(
    engine: TinyEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything works as before beside an older agent; a reader says why nothing is shared."""
    monkeypatch.delattr(Operations, "op_explained")
    decide(engine, 1)
    with Session.open(endpoint) as session:
        (bare,) = session.decisions()
        assert session.overview().decisions == (bare,)
        assert session.not_shared is not None
        assert "older" in session.not_shared
        session._sharing.add(explained(bare))
        session._sharing.post(last=True)
        assert not session._client.telling


def test_a_post_that_is_refused_is_the_last_one(
    engine: TinyEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised where decisions are followed; the reason is kept for who asks."""

    def refuse(*_: object, **__: object) -> None:
        raise AgentError("no room", why="it is full")

    decide(engine, 1)
    with Session.open(endpoint) as session:
        (bare,) = session.decisions()
        monkeypatch.setattr(Operations, "op_explained", refuse)
        sharing = session._sharing
        sharing.add(explained(bare))
        sharing.post()
        assert session.call("ping")["guard"]["on"]
        sharing.add(explained(bare))
        sharing.post(last=True)
        assert session.not_shared == "no room: it is full"
        assert session.decisions() == (bare,)


def test_a_post_to_an_engine_that_ends_harms_nobody(runtime: Path) -> None:
    """The follower learns of the end where it always did."""
    with tiny_engine(runtime) as engine:
        decide(engine, 2)
        (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
        session = Session.open(found)
        first, second = session.decisions()
        session._sharing.add(explained(first))
        session._sharing.post()
        wait_for(lambda: kept(found) == 1, "the post")
    session._sharing.add(explained(second))
    session._sharing.post(last=True)
    session._sharing.post(last=True)
    with pytest.raises(KvctlError):
        session.decisions()
    session.close()


def test_an_answer_that_nobody_read_does_not_hide_the_end(runtime: Path) -> None:
    """A follower notices at once that its engine is gone, though an answer to a post still lies there."""
    with tiny_engine(runtime) as engine:
        decide(engine, 1)
        (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
        client = Client(found)
        client.tell("explained", lines="")
        wait_for(lambda: client._socket.recv(1, socket.MSG_PEEK), "the answer")
        assert (client.telling, client.alive(), client.telling) == (True, True, False)
        client.tell("explained", lines="")
    assert not client.alive()
    client.close()


def test_doctor_says_where_nothing_is_shared(endpoint: Endpoint, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older agent, and posts that were refused, are noted once and are no problem."""

    def said() -> list[str]:
        checks = run("doctor", "-o", "json").json["checks"]
        return [item["detail"] for item in checks if item["name"].startswith("engine ") and item["health"] == "note"]

    assert not [text for text in said() if "expla" in text]
    with Client(endpoint) as client:
        client.call("explained", lines="x")
    assert [text for text in said() if "expla" in text] == ["its agent refused 1 explanation that readers posted"]
    monkeypatch.delattr(Operations, "op_explained")
    (note,) = [text for text in said() if "expla" in text]
    assert "its agent is older" in note


def test_the_books_count_each_decision_once_whoever_explained_it(engine: TinyEngine, endpoint: Endpoint) -> None:
    """What others explained before an exporter came is in its books as explained, and is added by nobody again."""
    decide(engine, 3)
    with Session.open(endpoint) as session:
        made = [explained(item) for item in session.decisions()]
        post(endpoint, made[:2])
        accountant = Accountant(session, session.geometry, holder="exporter")
        accountant.skip_to(accountant.last())
        accountant.add(made)
        accountant.look()
        post(endpoint, made)
        accountant.look()
        counters = session.call("counters")["counters"]
    phase = {"phase": "first"}
    assert counters[key_of("reuse_explained_decisions", phase)] == 2
    assert counters[key_of("reuse_logical_tokens", phase)] == 96
    assert counters["reuse_unexplained_decisions"] == 1
    assert counters["reuse_accounted_decisions"] == 3


def test_one_shot_commands_show_what_a_reader_explained(engine: TinyEngine, endpoint: Endpoint, run: Runner) -> None:
    """``decisions``, ``explain``, ``inspect`` and ``ps`` agree, say who saw it, and say nothing of the others."""
    decide(engine, 200)
    with Session.open(endpoint) as session:
        items = session.decisions()
    post(endpoint, [explained(items[2]), explained(items[198])])
    listed = run("decisions", "--where", "reason=not_retained", "-o", "json").json
    check_schema(listed)
    assert [item["id"] for item in listed["decisions"]] == [3, 199]
    assert {item["explained_by"] for item in listed["decisions"]} == {"another_reader"}
    assert {item["explained_by"] for item in run("decisions", "-o", "json").json["decisions"]} == {
        "another_reader",
        None,
    }
    told = run("explain", "3")
    assert "explained from the table at epoch 5 by another reader" in told.out
    assert "not_retained" in told.out
    unknown = run("explain", "4")
    assert "unknown" in unknown.out
    assert "explained from" not in unknown.out
    overview = run("inspect", "-o", "json").json["reuse"]
    assert (overview["explained"], overview["logical_tokens"], overview["usable_tokens"]) == (1, 48, 16)
    assert run("ps", "-o", "json").json["engines"][0]["usable_of_logical_ratio"] == 16 / 48
