"""Explanations as text, and the probe's store of them: whatever is posted, little is kept, none of it wrong."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decisionformat import DecisionRecord
from agent.errors import ProtocolError, UsageError
from agent.explainedformat import MAX_LINE, PARTS, decode, encode, knowledge
from agent.model.decision import Decision, Fidelity, Outcome, Phase, Reason, WaterfallStep
from agent.model.groups import Geometry
from agent.model.states import GroupId, State
from agent.probe import explained
from agent.probe.explained import MAX_ENTRIES, MAX_LINES, MAX_POST, Explained
from tests.support import snapshots

GROUPS = 3
TOKENS = st.integers(0, 2**40)
GROUP = st.none() | st.integers(0, GROUPS - 1).map(GroupId)
RECORD = DecisionRecord(id=7, time_ns=1, step=2, request="r", phase=Phase.FIRST, tokens=1 << 41, engine_usable=16)
STEPS = st.builds(
    WaterfallStep,
    group=GROUP,
    reason=st.sampled_from(Reason),
    from_tokens=TOKENS,
    to_tokens=TOKENS,
    round=st.integers(0, 9),
)
EXPLAINED = st.builds(
    replace,
    st.just(RECORD.to_decision()),
    outcome=st.sampled_from(Outcome),
    logical=TOKENS,
    usable=st.none() | TOKENS,
    limiting_group=GROUP,
    limiting_state=st.none() | st.sampled_from(State),
    reason=st.none() | st.sampled_from(Reason),
    lost=st.lists(st.tuples(st.sampled_from(Reason), GROUP, TOKENS), max_size=4).map(tuple),
    per_group=st.none() | st.tuples(*[st.none() | TOKENS] * GROUPS),
    waterfall=st.lists(STEPS, max_size=4).map(tuple),
    fidelity=st.none() | st.sampled_from(Fidelity),
    epoch=st.none() | TOKENS,
)


def line(number: int, **changes: object) -> str:
    """An explanation of a decision in which one group lost 32 of 48 tokens."""
    item = replace(
        RECORD.to_decision(),
        id=number,
        outcome=Outcome.PARTIAL,
        logical=48,
        usable=16,
        reason=Reason.NOT_RETAINED,
        lost=((Reason.NOT_RETAINED, GroupId(1), 32),),
        per_group=(48, 16, 48),
    )
    return encode(replace(item, **changes))  # type: ignore[arg-type]


def parts(**changes: object) -> str:
    """The same line with some parts exchanged for anything, by their place (``p3``)."""
    plain = json.loads(line(7))
    for name, value in changes.items():
        plain[int(name[1:])] = value
    return json.dumps(plain)


def known(store: Explained, *, after: int = 0, since: int = 0) -> list[str]:
    """The lines that it hands out."""
    text = store.told(since=since, after=after)["lines"]
    return text.split("\n") if text else []


@given(EXPLAINED)
def test_explanations_survive(item: Decision) -> None:
    """Who has the engine's record and the line has the same decision as the reader that explained it."""
    number, found = decode(encode(item), groups=GROUPS)
    assert number == item.id
    assert found.completed(RECORD.to_decision()) == replace(item, shared=True)


@pytest.mark.parametrize("geometry", [snapshots.gemma().geometry, snapshots.deepseek().geometry], ids=["g", "d"])
def test_a_line_names_nobody(geometry: Geometry) -> None:
    """No request id, no key and no trace header is in it."""
    item = replace(
        RECORD.to_decision(), logical=16, request="secret-1", chain=(b"k" * 16,), trace=(("traceparent", "secret-2"),)
    )
    text = encode(item)
    assert "secret" not in text
    assert (b"k" * 16).hex() not in text
    assert decode(text, groups=len(geometry.groups))[0] == item.id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        "null",
        "[" * 1000,
        "[" * 1000 + "]" * 1000,
        "[" * 100_000,
        "[7]",
        json.dumps([7] * PARTS),
        json.dumps([*json.loads(line(7)), 1]),
        line(7) + "x",
        line(7) + " " * MAX_LINE,
        parts(p0=True),
        parts(p0=-1),
        parts(p0=1.5),
        parts(p0="7"),
        parts(p0=1 << 63),
        line(7).replace("[7,", "[" + "9" * 5000 + ",", 1),
        parts(p1="great"),
        parts(p1=None),
        parts(p1=["reuse"]),
        parts(p2=None),
        parts(p2=True),
        parts(p2=float("nan")),
        parts(p3=-1),
        parts(p4=GROUPS),
        parts(p4=False),
        parts(p5="gas"),
        parts(p6="\x1b[31m"),
        parts(p7={}),
        parts(p7=[["cold", None]]),
        parts(p7=[["cold", None, 1, 2]]),
        parts(p7=["abc"]),
        parts(p7=[{"cold": 1}]),
        parts(p7=[["cold", 99, 1]]),
        parts(p8=[1, 2]),
        parts(p8=[1, 2, True]),
        parts(p8={"a": 1, "b": 2, "c": 3}),
        parts(p9=[[None, "cold", 1, 0]]),
        parts(p9=[[None, "cold", 1, 0, "0"]]),
        parts(p10="perfect"),
        parts(p11="1"),
    ],
)
def test_what_is_no_explanation_is_refused(text: str) -> None:
    """Wrong types, places, words, sizes and depths are one kind of error, whatever stands there."""
    with pytest.raises(ProtocolError):
        decode(text, groups=GROUPS)


