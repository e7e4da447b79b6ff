"""The wire: frames, errors, and values as JSON."""

import base64
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from agent.codec import from_plain, to_plain
from agent.errors import (
    AgentError,
    DeadlineError,
    FileError,
    InconclusiveError,
    KvctlError,
    ProtocolError,
    RefusedError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from agent.explainedformat import encode
from agent.model.decision import Decision
from agent.model.groups import Geometry
from agent.model.snapshot import EngineInfo, RequestInfo, Snapshot
from agent.probe.answers import pack
from tests.support import snapshots

GOLDEN = Path(__file__).parent / "golden" / "wire"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4), st.lists(st.integers(1, 64), min_size=1))
def test_frames_survive_any_cut(messages: list[dict[str, object]], cuts: list[int]) -> None:
    """However a stream is cut into pieces, the same messages come out, in order."""
    stream = b"".join(wire.encode(message) for message in messages)
    buffer, found, at, turn = wire.FrameBuffer(1 << 20), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        buffer.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
        while (message := buffer.next()) is not None:
            found.append(message)
    assert found == messages
    assert buffer.pending() == 0


@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_not_yet_a_frame(data: bytes) -> None:
    """Bytes of anybody make a message, wait for more, or are a protocol error; nothing else."""
    buffer = wire.FrameBuffer(64)
    buffer.feed(data)
    try:
        found = buffer.next()
    except ProtocolError:
        return
    assert found is None or isinstance(found, dict)


@pytest.mark.parametrize("size", [65, 1 << 20, 0xFFFF_FFFF])
def test_a_long_frame_is_refused_by_its_head(size: int) -> None:
    """A frame that is too long is refused before anything of it is kept."""
    buffer = wire.FrameBuffer(64)
    buffer.feed(size.to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="too long"):
        buffer.next()


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"null", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    """Only JSON objects are messages."""
    with pytest.raises(ProtocolError):
        wire.decode(body)


def test_hostile_text_crosses_unchanged() -> None:
    """Control characters, markup and lone surrogates of a request id arrive as they were."""
    text = "\x1b[31m[bold]\u202e\udc80" + "x" * 10_000
    buffer = wire.FrameBuffer(1 << 20)
    buffer.feed(wire.encode({"id": text}))
    assert buffer.next() == {"id": text}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TargetError("a", why="b", next_step="c"), TargetError),
        (ProtocolError("a"), ProtocolError),
        (UnsupportedError("a", why="b"), UnsupportedError),
        (AgentError("a"), AgentError),
        (FileError("a"), UsageError),
        (UsageError("a"), UsageError),
        (RefusedError("a", next_step="c"), RefusedError),
        (InconclusiveError("a"), InconclusiveError),
        (DeadlineError("a"), DeadlineError),
    ],
)
def test_errors_keep_their_meaning(error: KvctlError, kind: type[KvctlError]) -> None:
    """An error arrives as the same kind with its sentence, reason and next step."""
    rebuilt = wire.error_from_plain(json.loads(json.dumps(wire.error_to_plain(error))))
    assert type(rebuilt) is kind
    assert (rebuilt.what, rebuilt.why, rebuilt.next_step) == (error.what, error.why, error.next_step)


@given(JSON)
def test_an_error_that_cannot_be_read_is_still_an_error(plain: object) -> None:
    """Whatever stands where an error should, an error comes out."""
    assert isinstance(wire.error_from_plain(plain), KvctlError)


@pytest.mark.parametrize("snapshot", [snapshots.gemma(), snapshots.deepseek()], ids=["gemma", "deepseek"])
def test_values_survive_the_wire(snapshot: Snapshot) -> None:
    """Engine, geometry, requests and decisions are equal after a round trip through JSON."""

    def back(kind: type, value: object) -> object:
        return from_plain(kind, json.loads(json.dumps(to_plain(value))))

    assert back(EngineInfo, snapshot.engine) == snapshot.engine
    assert back(Geometry, snapshot.geometry) == snapshot.geometry
    for request in snapshot.requests or ():
        assert back(RequestInfo, request) == request
    for decision in snapshot.decisions or ():
        assert back(Decision, decision) == decision


@pytest.mark.parametrize(
    "plain",
    [None, [], {"pid": "x"}, {"pid": True}, {}, {"pid": 1, "start_ticks": 1, "engine": 1, "version": "", "model": ""}],
)
def test_values_that_do_not_fit_are_a_protocol_error(plain: object) -> None:
    """A value of another shape is refused with the place that is wrong."""
    with pytest.raises(ProtocolError, match="EngineInfo"):
        from_plain(EngineInfo, plain)


def test_fields_of_a_newer_agent_are_ignored() -> None:
    """A field that this side does not know does not disturb it."""
    plain = {**to_plain(snapshots.gemma().engine), "colour": "red"}
    assert from_plain(EngineInfo, plain) == snapshots.gemma().engine


@pytest.mark.parametrize("name", ["hello", "question", "answer", "refusal", "explained"])
def test_golden_frames(name: str) -> None:
    """The bytes of protocol 1 do not change: other versions of kvctl have to read them."""
    messages: dict[str, dict[str, object]] = {
        "hello": {"hello": {"protocol": 1, "pid": 42}},
        "question": {"id": 7, "op": "overview", "args": {"decisions": 8}, "deadline_ms": 2000},
        "answer": {"id": 7, "ok": True, "result": {"epoch": 3}},
        "refusal": {"id": 7, "ok": False, "error": wire.error_to_plain(RefusedError("no", why="w", next_step="n"))},
    }
    lines = "\n".join(encode(item) for item in snapshots.deepseek().decisions or () if item.logical is not None)
    messages["explained"] = {"id": 8, "op": "explained", "args": {"lines": lines}, "deadline_ms": 2000}
    assert wire.encode(messages[name]) == (GOLDEN / f"{name}.bin").read_bytes()


def test_every_change_is_an_operation() -> None:
    """The list of operations that change something names operations that exist."""
    assert wire.OPS.keys() >= wire.CHANGES


@pytest.mark.parametrize(
    "text", ["a" * 200_000, '\\"\n\0é\ud800' * 40_000, "\0" * 70_000], ids=["plain", "signs", "nul"]
)
def test_long_texts_are_written_in_pieces(text: str) -> None:
    """The bytes are the same as those of json, wherever the text is cut."""
    message = {"id": 1, "result": {"a": text, "b": {"c": text[:-1], "d": [text]}, "e": "short"}}
    plain = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    frame = wire.encode(message)
    assert frame[4:] == plain
    assert int.from_bytes(frame[:4], "little") == len(plain)
    assert wire.decode(frame[4:]) == message


def test_packed_pages_join() -> None:
    """Base64 made in pieces is base64."""
    ids = list(range(200_000))
    assert base64.b64decode(pack(ids), validate=True) == array("I", ids).tobytes()
