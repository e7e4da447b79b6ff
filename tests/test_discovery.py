"""Which engines are there: live ones, leftovers, and those of others (case 20)."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent import paths
from agent.discovery import EndpointState, discover, endpoint_at, remove_leftover
from agent.errors import RefusedError, TargetError
from agent.session import open_target
from tests.support.tiny_engine import tiny_engine


def listen(path: Path) -> socket.socket:
    """Leave a socket file behind."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def test_a_live_engine_is_found(runtime: Path) -> None:
    """An engine of this host is live and its socket is mode 0600."""
    with tiny_engine(runtime):
        (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
        assert (found.state, found.pid) == (EndpointState.LIVE, os.getpid())
        assert found.path.stat().st_mode & 0o777 == 0o600
    assert discover({"KVCTL_RUNTIME_DIR": str(runtime)}) == []


def test_leftovers_of_a_dead_engine(runtime: Path) -> None:
    """A socket of a process that ended, and one whose pid is another program now, are dead and can be removed."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    ended = runtime / paths.SocketName(pid=child.pid, start_ticks=1).text()
    reused = runtime / paths.SocketName(pid=os.getpid(), start_ticks=1).text()
    for path in (ended, reused):
        listen(path).close()
    (runtime / "engine-x.sock").touch()
    found = {item.path: item for item in discover({"KVCTL_RUNTIME_DIR": str(runtime)})}
    assert {item.state for item in found.values()} == {EndpointState.DEAD}
    assert found[ended].reason == f"process {child.pid} is gone"
    assert found[reused].reason == f"process {os.getpid()} is another program now"
    for item in found.values():
        remove_leftover(item)
    assert discover({"KVCTL_RUNTIME_DIR": str(runtime)}) == []


def test_a_leftover_beside_a_live_engine(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old socket does not hide the engine that runs, and a live one cannot be removed as a leftover."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    listen(runtime / paths.SocketName(pid=os.getpid(), start_ticks=1).text()).close()
    with tiny_engine(runtime):
        with open_target() as session:
            assert session.info.engine == "tiny"
        live = next(item for item in discover() if item.state is EndpointState.LIVE)
        with pytest.raises(RefusedError):
            remove_leftover(live)


def test_an_open_folder_is_unsafe(runtime: Path) -> None:
    """A socket in a folder that others can write to is listed and not trusted."""
    listen(runtime / paths.SocketName(pid=os.getpid(), start_ticks=paths.start_ticks(os.getpid()) or 0).text()).close()
    runtime.chmod(0o777)
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    assert found.state is EndpointState.UNSAFE
    assert "0700 is needed" in str(found.reason)


def test_a_file_is_no_socket(runtime: Path) -> None:
    """A plain file with an engine's name is not trusted."""
    (runtime / paths.SocketName(pid=os.getpid(), start_ticks=1).text()).touch()
    (found,) = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    assert found.state is EndpointState.UNSAFE


def test_another_users_engine_is_foreign(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody, not even root, silently trusts a socket of another uid; he may name that uid."""
    own = os.geteuid()
    listen(runtime / paths.SocketName(pid=os.getpid(), start_ticks=paths.start_ticks(os.getpid()) or 0).text()).close()
    environ = {"KVCTL_RUNTIME_DIR": str(runtime)}
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert [item.state for item in discover(environ)] == [EndpointState.FOREIGN]
    # Naming a uid opens its usual folders as well, where engines of this very machine may live.
    here = [item.state for item in discover(environ, trusted=[own]) if item.path.parent == runtime]
    assert here == [EndpointState.LIVE]


def test_no_engine_is_a_clear_sentence(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine the error says how to start one; with a leftover it says why that does not count."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    with pytest.raises(TargetError, match="no engine with an agent") as caught:
        open_target()
    assert "kvctl run" in str(caught.value.next_step)
    listen(runtime / paths.SocketName(pid=os.getpid(), start_ticks=1).text()).close()
    with pytest.raises(TargetError) as caught:
        open_target()
    assert "another program now" in str(caught.value.why)


def test_unknown_pid_and_pid_without_agent(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pid that does not exist and one that has no agent are told apart."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    with pytest.raises(TargetError) as caught:
        open_target(os.getpid())
    assert "no socket" in str(caught.value.why)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(TargetError) as caught:
        open_target(child.pid)
    assert caught.value.why == "there is no such process"


def test_engines_are_found_by_name(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine core is found by its served name."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    with tiny_engine(runtime):
        with open_target(name="tiny") as session:
            assert session.info.name == "tiny"
        with pytest.raises(TargetError, match="no engine serves this name"):
            open_target(name="other")


def test_several_engines_have_to_be_named(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two engines nothing is chosen silently."""
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(runtime))
    with tiny_engine(runtime), tiny_engine(runtime):
        assert len(discover()) == 2
        with pytest.raises(TargetError, match="2 engines run"):
            open_target()


def test_a_socket_that_was_named_wrongly(runtime: Path) -> None:
    """A path that is no engine's socket is said to be none."""
    with pytest.raises(TargetError, match="no engine socket") as caught:
        endpoint_at(runtime / "nothing.sock")
    assert caught.value.why == "there is no such socket"
    listen(runtime / "my engine.sock").close()
    (runtime / "other.sock").touch()
    for name, why in (("my engine.sock", "not one that kvctl gives"), ("other.sock", "not a socket"), (".", "folder")):
        with pytest.raises(TargetError) as caught:
            endpoint_at(runtime / name)
        assert why in str(caught.value.why)
