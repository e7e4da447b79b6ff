"""The body of a DECISION record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decisionformat import DecisionRecord, decode, encode
from agent.errors import ProtocolError
from agent.model.decision import Outcome, Phase, Reason

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)

RECORDS = st.builds(
    DecisionRecord,
    id=U64,
    time_ns=U64,
    step=U64,
    request=TEXT,
    phase=st.sampled_from(Phase),
    tokens=U32,
    engine_usable=U32,
    external=U32,
    lookups=U32,
    skipped=st.booleans(),
    duration_ns=st.none() | U64,
    epoch=U64,
    stamp=U64,
    exact=st.booleans(),
    trace=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    chain=st.none() | st.lists(st.binary(min_size=16, max_size=16), max_size=6).map(tuple),
)


@given(RECORDS)
def test_records_survive(record: DecisionRecord) -> None:
    """A record is equal after it went through the ring's body."""
    assert decode(encode(record)) == record


@given(RECORDS, st.integers(0, 400))
def test_a_truncated_record_is_refused(record: DecisionRecord, size: int) -> None:
    """A body that was cut off is a protocol error, or lost nothing but trace text; it never crashes a reader."""
    body = encode(record)
    try:
        decode(body[: min(size, len(body))])
    except ProtocolError:
        return


def test_full_hashes_are_shortened() -> None:
    """The engine's 32-byte hashes arrive as keys of 16."""
    record = DecisionRecord(
        id=1, time_ns=1, step=1, request="r", phase=Phase.FIRST, tokens=9, engine_usable=0, chain=(b"a" * 32, b"b" * 32)
    )
    assert decode(encode(record)).chain == (b"a" * 16, b"b" * 16)


def test_another_version_is_refused() -> None:
    """A body of another version is named as such."""
    record = DecisionRecord(id=1, time_ns=1, step=1, request="r", phase=Phase.FIRST, tokens=9, engine_usable=0)
    with pytest.raises(ProtocolError, match="cannot read"):
        decode(b"\x09" + encode(record)[1:])


def test_an_unexplained_decision_claims_nothing() -> None:
    """What needs a table is unknown; only a skipped look-up explains itself."""
    plain = DecisionRecord(id=1, time_ns=1, step=1, request="r", phase=Phase.FIRST, tokens=9, engine_usable=0)
    decision = plain.to_decision()
    assert (decision.outcome, decision.logical, decision.usable, decision.epoch) == (Outcome.UNKNOWN, None, None, None)
    skipped = DecisionRecord(
        id=1, time_ns=1, step=1, request="r", phase=Phase.FIRST, tokens=9, engine_usable=0, skipped=True
    ).to_decision()
    assert (skipped.outcome, skipped.reason) == (Outcome.RECOMPUTE, Reason.SKIPPED)
