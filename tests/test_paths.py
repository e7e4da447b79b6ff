"""Runtime folders and socket names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent import paths
from agent.errors import TargetError


def test_a_chosen_folder_is_the_only_one() -> None:
    """Where the operator names a folder nothing else is looked at."""
    assert paths.folders({"KVCTL_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/b"}) == (Path("/a"),)


def test_the_search_order_is_fixed() -> None:
    """The order is the documented one, each folder once."""
    expected = ["/run/user/7/kvctl", "/run/kvctl-7", "/tmp/kvctl-7"]  # noqa: S108 - only named
    assert [str(path) for path in paths.folders({}, uid=7)] == expected
    assert [str(path) for path in paths.folders({"XDG_RUNTIME_DIR": "/x"}, uid=7)] == ["/x/kvctl", *expected]
    assert [str(path) for path in paths.folders({"XDG_RUNTIME_DIR": "/run/user/7"}, uid=7)] == expected


def test_own_folder_is_closed_to_others(tmp_path: Path) -> None:
    """A folder that we make has mode 0700."""
    folder = paths.own_folder({"KVCTL_RUNTIME_DIR": str(tmp_path / "a" / "b")})
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o707, 0o777, 0o1777])
def test_an_open_folder_is_refused(tmp_path: Path, mode: int) -> None:
    """A folder into which others can reach is not used; the sentence says which mode is needed, and how to set it."""
    folder = tmp_path / "open one"
    folder.mkdir()
    folder.chmod(mode)
    error = refused(folder)
    assert error.why == f"{folder}: its mode is {mode:04o}; 0700 is needed"
    assert error.next_step == f"chmod 0700 '{folder}'"


def refused(folder: Path) -> TargetError:
    """Return how a folder that was chosen is refused, which is what those say who only look."""
    environ = {"KVCTL_RUNTIME_DIR": str(folder)}
    with pytest.raises(TargetError) as caught:
        paths.own_folder(environ)
    assert caught.value.what == "the folder in KVCTL_RUNTIME_DIR cannot be used"
    assert paths.deaf(environ) == caught.value.why
    return caught.value


def test_what_cannot_be_a_folder_of_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a link that leads nowhere, and somebody else's folder are called what they are, with another way out."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir(mode=0o700)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    found = {name: refused(tmp_path / name) for name in ("file", "link", "foreign")}
    assert {name: str(error.why).partition(": ")[2] for name, error in found.items()} == {
        "file": "it is not a folder",
        "link": "it is not a folder",
        "foreign": f"it belongs to uid {uid}",
    }
    assert all("set KVCTL_RUNTIME_DIR" in str(error.next_step) for error in found.values())


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of ours in which no socket can be made is refused before anybody tries to make one."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    error = refused(folder)
    assert error.why == f"{folder}: you may not write to it"
    assert error.next_step == f"chmod 0700 {folder}"


def test_one_folder_that_can_be_used_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice of the operator a bad folder is passed over, and nothing is said to be missing."""
    (tmp_path / "bad").mkdir(mode=0o755)
    (tmp_path / "bad").chmod(0o755)
    monkeypatch.setattr(paths, "folders", lambda *_: (tmp_path / "bad", tmp_path / "good"))
    assert paths.deaf({}) is None
    assert paths.own_folder({}) == tmp_path / "good"
    monkeypatch.setattr(paths, "folders", lambda *_: (tmp_path / "bad", tmp_path / "none" / "below"))
    assert "0700 is needed" in str(paths.deaf({}))
    with pytest.raises(TargetError, match="no runtime folder can be used"):
        paths.own_folder({})


def test_agents_that_are_switched_off_cannot_listen(tmp_path: Path) -> None:
    """The file that switches agents off is named where somebody asks why there is none."""
    tmp_path.chmod(0o700)
    environ = {"KVCTL_RUNTIME_DIR": str(tmp_path)}
    assert paths.deaf(environ) is None
    (tmp_path / "off").touch()
    assert paths.deaf(environ) == f"{tmp_path}: the file 'off' in it switches every agent off"


def test_links_and_files_are_refused(tmp_path: Path) -> None:
    """A link to a good folder, or a file, is not a runtime folder."""
    good = tmp_path / "good"
    good.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        assert paths.fault_of(tmp_path / name, uid=os.geteuid()) == "it is not a folder"
    assert paths.fault_of(good, uid=os.geteuid()) is None
    assert "belongs to uid" in str(paths.fault_of(good, uid=os.geteuid() + 1))
    assert paths.fault_of(tmp_path / "none", uid=os.geteuid()) == "no such file or directory"


@pytest.mark.parametrize("name", ["engine-1-2.sock", "engine-4194304-18446744073709551615.sock", "engine-7-99-3.sock"])
def test_names_survive(name: str) -> None:
    """A socket's name carries pid, start ticks and part, and is written as it was read."""
    parsed = paths.SocketName.parse(name)
    assert parsed is not None
    assert parsed.text() == name


@pytest.mark.parametrize(
    "name",
    ["", "engine-0-1.sock", "engine-1.sock", "engine-1-2.sock.bak", "engine--1-2.sock", "engine-1-2.sock\n", "x"],
)
def test_other_names_are_not_ours(name: str) -> None:
    """Files with other names are no engines."""
    assert paths.SocketName.parse(name) is None


def test_start_ticks_tell_processes_apart() -> None:
    """This process has start ticks, a process that ended has none."""
    assert paths.start_ticks(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert paths.start_ticks(child.pid) is None


def test_a_zombie_is_gone() -> None:
    """A process that ended and was not collected answers nothing: it has no start ticks."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert paths.start_ticks(child.pid) is None
    child.wait()


def test_ancestors_end_at_the_top() -> None:
    """The parents of this process begin with its parent."""
    assert paths.ancestors(os.getpid())[0] == os.getppid()


def test_allowed_uids_are_explicit() -> None:
    """Only the own uid is allowed, unless others are listed; nonsense in the list allows nobody."""
    own = os.geteuid()
    assert paths.allowed_uids({}) == {own}
    assert paths.allowed_uids({"KVCTL_ALLOWED_UIDS": "12, 13,x,,-1"}) == {own, 12, 13}
