"""Hostile names: whatever a client or an engine calls things, every output is plain text."""

import json
from pathlib import Path

import pytest

from agent import errors
from inspector.format import width_of
from inspector.store import save
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.hostile import CONTROL, NAMES, ends_with_a_command, hostile
from tests.support.snapshots import gemma

COMMANDS = (
    *(f"inspect {view}" for view in ("overview", "groups", "states", "pages", "prefixes", "requests", "tiers")),
    "inspect prefix page:1",
    "decisions",
    "explain 4",
    "ps",
    "snapshot info",
    "snapshot diff",
)

NAMED = ("inspect requests", "inspect groups", "inspect prefixes", "decisions", "ps")
"""Commands that show the most free text."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner on a terminal of 80 columns."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("COLUMNS", "80")
    return Runner(capsys)


@pytest.fixture(params=NAMES, scope="module")
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the hostile engine with its names, and a harmless one beside it."""
    path = tmp_path_factory.mktemp(request.param) / "s.kvsnap"
    save(hostile(NAMES[request.param]), path, reveal=True)
    save(gemma(), path.with_name("other"), reveal=True)
    return path


def words(command: str, file: Path) -> list[str]:
    """Aim a command at the file."""
    if command == "snapshot info":
        return ["snapshot", "info", str(file)]
    if command == "snapshot diff":
        return ["snapshot", "diff", str(file), str(file.with_name("other"))]
    return [*command.split(), "--snapshot", str(file)]


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_are_plain_text(run: Runner, file: Path, command: str) -> None:
    """No control character reaches the terminal and no line is wider than it but for a command, which stays whole."""
    ran = run(*words(command, file))
    assert ran.code == (1 if command == "snapshot diff" else 0)
    assert not CONTROL.search(ran.out)
    assert not CONTROL.search(ran.err)
    for line in ran.out.splitlines():
        assert width_of(line) <= 80 or ends_with_a_command(line), line


@pytest.mark.parametrize(
    ("command", "form"),
    [
        *((command, "json") for command in COMMANDS),
        *((command, form) for command in NAMED for form in ("wide", "name", "jsonl")),
    ],
)
def test_other_formats_are_plain_text(run: Runner, file: Path, command: str, form: str) -> None:
    """The other formats are plain as well; JSON stays JSON of its schema, and a line stays a line."""
    ran = run(*words(command, file), "-o", form)
    assert not CONTROL.search(ran.out)
    if form == "json":
        check_schema(ran.json)
    if form == "jsonl":
        for line in ran.out.splitlines():
            check_schema(json.loads(line))
    if form == "name" and command in {"decisions", "inspect requests"}:
        assert len(ran.out.splitlines()) == {"decisions": 6, "inspect requests": 2}[command]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_followed_decisions_are_plain_text(run: Runner, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile request id in a followed list stays in its line."""
    snapshot = hostile(name)
    assert snapshot.decisions is not None
    monkeypatch.setattr("agent.session.open_target", lambda **_: FakeSession(snapshot, [snapshot.decisions or ()]))
    ran = run("decisions", "-f", "--limit", "6")
    assert not CONTROL.search(ran.out)
    assert len(ran.out.splitlines()) == 7
    assert max(map(width_of, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("form", ["table", "json"])
def test_errors_are_plain_text(run: Runner, name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine puts into an error is plain text on stderr, and one object with -o json."""

    def fail(**_: object) -> None:
        raise errors.AgentError(name, why=name, next_step=name)

    monkeypatch.setattr("agent.session.open_target", fail)
    ran = run("inspect", "-o", form)
    assert not CONTROL.search(ran.err)
    if form == "json":
        check_schema(json.loads(ran.err))
        assert json.loads(ran.err)["what"] == name


def test_markup_is_shown_as_it_is(run: Runner, tmp_path: Path) -> None:
    """Square brackets are brackets: a client's markup is neither obeyed nor hidden."""
    path = tmp_path / "s.kvsnap"
    save(hostile("[bold]x[/]"), path, reveal=True)
    assert "[bold]x[/]" in run("inspect", "requests", "--snapshot", path).out
