"""Every decision is counted once, whoever exports and whatever gets lost on the way."""

from dataclasses import replace

import pytest

from agent.errors import TargetError, UsageError
from agent.model.decision import Decision, Outcome, Phase, Reason
from agent.probe.ledger import LEASE_S, MAX_SERIES, Ledger
from exporters.accounting import Accountant, tally
from exporters.labels import key_of
from tests.support.recorded import RecordedEngine


def _sum(decisions: list[Decision], field: str, phase: Phase = Phase.FIRST) -> int:
    explained = [one for one in decisions if one.logical is not None and one.phase is phase]
    return sum(getattr(one, field) for one in explained)


def _books(engine: RecordedEngine, name: str, **labels: str) -> float:
    return engine.read_counters().get(key_of(name, labels), 0.0)


def test_sums_equal_the_decision_log() -> None:
    """Logical, usable and their denominator are the sums over the explained decisions of the log."""
    engine = RecordedEngine()
    session = engine.open()
    session.follow()
    accountant = Accountant(session, session.geometry, holder="a")
    engine.decide()
    accountant.add(session.poll())
    accountant.look()
    assert accountant.accounted == len(engine.log) == engine.recorder.last
    assert _books(engine, "reuse_logical_tokens", phase="first") == _sum(engine.log, "logical")
    assert _books(engine, "reuse_usable_tokens", phase="first") == _sum(engine.log, "usable")
    assert _books(engine, "reuse_explained_tokens", phase="first") == _sum(engine.log, "lookup_tokens")
    assert _books(engine, "reuse_unexplained_decisions") == 1, "one recorded decision has no logical hit"


def test_losses_go_to_their_group_state_and_reason() -> None:
    """Lost tokens carry the state and group that caused them, and a by-design loss carries none."""
    engine = RecordedEngine()
    geometry = engine.base.geometry
    hole = next(one for one in engine.base.decisions or () if one.reason is Reason.WINDOW_HOLE)
    aligned = replace(hole, lost=((Reason.ALIGNMENT, None, 7),))
    adds = tally([hole, hole, aligned], geometry)
    where = {"state": "swa", "group": "swa16/w1024#1"}
    assert adds[key_of("reuse_lost_tokens", {**where, "reason": "window_hole"})] == 2 * 1_792
    assert adds[key_of("reuse_lost_tokens", {"state": "none", "group": "none", "reason": "alignment"})] == 7
    assert adds[key_of("degradations", where)] == 3


def test_difference_between_engine_and_table_is_counted_by_direction() -> None:
    """An engine that reuses more, or less, than the table allows shows in a counter of its own."""
    engine = RecordedEngine()
    good = next(one for one in engine.base.decisions or () if one.outcome is Outcome.REUSE)
    more, less = replace(good, engine_usable=2_064), replace(good, engine_usable=16)
    adds = tally([good, more, less, less], engine.base.geometry)
    assert adds[key_of("reuse_disagreements", {"kind": "more"})] == 1
    assert adds[key_of("reuse_disagreements", {"kind": "less"})] == 2


def test_request_that_skips_the_cache_is_no_unexplained_decision() -> None:
    """Who asked not to read the cache is explained by that, and is in no hit ratio."""
    engine = RecordedEngine()
    good = next(one for one in engine.base.decisions or () if one.outcome is Outcome.REUSE)
    skipped = replace(good, skipped=True, logical=None, usable=None, outcome=Outcome.RECOMPUTE)
    adds = tally([skipped], engine.base.geometry)
    assert +adds == {key_of("reuse_outcomes", {"outcome": "recompute", "phase": "first"}): 1}


def test_two_exporters_never_count_twice() -> None:
    """Of two exporters that follow the same engine one holds the lease, and every decision is counted once."""
    engine = RecordedEngine()
    accountants = []
    for name in ("one", "two"):
        session = engine.open()
        session.follow()
        accountants.append((session, Accountant(session, session.geometry, holder=name)))
    for _ in range(5):
        engine.decide()
        for session, accountant in accountants:
            accountant.add(session.poll())
            accountant.look()
    assert [accountant.granted for _, accountant in accountants] == [True, False]
    assert all(accountant.accounted == len(engine.log) for _, accountant in accountants)
    assert _books(engine, "reuse_logical_tokens", phase="first") == _sum(engine.log, "logical")


def test_the_second_exporter_takes_over_without_a_gap() -> None:
    """When the holder dies, the other counts what the holder had not posted, and nothing of what it had."""
    now = [0.0]
    engine = RecordedEngine()
    engine.ledger = Ledger(clock=lambda: now[0])
    first, second = engine.open(), engine.open()
    holder, other = (Accountant(one, one.geometry, holder=name) for one, name in ((first, "a"), (second, "b")))
    for session, accountant in ((first, holder), (second, other)):
        session.follow()
        accountant.look()
    engine.decide()
    holder.add(first.poll())
    holder.look()
    engine.decide()
    other.add(second.poll())
    other.look()
    assert [one.granted for one in (holder, other)] == [True, False]
    now[0] += LEASE_S + 1
    other.look()
    assert bool(other.granted)
    assert _books(engine, "reuse_logical_tokens", phase="first") == _sum(engine.log, "logical")
    assert _books(engine, "reuse_unexplained_decisions") == 2, "one in each round of the recorded decisions"


