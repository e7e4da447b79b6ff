"""Snapshot files: whole or not at all, every fault one clear sentence, nothing in them that confirms a prompt."""

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import FileError
from agent.model.evidence import (
    Admission,
    BindConflict,
    Binds,
    EngineLookup,
    Evidence,
    HashTable,
    IdentityProbe,
    PlanRecord,
    TierEntry,
    TierReport,
    Transfer,
)
from agent.model.snapshot import PageColumns, Snapshot
from agent.model.states import PageId
from inspector import store
from inspector.prefixes import Prefixes
from tests.support.cli import Runner
from tests.support.snapshots import SYSTEM, chain_of, deepseek, gemma, key_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give a saved snapshot with raw keys."""
    path = tmp_path / "s.kvsnap"
    store.save(gemma(), path, reveal=True)
    return path


def same_pages(left: PageColumns | None, right: PageColumns | None) -> bool:
    """Compare two tables column by column."""
    assert left is not None
    assert right is not None
    for name in ("key", "group", "tokens", "stamp", "parent", "references", "free"):
        a, b = getattr(left, name), getattr(right, name)
        if (a is None) != (b is None) or (a is not None and bytes(a) != bytes(b)):
            return False
    return (left.extra_keys, left.never_computed, left.tainted, left.committed_step) == (
        right.extra_keys,
        right.never_computed,
        right.tainted,
        right.committed_step,
    )


@pytest.mark.parametrize("make", [gemma, deepseek])
def test_round_trip(make: Callable[[], Snapshot], tmp_path: Path) -> None:
    """What was saved with --reveal comes back equal in every field and every column."""
    before = make()
    store.save(before, tmp_path / "s", reveal=True)
    after = store.load(tmp_path / "s")
    assert replace(after, pages=None) == replace(before, pages=None)
    assert same_pages(after.pages, before.pages)


def test_round_trip_of_everything_optional(tmp_path: Path) -> None:
    """Secondary keys, commit fence, evidence with its hash table and empty parts come back as well."""
    snapshot = full_evidence(gemma())
    store.save(snapshot, tmp_path / "s", reveal=True)
    after = store.load(tmp_path / "s")
    assert same_pages(after.pages, snapshot.pages)
    assert after.evidence is not None
    assert snapshot.evidence is not None
    assert after.evidence.hash_table is not None
    assert snapshot.evidence.hash_table is not None
    assert bytes(after.evidence.hash_table.key) == bytes(snapshot.evidence.hash_table.key)
    assert replace(after.evidence, hash_table=None) == replace(snapshot.evidence, hash_table=None)


def full_evidence(snapshot: Snapshot) -> Snapshot:
    """Add every part that could carry a key or a request id."""
    assert snapshot.pages is not None
    key = key_of(SYSTEM, 16)
    secondary = key_of(SYSTEM, 32) + (2).to_bytes(4, "big") + (8).to_bytes(4, "little")
    pages = replace(
        snapshot.pages,
        extra_keys={PageId(3): (secondary,)},
        never_computed=frozenset({77}),
        tainted=frozenset({PageId(9)}),
    )
    evidence = Evidence(
        hash_table=HashTable(
            count=2, key=memoryview(key * 2), group=memoryview(b"\2\1"), page=memoryview(struct.pack("<2i", 1, 2))
        ),
        lookups=(EngineLookup(request="chatcmpl-alice", chain=(key,), limit=16, answer=0, epoch=1),),
        transfers=(Transfer(page=PageId(1), into=True, stamp=1, request="chatcmpl-alice"),),
        binds=Binds(
            compared=1,
            conflicts=(
                BindConflict(
                    request="chatcmpl-alice", checked=PageId(1), bound=PageId(2), stamp_checked=1, stamp_bound=2
                ),
            ),
        ),
        plans=(PlanRecord(id="bind of chatcmpl-alice in step 3", planned={}, found={}, executed=True),),
        tiers=(TierReport(name="disk", entries=(TierEntry(tier="disk", name=key.hex()),)),),
        identities=(IdentityProbe(name="lora", left=key, right=key_of(SYSTEM, 32)),),
        admission=Admission(needs={"chatcmpl-alice": 3}, returned={"chatcmpl-alice": 1}),
    )
    return replace(snapshot, pages=pages, evidence=evidence)


def test_a_file_confirms_no_prompt(tmp_path: Path) -> None:
    """Without --reveal no key, no half of a key, no request id and no trace header is in the file."""
    snapshot = full_evidence(gemma())
    assert snapshot.decisions is not None
    chain = chain_of(SYSTEM, 16)
    first = replace(snapshot.decisions[0], chain=chain, trace=(("traceparent", "00-abcdef0123456789-1-01"),))
    snapshot = replace(snapshot, decisions=(first, *snapshot.decisions[1:]))
    store.save(snapshot, tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    for key in chain:
        assert key not in data
        assert key[:8] not in data
        assert key.hex().encode() not in data
    for text in (b"chatcmpl", b"alice", b"abcdef0123456789"):
        assert text not in data


def test_two_files_share_no_key(tmp_path: Path) -> None:
    """The key of the pseudonyms is thrown away: the same snapshot saved twice has nothing in common."""
    store.save(gemma(), tmp_path / "a")
    store.save(gemma(), tmp_path / "b")
    first, second = Prefixes(store.load(tmp_path / "a")), Prefixes(store.load(tmp_path / "b"))
    assert not set(first.nodes.head.tolist()) & set(second.nodes.head.tolist())


@pytest.mark.parametrize("make", [gemma, deepseek])
def test_pseudonyms_keep_the_tree(make: Callable[[], Snapshot], tmp_path: Path) -> None:
    """Prefixes of an anonymised file branch, count and resume exactly as those of the engine."""
    store.save(make(), tmp_path / "s")
    before, after = Prefixes(make()), Prefixes(store.load(tmp_path / "s"))
    assert after.stranded == before.stranded

    def shape(prefixes: Prefixes) -> list[tuple[object, ...]]:
        rows = prefixes.rows()
        return sorted((row.tokens, row.logical, row.usable, row.pages, row.stranded, str(row.groups)) for row in rows)

    assert shape(after) == shape(before)


def test_request_ids_still_tell_requests_apart(tmp_path: Path) -> None:
    """A request has the same pseudonym in the list of requests and in its decisions."""
    store.save(gemma(), tmp_path / "s")
    after = store.load(tmp_path / "s")
    assert after.requests is not None
    assert after.decisions is not None
    assert after.requests[0].id == after.decisions[1].request
    assert after.requests[0].id != after.requests[1].id


def test_files_are_for_their_owner(file: Path) -> None:
    """A file is readable by its owner only."""
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full the old file stays whole and no piece of the new one remains."""
    old = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="cannot write") as caught:
        store.save(deepseek(), file)
    assert caught.value.why == "no space left on device"
    assert file.read_bytes() == old
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_truncated_anywhere(file: Path) -> None:
    """A file that ends early is said to be truncated, wherever it ends."""
    data = file.read_bytes()
    cut = file.with_name("cut")
    for length in [*range(1, 40), *range(40, len(data), 997), len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(FileError, match="truncated") as caught:
            store.load(cut)
        assert caught.value.next_step


def test_a_changed_byte_anywhere(file: Path) -> None:
    """One changed byte is noticed wherever it is, and never ends in anything but a FileError."""
    data = bytearray(file.read_bytes())
    bad = file.with_name("bad")
    for at in [*range(40), *range(40, len(data), 499), len(data) - 1]:
        data[at] ^= 0x41
        bad.write_bytes(data)
        with pytest.raises(FileError):
            store.load(bad)
        data[at] ^= 0x41


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_foreign_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, magic: bool) -> None:
    """Any bytes at all, with our first eight in front or without, are a FileError."""
    path = tmp_path_factory.mktemp("foreign") / "x"
    path.write_bytes(store.MAGIC + data if magic else data)
    with pytest.raises(FileError) as caught:
        store.load(path)
    assert caught.value.next_step


