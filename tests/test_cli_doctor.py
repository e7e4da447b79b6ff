"""doctor: whose command it is, where engines are looked for, and what a dead one left behind."""

import os
import socket
from pathlib import Path

import pytest

from agent import paths
from kvctl import health
from tests.support.cli import Runner, check_schema


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a runtime folder of our own."""
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(path))
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], folder: Path) -> Runner:
    """Give a runner in that folder."""
    return Runner(capsys)


def bind(path: Path) -> socket.socket:
    """Leave a socket file, as an engine does."""
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
    return listener


def dead(folder: Path) -> Path:
    """Leave the socket of an engine whose pid belongs to another program now (ours)."""
    path = folder / paths.SocketName(pid=os.getpid(), start_ticks=1).text()
    bind(path).close()
    return path


def test_json_fits_its_schema(run: Runner) -> None:
    """The checks as JSON fit their schema."""
    ran = run("doctor", "-o", "json")
    check_schema(ran.json)
    assert ran.code == int(ran.json["problems"] > 0)


def test_the_search_order_is_printed(run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every runtime folder is printed in the order in which it is searched."""
    assert str(folder) in run("doctor").out
    monkeypatch.delenv("KVCTL_RUNTIME_DIR")
    found = [
        check["detail"] for check in run("doctor", "-o", "json").json["checks"] if check["name"].startswith("folder")
    ]
    assert [Path(detail.split(": ")[0]) for detail in found] == list(paths.folders())


def test_a_folder_that_is_not_there(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that is not there doctor says whether it will be made or is passed over; neither is a problem."""
    monkeypatch.delenv("KVCTL_RUNTIME_DIR")
    listed = (tmp_path / "none" / "kvctl", Path(f"/run/user/{2**31}/kvctl"), tmp_path / "kvctl-1")
    monkeypatch.setattr(paths, "folders", lambda *_, **__: listed)
    ran = run("doctor", "-o", "json")
    missing, session, made = [item for item in ran.json["checks"] if item["name"].startswith("folder")]
    assert f"there is no {tmp_path / 'none'}" in missing["detail"]
    assert "no login session has made it" in session["detail"]
    assert "made when an engine needs it" in made["detail"]
    assert {item["health"] for item in (missing, session, made)} == {"ok"}


def test_leftovers_are_named_and_removed_on_request(run: Runner, folder: Path) -> None:
    """A dead engine's socket is not listed by ps, named by doctor, and removed by --fix only."""
    path = dead(folder)
    assert run("ps", "-o", "json").json["engines"] == []
    assert "doctor --fix" in run("doctor").out
    assert path.exists()
    ran = run("doctor", "--fix")
    assert f"removed {path}" in ran.out
    assert not path.exists()
    assert "--fix" not in run("doctor").out


def test_fix_keeps_what_is_not_provably_dead(run: Runner, folder: Path) -> None:
    """--fix removes no socket of a living process, no plain file and nothing with another name."""
    ticks = paths.start_ticks(os.getpid())
    assert ticks is not None
    alive = folder / paths.SocketName(pid=os.getpid(), start_ticks=ticks).text()
    listener = bind(alive)
    plain = folder / paths.SocketName(pid=os.getpid(), start_ticks=2).text()
    plain.touch()
    stranger = folder / "something.sock"
    stranger.touch()
    run("doctor", "--fix", "--timeout", "0.2")
    listener.close()
    assert alive.exists()
    assert plain.exists()
    assert stranger.exists()


def test_an_open_folder_is_a_problem(run: Runner, folder: Path) -> None:
    """A runtime folder that others may enter is a problem with the command that mends it: exit code 1."""
    folder.chmod(0o755)
    ran = run("doctor")
    assert ran.code == 1
    assert f"chmod 0700 {folder}" in ran.out.replace("\n", " ").replace("  ", " ")


def test_without_a_folder_everybody_says_why(run: Runner, folder: Path) -> None:
    """Where no agent can have a socket, ps and whoever looks for an engine say why there is none."""
    folder.chmod(0o755)
    why = f"{folder}: its mode is 0755; 0700 is needed"
    ran = run("ps", "-o", "json")
    assert (ran.code, ran.json["engines"]) == (0, [])
    assert why in " ".join(run("ps").err.split())
    for words in (["inspect"], ["inspect", "--pid", str(os.getpid())]):
        ran = run(*words)
        assert ran.code == 3
        assert why in ran.err


def test_the_kill_file_is_named(run: Runner, folder: Path) -> None:
    """A file that switches every agent off is found."""
    (folder / paths.KILL_FILE).touch()
    ran = run("doctor", "-o", "json")
    assert any("switches every agent off" in check["detail"] for check in ran.json["checks"])
    assert ran.code == 1


@pytest.mark.parametrize(
    ("text", "owner"), [("#!python\nfrom kvcached.cli import main\n", "kvcached"), ("#!/bin/sh\n", "another project")]
)
def test_a_foreign_command_is_noticed(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, owner: str
) -> None:
    """Another project's kvctl on PATH is said, with the command that always works."""
    foreign = tmp_path / "bin" / "kvctl"
    foreign.parent.mkdir()
    foreign.write_text(text, encoding="utf-8")
    foreign.chmod(0o755)
    monkeypatch.setenv("PATH", f"{foreign.parent}{os.pathsep}{os.environ['PATH']}")
    check = health.command_on_path()
    assert check.health is health.Health.PROBLEM
    assert owner in check.detail
    assert "-m kvctl" in (check.next_step or "")
    assert run("doctor").code == 1


def test_our_own_command_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own script first on PATH is fine, and none at all is only a note."""
    own = tmp_path / "kvctl"
    own.write_text("#!python\nfrom kvctl.main import run\n", encoding="utf-8")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health.command_on_path().health is health.Health.OK
    own.unlink()
    assert health.command_on_path().health is health.Health.NOTE


def test_a_package_of_another_project_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent.py that comes first on the search path is said."""
    (tmp_path / "agent.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    check = health.own_packages()
    assert check.health is health.Health.NOTE
    assert str(tmp_path / "agent.py") in check.detail
