"""A page table that one reader hands to another equals the engine's, from then on and at every moment."""

import os
import random
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import paths, readers, wire
from agent.discovery import EndpointState, discover
from agent.model.snapshot import Level
from agent.serving import PATIENCE_S, WAITING, TableServer
from agent.table import RingReader, handover
from tests.support.engine_env import short_folder
from tests.support.lending import GROUPS, Lending, adopt, same, serving
from tests.test_table_follow import ACTIONS


@pytest.fixture
def lending(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Lending:
    """A pool with a feed; its readers' sockets are in a private folder."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    return Lending(runtime)


def handed(lending: Lending, old: RingReader, level: Level = Level.CONTENT) -> RingReader:
    """Join with the table of another reader."""
    ring = lending.join(level)
    with serving(lending, old):
        adopt(ring, lending.borrowed(ring))
    return ring


@pytest.mark.parametrize("level", Level)
def test_it_is_the_same_and_costs_the_engine_nothing(lending: Lending, level: Level) -> None:
    """Every column, list and checksum is the other reader's; the engine sends no page for it."""
    old = lending.bootstrapped(level)
    ids = lending.work()
    lending.pool.register_more(lending.pool.all[ids[2]], bytes(range(32)) + (3).to_bytes(4, "big"))
    lending.feed.cut()
    old.poll()
    sent = lending.feed.status()["chunk_pages"]
    new = handed(lending, old, level)
    assert new.complete
    same(old.table, new.table, references=level is Level.REFERENCES)
    lending.work(name="two")
    for reader in (old, new):
        reader.poll()
    same(old.table, new.table, references=level is Level.REFERENCES)
    lending.audit(old, new)
    assert lending.feed.status()["chunk_pages"] == sent


def test_parents_of_before_are_known(lending: Lending) -> None:
    """What is cached when a reader joins has its chain from a reader that saw it, and not from the engine."""
    old = lending.bootstrapped()
    lending.work()
    lending.pool.finish(lending.pool.requests_by_name["one"])
    lending.feed.cut()
    old.poll()
    new, alone = handed(lending, old), lending.bootstrapped()
    assert np.count_nonzero(new.table.parent) == 4
    assert np.count_nonzero(alone.table.parent) == 0
    new.poll()
    same(new.table, alone.table, parents=False)


def test_references_come_from_the_engine_where_the_other_has_none(lending: Lending) -> None:
    """Who needs more than the other reader has takes its content, keeps its parents, and compares it on the way."""
    old = lending.bootstrapped()
    lending.work()
    old.poll()
    new = handed(lending, old, Level.REFERENCES)
    assert (new.table.complete, new.complete, new.progress) == (True, False, 0.0)
    lending.feed.request_bootstrap()
    lending.catch_up(new)
    assert (new.complete, new.progress, new.doubtful) == (True, 1.0, False)
    assert np.count_nonzero(new.table.parent) == 4
    lending.audit(new)


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(st.sampled_from(ACTIONS), max_size=40),
    between=st.lists(st.sampled_from(ACTIONS), max_size=20),
    after=st.lists(st.sampled_from(ACTIONS), max_size=40),
    seed=st.integers(0, 1 << 16),
    level=st.sampled_from(Level),
)
def test_at_any_moment_of_any_work(
    before: list[str], between: list[str], after: list[str], seed: int, level: Level
) -> None:
    """Copied at any moment and gone on from later, the table stays the other reader's and the engine's."""
    with short_folder() as folder:
        lending = Lending(folder)
        rng = random.Random(seed)
        old = lending.bootstrapped(level)
        do(lending, rng, before, old)
        old.poll()
        head, fd = handover.write(old, references=level is Level.REFERENCES)
        do(lending, rng, between, old)
        new = lending.join(level)
        new.adopt(handover.read(head, fd, groups=GROUPS), head.position, head.sequence)
        os.close(fd)
        new.table.presence()
        do(lending, rng, after, old)
        lending.catch_up(old, new)
        lending.audit(old, new)
        assert (new.gaps, new.doubtful) == (0, False)
        same(old.table, new.table, references=level is Level.REFERENCES)
        assert new.table.presence() == old.table.presence()


def do(lending: Lending, rng: random.Random, actions: list[str], reader: RingReader) -> None:
    """Let the pool work while one reader follows."""
    for action in actions:
        name = str(rng.random())
        if action == "cut":
            lending.feed.cut()
        elif action == "step":
            lending.feed.before_schedule(1)
            lending.feed.after_schedule(1, set(lending.pool.requests_by_name))
            lending.feed.shadow()
        elif action == "poll":
            reader.poll()
        else:
            lending.pool.act(rng, name, action)


def test_a_place_that_was_overwritten_is_a_new_start(lending: Lending) -> None:
    """A table that is older than the ring is refused; one that becomes so is a gap, and the engine sends the table."""
    old = lending.bootstrapped()
    lending.work()
    old.poll()
    new = lending.join()
    with serving(lending, old):
        loan = lending.borrowed(new)
        for _ in range(400):
            lending.feed.put_decision(bytes(1000))
        assert lending.borrowed(new) is None
    adopt(new, loan)
    new.poll()
    assert (new.overruns, new.complete) == (1, False)
    lending.catch_up(new)
    assert new.complete
    lending.audit(new)


