"""Read commands on saved snapshots: every view in every format, from a file as from an engine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import DeadlineError, KvctlError, UnsupportedError
from agent.model.snapshot import Capability, Level, Tier
from inspector.store import save
from tests.support.cli import FakeSession, Ran, Runner, check_schema
from tests.support.snapshots import deepseek, gemma

VIEWS = ("overview", "groups", "states", "pages", "prefixes", "requests", "tiers")
COMMANDS = (*(f"inspect {view}" for view in VIEWS), "decisions", "ps", "explain 2", "inspect prefix page:1")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    return Runner(capsys)


@pytest.fixture(params=["gemma", "deepseek"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give a saved snapshot of each kind of engine."""
    path = tmp_path / f"{request.param}.kvsnap"
    save({"gemma": gemma, "deepseek": deepseek}[request.param](), path, reveal=True)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_json_fits_its_schema(run: Runner, file: Path, command: str) -> None:
    """Every command's JSON fits the schema that is published for its kind, and stderr stays empty."""
    ran = run(*command.split(), "--snapshot", file, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    check_schema(ran.json)


@pytest.mark.parametrize("command", COMMANDS)
def test_jsonl_lines_fit_their_schema(run: Runner, file: Path, command: str) -> None:
    """Every line of JSONL is an object of its own with version and kind."""
    ran = run(*command.split(), "--snapshot", file, "-o", "jsonl")
    assert ran.code == 0
    for line in ran.out.splitlines():
        check_schema(json.loads(line))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", ["table", "wide", "name"])
def test_text_formats(run: Runner, file: Path, command: str, form: str) -> None:
    """Tables and names come out without an error and without a trace of Python."""
    ran = run(*command.split(), "--snapshot", file, "-o", form)
    assert ran.code == 0
    assert "Traceback" not in ran.out + ran.err
    assert "None" not in ran.out
    assert "Kind." not in ran.out


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "ps"])
def test_live_says_the_same_as_a_file(run: Runner, file: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live engine and a saved file of it give the same table."""
    from inspector.store import load

    session = FakeSession(load(file))
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    from_file, live = run(*command.split(), "--snapshot", file, "-o", "wide"), run(*command.split(), "-o", "wide")
    assert session.closed
    text = from_file.out.replace(f" --snapshot {file}", "")
    same = [line for line in text.splitlines() if not line.startswith("READ")]
    assert [line for line in live.out.splitlines() if not line.startswith("READ")] == same


def test_quiet_prints_nothing(run: Runner, file: Path) -> None:
    """With -q only the exit code speaks."""
    assert run("inspect", "--snapshot", file, "-q") == Ran(0, "", "")


def test_watch_repeats(run: Runner, file: Path) -> None:
    """--watch with a count shows that many readings, a JSON object each time."""
    ran = run("inspect", "groups", "--snapshot", file, "-w", "-i", "0.01", "-n", "3", "-o", "jsonl")
    groups = len({json.loads(line)["id"] for line in ran.out.splitlines()})
    assert len(ran.out.splitlines()) == 3 * groups


def test_no_headers(run: Runner, file: Path) -> None:
    """--no-headers leaves the rows alone."""
    ran = run("decisions", "--snapshot", file, "--no-headers")
    assert "OUTCOME" not in ran.out
    assert ran.out.splitlines()[0].split()[0] == "1"


def test_bytes_are_raw_on_request(run: Runner, file: Path) -> None:
    """--bytes prints sizes as numbers."""
    assert "KiB" in run("inspect", "groups", "--snapshot", file).out + "KiB"
    assert "iB" not in run("inspect", "groups", "--snapshot", file, "--bytes").out


def test_unknown_is_never_zero(run: Runner, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a page table pages and stranded ones are unknown in tables and null in JSON."""
    from inspector.store import load

    session = FakeSession(load(file))
    overview = FakeSession(session.overview())
    monkeypatch.setattr("agent.session.open_target", lambda **_: overview)
    table = run("inspect", "groups")
    assert "unknown" in table.out
    assert "page table was not read" in table.err
    group = run("inspect", "groups", "-o", "json").json["groups"][0]
    assert group["pages_cached"] is None
    assert group["pages_stranded"] is None


def test_follow_streams_decisions(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """-f writes each new decision as it comes, filtered, and stops at the limit."""
    snapshot = gemma()
    assert snapshot.decisions is not None
    session = FakeSession(snapshot, fresh=[snapshot.decisions[:2], (), snapshot.decisions[2:]])
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    ran = run("decisions", "-f", "--where", "outcome=recompute", "--limit", "3", "-o", "jsonl")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["id"] for line in lines] == [1, 3, 4]
    for line in lines:
        check_schema(line)
    assert session.closed


def test_follow_as_a_table(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A followed table has one header and columns that stay in line."""
    snapshot = gemma()
    assert snapshot.decisions is not None
    session = FakeSession(snapshot, fresh=[(item,) for item in snapshot.decisions])
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("decisions", "-f", "--limit", "6")
    lines = ran.out.splitlines()
    assert len(lines) == 7
    assert lines[0].split()[:3] == ["ID", "TIME", "OUTCOME"]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("outcome=partial", [5]),
        ("outcome!=recompute", [2, 5, 6]),
        ("reason=window_hole", [4, 5]),
        ("reason=cold,not_retained", [1, 3]),
        ("group=1", [4, 5]),
        ("group=swa16/w1024#0", [3]),
        ("state=swa", [3, 4, 5]),
        ("phase=resumed", [6]),
        ("request=chatcmpl-bob", [3]),
        ("request=chatcmpl-b…b", [3]),
        ("request=chatcmpl…", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_where(run: Runner, tmp_path: Path, where: str, ids: list[int]) -> None:
    """--where keeps exactly the decisions that fit."""
    path = tmp_path / "s.kvsnap"
    save(gemma(), path, reveal=True)
    ran = run("decisions", "--snapshot", path, "--where", where, "-o", "name")
    assert [int(line) for line in ran.out.split()] == ids


@pytest.mark.parametrize("view", ["groups", "states", "requests"])
@pytest.mark.parametrize("error", [UnsupportedError, DeadlineError])
def test_views_that_can_do_without_a_table(
    run: Runner, view: str, error: type[KvctlError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the page table cannot be had, or not quickly, these views show the rest and say why."""
    session = FakeSession(gemma(), follow_error=error("no table", why="the feed is off"))
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    ran = run("inspect", view)
    assert ran.code == 0
    assert "unknown" in ran.out
    assert "the page table was not read: the feed is off" in ran.err
    check_schema(run("inspect", view, "-o", "json").json)


def test_a_view_of_the_table_fails_without_it(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes without a page table are an error with its own exit code, not an empty list."""
    session = FakeSession(gemma(), follow_error=UnsupportedError("no table", why="the feed is off"))
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    ran = run("inspect", "prefixes")
    assert ran.code == 4
    assert "the feed is off" in ran.err


def test_watch_joins_so_that_decisions_are_explained(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watching the overview follows the feed; where there is none it says so once and goes on."""
    session = FakeSession(gemma())
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    assert run("inspect", "-w", "-i", "0.01", "-n", "2").code == 0
    assert session.followed == [Level.CONTENT]
    session = FakeSession(gemma(), follow_error=UnsupportedError("no table", why="the feed is off"))
    ran = run("inspect", "-w", "-i", "0.01", "-n", "2")
    assert ran.code == 0
    assert ran.err.count("decisions come unexplained: the feed is off") == 1


def test_tiers_of_a_file(run: Runner, tmp_path: Path) -> None:
    """A file holds the tiers that were read; where they were not it is said why, and that they are unknown."""
    tier = Tier(name="host", kind="host", entries=3, details={"loads_given_up": "1", "pages": "29248"})
    off = Capability(name="tiers", on=False, reason="this connector is not known")
    failed = replace(gemma().capture, notes=("tiers could not be read: boom",))
    for name, snapshot in {
        "held": replace(gemma(), tiers=(tier,)),
        "left out": replace(gemma(), tiers=None, capabilities=()),
        "off": replace(gemma(), tiers=None, capabilities=(off,)),
        "failed": replace(gemma(), tiers=None, capabilities=(), capture=failed),
    }.items():
        save(snapshot, tmp_path / name)
    held = run("inspect", "tiers", "--snapshot", tmp_path / "held", "-o", "json").json["tiers"]
    assert [(item["name"], item["entries"], item["details"]) for item in held] == [("host", 3, dict(tier.details))]
    assert "pages=29,248" in run("inspect", "tiers", "--snapshot", tmp_path / "held").out
    for name, why in {
        "left out": "this snapshot was taken without its tiers",
        "off": "tiers cannot be read from this engine: this connector is not known",
        "failed": "tiers could not be read: boom",
    }.items():
        assert run("inspect", "tiers", "--snapshot", tmp_path / name).out == f"unknown: {why}\n"


def test_what_another_way_of_resuming_would_win(run: Runner, tmp_path: Path) -> None:
    """A prefix that is usable in part shows what replaying its last tokens would win, one that is whole nothing."""
    file = tmp_path / "s.kvsnap"
    save(deepseek(), file, reveal=True)
    listed = run("inspect", "prefixes", "--snapshot", file, "--reveal", "-o", "json").json["prefixes"]
    found = {}
    for item in listed:
        data = run("inspect", "prefix", item["key"], "--snapshot", file, "-o", "json").json
        check_schema(data)
        found[item["usable_tokens"] == item["logical_tokens"]] = data["prefix"]
    assert found[True]["recoverable"] == []
    exact, approximate = found[False]["recoverable"]
    assert (exact["fidelity"], approximate["fidelity"]) == ("replay_exact", "replay_approximate")
    assert exact["gained_tokens"] == exact["tokens"] - found[False]["usable_tokens"] - exact["replay_tokens"]
    assert "RECOVER" in run("inspect", "prefix", found[False]["key"], "--snapshot", file).out
