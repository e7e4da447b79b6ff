"""Hostile names: whatever a client or an engine calls things, every output is plain text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agent import errors
from agent.model.snapshot import Capability, Snapshot, Tier
from inspector.format import clean, width_of
from inspector.store import save
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.snapshots import gemma

NAMES = {
    "markup": "[bold red]gone[/] [link=file:///etc/passwd]click[/link] [/]",
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H\x1bc",
    "title": "\x1b]0;owned\x07",
    "hyperlink": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "c1": "\x9b31mred\x90q\x9c",
    "newline": "one\ntwo\r\nthree\rfour\tfive",
    "nul": "a\x00b\x7fc\x08\x08",
    "bidi": "abc\u202egnp.exe\u202c\u2066x\u2069",
    "zero": "a\u200bb\u200dc\ufeff",
    "surrogate": "a\ud800b",
    "separator": "a\u2028b\u2029c",
    "wide": "漢字カタカナ한글" * 20,
    "combining": "e" + "\u0301" * 500,
    "long": "x" * 10_240,
    "long_escape": "\x1b[5m" * 2_560,
    "empty": "",
    "format": "{0} %s %(name)s ${HOME} `id`",
    "json": '","kind":"error","x":"',
}

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

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def hostile(name: str) -> Snapshot:
    """Put a name wherever an engine or a client can put one."""
    snapshot = gemma()
    assert snapshot.requests is not None
    assert snapshot.decisions is not None
    layers = tuple(replace(layer, name=name, spec=name) for layer in snapshot.geometry.groups[0].layers)
    groups = tuple(
        replace(group, name=f"{name}#{group.id}", layers=layers, spec=name) for group in snapshot.geometry.groups
    )
    return replace(
        snapshot,
        engine=replace(
            snapshot.engine, engine=name, version=name, model=name, name=name, agent_version=name, devices=(name, name)
        ),
        capture=replace(snapshot.capture, notes=(name,)),
        geometry=replace(snapshot.geometry, groups=groups),
        requests=tuple(replace(item, id=name, status=name) for item in snapshot.requests),
        decisions=tuple(replace(item, request=name, trace=(("traceparent", name),)) for item in snapshot.decisions),
        counters={name: 1.0},
        tiers=(Tier(name=name, kind=name, details={name: name}),),
        capabilities=(Capability(name=name, on=False, reason=name),),
    )


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
    """No control character reaches the terminal and no line is wider than it, in tables and in notes."""
    ran = run(*words(command, file))
    assert ran.code == (1 if command == "snapshot diff" else 0)
    assert not CONTROL.search(ran.out)
    assert not CONTROL.search(ran.err)
    assert max(map(width_of, ran.out.splitlines()), default=0) <= 80


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
        assert json.loads(ran.err)["what"] == clean(name)


def test_markup_is_shown_as_it_is(run: Runner, tmp_path: Path) -> None:
    """Square brackets are brackets: a client's markup is neither obeyed nor hidden."""
    path = tmp_path / "s.kvsnap"
    save(hostile("[bold]x[/]"), path, reveal=True)
    assert "[bold]x[/]" in run("inspect", "requests", "--snapshot", path).out


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_words_of_the_command_line_are_plain_text(run: Runner, name: str) -> None:
    """A hostile argument comes back plain in the message about it."""
    for line in (
        ["explain", name],
        ["inspect", "prefix", f"hash:{name}"],
        ["decisions", "--where", name],
        ["ps", name],
    ):
        ran = run(*[word for word in line if "\x00" not in word])
        assert not CONTROL.search(ran.err)