def test_lost_answer_is_not_counted_again() -> None:
    """A post whose answer got lost is in the books once, also after the exporter connected again."""
    engine = RecordedEngine()
    session = engine.open()
    session.follow()
    accountant = Accountant(session, session.geometry, holder="a")
    engine.decide()
    accountant.add(session.poll())
    session.lose_answers = 1
    with pytest.raises(TargetError):
        accountant.look()
    accountant.look()
    assert accountant.pending == 0
    assert _books(engine, "reuse_logical_tokens", phase="first") == _sum(engine.log, "logical")


def test_what_nobody_followed_is_unexplained_not_zero() -> None:
    """Decisions from before the exporter came are counted as unexplained and are in no hit ratio."""
    engine = RecordedEngine()
    before = engine.decide()
    session = engine.open()
    session.follow()
    accountant = Accountant(session, session.geometry, holder="a")
    accountant.skip_to(accountant.last())
    after = engine.decide()
    accountant.add(session.poll())
    accountant.look()
    assert _books(engine, "reuse_unexplained_decisions") == len(before) + 1
    assert _books(engine, "reuse_explained_tokens", phase="first") == _sum(after, "lookup_tokens")
    assert _books(engine, "reuse_outcomes", outcome="unknown", phase="first") == len(before) - 1


def test_more_decisions_than_the_probe_remembers_are_counted_all_the_same() -> None:
    """A gap that is longer than the probe's own ring is counted in full."""
    engine = RecordedEngine()
    for _ in range(900):
        engine.decide()
    assert len(engine.recorder.since(0, 20_000)) < engine.recorder.last
    session = engine.open()
    accountant = Accountant(session, session.geometry, holder="a")
    accountant.skip_to(accountant.last())
    assert accountant.accounted == engine.recorder.last == 5_400
    assert _books(engine, "reuse_unexplained_decisions") == 5_400


def test_a_decision_that_never_arrives_does_not_stop_the_books() -> None:
    """A decision that the ring lost is unexplained once a later one comes, or after a while without one."""
    engine = RecordedEngine()
    session = engine.open()
    session.follow()
    accountant = Accountant(session, session.geometry, holder="a")
    one = (engine.base.decisions or ())[1]
    engine.decide([one, one])
    accountant.add(session.poll()[1:])
    accountant.look()
    assert (accountant.accounted, _books(engine, "reuse_unexplained_decisions")) == (2, 1)
    engine.decide([one])
    session.poll()
    for _ in range(40):
        accountant.look()
    assert (accountant.accounted, _books(engine, "reuse_unexplained_decisions")) == (3, 2)


@pytest.mark.parametrize(
    "post",
    [
        {"holder": ""},
        {"holder": "a", "after": 0, "upto": 99, "adds": {}},
        {"holder": "a", "after": 2, "upto": 1, "adds": {}},
        {"holder": "a", "after": 0, "upto": 1, "adds": {"reuse_lookup_tokens": 1}},
        {"holder": "a", "after": 0, "upto": 1, "adds": {"reuse_logical_tokens": -1}},
        {"holder": "a", "after": 0, "upto": 1, "adds": {"reuse_logical_tokens": float("nan")}},
        {"holder": "a", "after": 0, "upto": 1, "adds": {"reuse_lost_tokens{" + "x" * 600: 1}},
        {"holder": "a", "after": 0, "upto": 1},
    ],
)
def test_a_post_that_makes_no_sense_is_refused_whole(post: dict[str, object]) -> None:
    """The ledger takes nothing of a post with a fault in it."""
    ledger = Ledger()
    before = ledger.read()
    with pytest.raises(UsageError):
        ledger.account(post, last=5)
    assert ledger.read() == before


def test_the_ledger_is_bounded() -> None:
    """No number of labels makes the engine's memory grow beyond the limit."""
    ledger = Ledger()
    adds = {key_of("degradations", {"state": "swa", "group": str(at)}): 1 for at in range(MAX_SERIES + 1)}
    with pytest.raises(UsageError, match="at most"):
        ledger.account({"holder": "a", "after": 0, "upto": 1, "adds": adds}, last=1)


def test_release_lets_the_next_one_in_at_once() -> None:
    """An exporter that ends in order does not keep its successor waiting."""
    ledger = Ledger()
    assert ledger.account({"holder": "a"}, last=0)["granted"]
    assert not ledger.account({"holder": "b"}, last=0)["granted"]
    ledger.account({"holder": "a", "release": True}, last=0)
    assert ledger.account({"holder": "b"}, last=0)["granted"]