def test_look_ups_of_before_are_no_news(lending: Lending) -> None:
    """Records between the copy and the moment of joining are applied; their look-ups were told to others."""
    old = lending.bootstrapped()
    head, fd = handover.write(old, references=False)
    lending.feed.put_decision(b"before")
    new = lending.join()
    lending.feed.put_decision(b"after")
    new.adopt(handover.read(head, fd, groups=GROUPS), head.position, head.sequence)
    os.close(fd)
    told: list[bytes] = []
    new.poll(told.append)
    assert told == [b"after"]


@pytest.mark.parametrize("column", ["tokens", "stamp", "group"])
def test_a_wrong_table_is_noticed(lending: Lending, column: str) -> None:
    """One wrong page is found by the checksum of the whole table and by the slow audit; then nobody is served."""
    old = lending.bootstrapped()
    ids = lending.work()
    old.poll()
    getattr(old.table, column)[ids[0]] += 1
    new, slow = handed(lending, old), handed(lending, old)
    lending.feed.audit()
    new.poll()
    assert (new.failed_audits, new.doubtful) == (1, True)
    while lending.feed.status()["chunk_pages"] < 2 * lending.pages:
        lending.feed.shadow()
    slow.poll()
    assert (slow.table.mismatches, slow.doubtful) == (1, True)
    with serving(lending, new):
        assert lending.borrowed(lending.join()) is None
    new.renew()
    lending.catch_up(new)
    lending.audit(new)
    assert not new.doubtful


def test_who_has_no_whole_table_says_so_at_once(lending: Lending) -> None:
    """A reader in the middle of its own bootstrap, or of another ring, is not waited for."""
    half = lending.join()
    with serving(lending, half) as (server,):
        assert lending.borrowed(lending.join(), deadline_s=3600.0) is None
        assert server.served == 0


def test_only_allowed_users_get_it(lending: Lending) -> None:
    """A reader hands nothing to a uid that may not talk to an engine of its own."""
    old = lending.bootstrapped()
    with serving(lending, old, allowed=frozenset({os.geteuid() + 1})) as (server,):
        assert lending.borrowed(lending.join()) is None
        assert server.served == 0


def test_its_socket_is_its_own_alone_and_no_engines(lending: Lending) -> None:
    """It is closed to others, no engine for discovery, named for doctor, and gone with the reader."""
    with serving(lending, lending.bootstrapped()) as (server,):
        assert server.path.lstat().st_mode & 0o777 == 0o600
        assert discover() == []
        assert [item.endpoint.path for item in readers.of_engine(lending.engine)] == [server.path]
    assert readers.endpoints() == []


def test_what_a_dead_reader_left_is_ignored_and_swept(lending: Lending) -> None:
    """Its socket is not asked, is known as dead, and goes when the next reader begins to serve."""
    numbers = (*readers.identity(lending.engine), os.getpid(), 1, 1)
    left = lending.folder / f"reader-{'-'.join(map(str, numbers))}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    assert [item.state for item in readers.endpoints()] == [EndpointState.DEAD]
    assert readers.of_engine(lending.engine) == []
    with serving(lending, lending.bootstrapped()):
        assert not left.exists()


def test_the_kill_file_switches_it_off(lending: Lending) -> None:
    """Where an operator switched the agents off nobody serves."""
    (lending.folder / paths.KILL_FILE).touch()
    assert TableServer.open(lending.engine) is None


def test_guests_never_hold_up_the_reader(lending: Lending) -> None:
    """One that is silent, one that stops half way and one that is gone wait in vain; the next one gets its table."""
    old, now = lending.bootstrapped(), [0.0]
    server = TableServer.open(lending.engine)
    assert server is not None
    server._clock = lambda: now[0]
    question = wire.encode({"table": {"version": 1, "instance": old.instance, "references": False}})
    with guest(server.path) as silent, guest(server.path, question[:9]), guest(server.path, question) as good:
        with guest(server.path, question):
            pass
        server.serve(old)
        server.serve(old)
        answer, fds, _, _ = socket.recv_fds(good, 4096, 1)
        assert (len(fds), server.served) == (1, 1)
        os.close(fds[0])
        assert b'"table"' in answer
        with pytest.raises(BlockingIOError):
            silent.recv(1)
        now[0] += PATIENCE_S + 0.1
        server.serve(old)
        assert silent.recv(1) == b""
    for number in range(WAITING):
        with guest(server.path, f"nonsense {number}".encode()):
            server.serve(old)
    assert server.served == 1
    server.close()


def guest(path: Path, said: bytes = b"") -> socket.socket:
    """Connect and say something."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(path))
    link.sendall(said)
    link.settimeout(0)
    return link