def rewritten(file: Path, change: Callable[[str], str], *, version: int = store.FORMAT) -> Path:
    """Write a file with a changed manifest whose checksums are right."""
    data = file.read_bytes()
    _, _, length, _ = struct.unpack_from("<8sIII", data)
    text = change(data[20 : 20 + length].decode()).encode()
    path = file.with_name("changed")
    head = struct.pack("<8sIII", store.MAGIC, version, len(text), zlib.crc32(text))
    path.write_bytes(head + text + data[20 + length :])
    return path


def test_newer_format(file: Path) -> None:
    """A file of a newer kvctl says so and how to get one."""
    with pytest.raises(FileError, match="newer kvctl") as caught:
        store.load(rewritten(file, lambda text: text, version=9))
    assert "update" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"hash_unit":16', '"hash_unit":0'),
        ('"alignment":16', '"alignment":-4'),
        ('"kind":"window"', '"kind":"nonsense"'),
        ('"null_page":0', '"null_page":99999999'),
        ('"pid":4711', '"pid":"4711"'),
        ('"count":1025', '"count":1024'),
        ('"count":1025', '"count":-1'),
        ('"snapshot":{', '"other":{'),
        ('"columns":[', '"colums":['),
    ],
)
def test_parts_that_do_not_fit(file: Path, old: str, new: str) -> None:
    """A manifest with right checksums and wrong content is refused with a reason, never analysed."""
    with pytest.raises(FileError) as caught:
        store.load(rewritten(file, lambda text: text.replace(old, new)))
    assert caught.value.why


def test_added_fields_are_ignored(file: Path) -> None:
    """A field that a later version adds does not stop this one."""
    path = rewritten(file, lambda text: text.replace('"pid":4711', '"pid":4711,"colour":"red"'))
    assert store.load(path).engine.pid == 4711


def test_not_a_file(tmp_path: Path) -> None:
    """A folder, a missing file and an empty one are each named for what they are."""
    (tmp_path / "empty").touch()
    for name, what in ((".", "not a file"), ("missing", "cannot read"), ("empty", "not a kvctl snapshot")):
        with pytest.raises(FileError, match=what):
            store.load(tmp_path / name)


def test_damaged_file_on_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read command answers a damaged file with one message and exit code 2."""
    monkeypatch.setenv("KVCTL_CONFIG", "/nowhere")
    file.write_bytes(file.read_bytes()[:-100])
    run = Runner(capsys)
    for command in ("inspect", "inspect groups", "decisions", "ps", "explain 2", "inspect prefix page:1"):
        ran = run(*command.split(), "--snapshot", file)
        assert (ran.code, ran.out) == (2, "")
        assert "is truncated" in ran.err
        assert len(ran.err.splitlines()) == 3