@given(
    st.text(max_size=200) | st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=3)).map(json.dumps)
)
def test_garbage_is_one_kind_of_error(text: str) -> None:
    """Whatever somebody writes, it is an explanation or a protocol error."""
    try:
        decode(text, groups=GROUPS)
    except ProtocolError:
        return


def test_the_first_explanation_stays_unless_a_later_one_knows_more() -> None:
    """Readers post the same decisions: each is kept once, as it came first, or as it is known best."""
    store = Explained(groups=GROUPS)
    doubtful = line(1, lost=((Reason.UNKNOWN, None, 32),))
    assert store.post(f"{doubtful}\n{line(2)}\n{line(2)}", first=1, last=9) == {"taken": 2, "refused": 0}
    assert store.post(line(2, logical=32), first=1, last=9) == {"taken": 0, "refused": 0}
    assert known(store) == [doubtful, line(2)]
    mark = store.told(since=0, after=0)["mark"]
    assert store.post(line(1), first=1, last=9)["taken"] == 1
    assert known(store, since=mark) == [line(1)]
    assert known(store) == [line(2), line(1)]
    assert store.post(doubtful, first=1, last=9)["taken"] == 0
    no_usable = line(3, usable=None)
    assert store.post(no_usable, first=1, last=9)["taken"] == 1
    assert store.post(line(3), first=1, last=9)["taken"] == 1
    assert known(store, after=2) == [line(3)]
    assert store.state()["kept"] == 3


def test_only_decisions_that_the_probe_remembers_are_explained() -> None:
    """A decision that was not made is refused, one that is forgotten is passed over, and what is forgotten goes."""
    store = Explained(groups=GROUPS)
    posted = store.post("\n".join(line(number) for number in (0, 3, 4, 5, 9, 10, 1 << 62)), first=4, last=9)
    assert posted == {"taken": 3, "refused": 3}
    assert known(store) == [line(4), line(5), line(9)]
    store.post("", first=6, last=20)
    assert known(store) == [line(9)]
    assert store.state() == {"kept": 1, "characters": len(line(9)), "refused": 3}


def test_one_bad_line_spoils_no_other() -> None:
    """Lines are judged one by one; those that are none are counted."""
    store = Explained(groups=GROUPS)
    assert store.post(f"x\n{line(1)}\n\n{'[' * 999}\n{line(2)}", first=1, last=2) == {"taken": 2, "refused": 3}
    assert known(store) == [line(1), line(2)]


@pytest.mark.parametrize(
    "post", [None, 7, True, [], {}, b"x", "\n" * MAX_LINES, "x" * (MAX_POST + 1)], ids=lambda post: type(post).__name__
)
def test_a_post_of_another_kind_or_size_is_refused_whole(post: object) -> None:
    """Nothing of it is taken."""
    store = Explained(groups=GROUPS)
    with pytest.raises(UsageError):
        store.post(post, first=1, last=9)
    assert store.state() == {"kept": 0, "characters": 0, "refused": 0}


def test_the_store_is_bounded_in_number() -> None:
    """However many decisions an engine keeps, so many explanations and no more; the latest stay."""
    store = Explained(groups=GROUPS)
    end = MAX_ENTRIES + 2 * MAX_LINES
    for start in range(1, end, MAX_LINES):
        numbers = range(start, min(start + MAX_LINES, end))
        assert store.post("\n".join(map(line, numbers)), first=1, last=end)["taken"] == len(numbers)
    assert store.state()["kept"] == MAX_ENTRIES
    assert decode(known(store)[0], groups=GROUPS)[0] == end - MAX_ENTRIES


def test_the_store_is_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long explanations are fewer; its own count of characters is right."""
    monkeypatch.setattr(explained, "MAX_CHARACTERS", 10_000)
    store = Explained(groups=GROUPS)
    long = [line(number) + " " * 900 for number in range(1, 40)]
    for one in long:
        store.post(one, first=1, last=99)
        assert store.state()["characters"] == sum(map(len, known(store))) <= 10_000
    assert known(store) == long[-len(known(store)) :]


def test_what_is_known_can_be_compared() -> None:
    """Seeing the table is more than not seeing it; naming a reason is more than none."""
    bare = RECORD.to_decision()
    _, full = decode(line(7), groups=GROUPS)
    _, vague = decode(line(7, lost=((Reason.UNKNOWN, None, 32),)), groups=GROUPS)
    assert knowledge(bare) < knowledge(vague) < knowledge(full)
    assert not full.fits(replace(bare, lookup_tokens=47))
    assert full.fits(replace(bare, lookup_tokens=48))
