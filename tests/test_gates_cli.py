"""``kvctl validate``: formats, exit codes, narrowing, watching, self-test."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import UnsupportedError
from agent.gates.catalogue import CATALOGUE
from agent.gates.runner import run as run_gates
from agent.model.decision import Decision, Outcome, Phase
from agent.model.snapshot import Level, Snapshot
from inspector.store import save
from tests.support import cases
from tests.support.cli import ROOT, FakeSession, Runner, check_schema


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # a pin of this machine is none of the test's
    return Runner(capsys)


def saved(folder: Path, name: str) -> Path:
    """Save a case."""
    path = folder / f"{name}.kvsnap"
    save(cases.EXPECTED[name][0](), path, reveal=True)
    return path


def test_exit_codes(run: Runner, tmp_path: Path) -> None:
    """0 without findings, 1 with, 6 only where abstaining counts; an experimental error is a warning."""
    clean, broken = saved(tmp_path, "1"), saved(tmp_path, "8")
    assert run("validate", "--snapshot", clean).code == 0
    assert run("validate", "--snapshot", broken).code == 1
    assert run("validate", "--snapshot", broken, "--fail-on", "error").code == 0
    assert run("validate", "--snapshot", clean, "--fail-on", "abstain").code == 6
    assert run("validate", "--snapshot", clean, "--fail-on", "abstain", "--gate", "1").code == 0
    assert run("validate", "--snapshot", broken, "--gate", "4", "--gate", "redlines").code == 0
    assert run("validate", "--snapshot", clean, "--gate", "7").code == 2


def test_the_recording_of_the_readme_can_be_validated(run: Runner) -> None:
    """A real server's file holds what the gates ask for: all but the hole that it was recorded for is clean."""
    found = run("validate", "--snapshot", ROOT / "tests" / "data" / "gemma3.kvsnap", "-o", "json").json
    verdicts = {gate["gate"]: gate["verdict"] for gate in found["gates"]}
    assert verdicts == dict.fromkeys(verdicts, "pass") | {"intersection": "fail"}
    assert [item["code"] for item in found["findings"]] == ["KV301"]
    assert sum(len(gate["looked"]) for gate in found["gates"]) >= 36


@pytest.mark.parametrize("name", ["1", "2", "8", "10"])
def test_json_fits_its_schema(run: Runner, tmp_path: Path, name: str) -> None:
    """Findings and self-test fit the schemas that are published for them, as a whole and line by line."""
    file = saved(tmp_path, name)
    for words in (("validate",), ("validate", "--self-test")):
        ran = run(*words, "--snapshot", file, "-o", "json")
        check_schema(ran.json)
        assert ran.err == ""
        for line in run(*words, "--snapshot", file, "-o", "jsonl").out.splitlines():
            check_schema(json.loads(line))


def test_json_says_what_was_not_looked_at(run: Runner, tmp_path: Path) -> None:
    """Every code is either looked at with a number of objects, or abstains with a reason."""
    gates = run("validate", "--snapshot", saved(tmp_path, "1"), "-o", "json").json["gates"]
    looked = {code for gate in gates for code in gate["looked"]}
    abstained = {code for gate in gates for code in gate["abstained"]}
    assert len(looked | abstained) == 60
    assert not looked & abstained


def test_the_table_names_code_pages_and_remedy(run: Runner, tmp_path: Path) -> None:
    """A person sees the code, the pages, what to do and by which command, and what was not looked at."""
    out = run("validate", "--snapshot", saved(tmp_path, "21")).out
    for text in (
        "KV118",
        "experimental",
        "pages 15, 16",
        "do: Invalidate exactly",
        "kvctl invalidate page:15,16",
        "Not looked at",
        "1 block",
    ):
        assert text in out
    assert run("validate", "--snapshot", saved(tmp_path, "8"), "-o", "name").out == "KV103\nKV106\nKV107\n"


def test_findings_of_one_prefix(run: Runner, tmp_path: Path) -> None:
    """``--prefix`` keeps what concerns the prefix and says how many findings it left out."""
    file = saved(tmp_path, "21")
    assert run("validate", "--snapshot", file, "--prefix", "page:15").code == 1
    other = run("validate", "--snapshot", file, "--prefix", "page:3")
    assert (other.code, "1 finding" in other.err) == (0, True)
    assert run("validate", "--snapshot", file, "--prefix", "page:60").code == 2


def test_watching_keeps_the_worst_exit_code(run: Runner, tmp_path: Path) -> None:
    """``--watch`` shows one reading after another; the exit code is that of the worst."""
    ran = run("validate", "--snapshot", saved(tmp_path, "8"), "--watch", "-n", "2", "-i", "0.01", "-o", "jsonl")
    assert ran.code == 1
    assert [json.loads(line)["code"] for line in ran.out.splitlines()] == ["KV103", "KV106", "KV107"] * 2


def live(monkeypatch: pytest.MonkeyPatch, *snapshots: Snapshot | type[BaseException]) -> None:
    """Let a live engine show one snapshot after another; an exception is raised instead."""
    left = list(snapshots)

    class Changing(FakeSession):
        def snapshot(self, **_: Any) -> Snapshot:
            now = left.pop(0)
            if isinstance(now, type):
                raise now
            return now

    assert isinstance(snapshots[0], Snapshot)
    session = Changing(snapshots[0])
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)


WATCH = ("validate", "--watch", "-i", "0.01", "-o", "jsonl")


def test_a_finding_is_new_once(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reading before had is not new; what comes back after it was gone is; fewer pages are nothing new."""
    clean, broken = cases.case_1(), cases.case_8()
    live(monkeypatch, clean, broken, broken, clean, broken)
    ran = run(*WATCH, "-n", "5")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    for line in lines:
        check_schema(line)
    assert [line["new"] for line in lines if line["code"] == "KV103"] == [True, False, True]
    live(monkeypatch, broken)
    (first, *_) = run("validate", "-o", "json").json["findings"]
    assert first["new"] is None, "one reading has nothing before it"


def test_a_decision_is_compared_once(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong reuse of the past is found by one reading, and the next ones say that an earlier one found it."""
    wrong = cases.case_5()
    wrong = replace(wrong, evidence=None, decisions=(decided(wrong, 1),))
    later = replace(wrong, decisions=(*(wrong.decisions or ()), decided(wrong, 2)))
    live(monkeypatch, wrong, wrong, later, later)
    ran = run("validate", "--watch", "-i", "0.01", "-n", "4", "--gate", "3", "-o", "json")
    readings, at = [], 0
    while at < len(ran.out.rstrip()):
        reading, at = json.JSONDecoder().raw_decode(ran.out, at)
        at += 1
        check_schema(reading)
        readings.append(reading)
    found = [[(item["code"], item["new"]) for item in reading["findings"]] for reading in readings]
    assert found == [[("KV305", True)], [], [("KV305", True)], []]
    assert [reading["earlier"] for reading in readings] == [[], ["KV305"], [], ["KV305"]]
    assert "since the last check" in readings[1]["gates"][0]["abstained"]["KV305"]
    live(monkeypatch, wrong, wrong)
    shown = run("validate", "--watch", "-i", "0.01", "-n", "2", "--gate", "3").out
    assert shown.index("new warning (experimental)") < shown.index("found by earlier readings: KV305")


def decided(snapshot: Snapshot, number: int) -> Decision:
    """Make a decision of an engine that reuses more than there is."""
    return Decision(
        id=number,
        time_ns=number,
        step=number,
        request=f"r{number}",
        phase=Phase.FIRST,
        outcome=Outcome.REUSE,
        lookup_tokens=64,
        engine_usable=32,
        logical=0,
        usable=0,
        external=0,
        limiting_group=None,
        limiting_state=None,
        reason=None,
        per_group=(0,) * len(snapshot.geometry.groups),
    )


@pytest.mark.parametrize(
    ("make", "words", "code"),
    [
        (cases.case_1, ("--gate", "1"), 130),
        (cases.case_8, ("--gate", "1"), 1),
        (cases.case_8, ("--gate", "1", "--fail-on", "error"), 130),
        (cases.case_1, ("--fail-on", "abstain"), 6),
    ],
)
def test_an_interrupted_watch_keeps_its_verdict(
    run: Runner, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Snapshot], words: tuple[str, ...], code: int
) -> None:
    """Ctrl-C ends a watch with the worst of its readings; with 130 where there was nothing to say."""
    live(monkeypatch, make(), make(), KeyboardInterrupt)
    assert run(*WATCH, *words).code == code


def test_self_test(run: Runner, tmp_path: Path) -> None:
    """Every planted fault is found; the exit code says whether a gate is broken."""
    ran = run("validate", "--self-test", "--snapshot", saved(tmp_path, "1"), "-o", "json")
    assert (ran.code, ran.json["broken"]) == (0, [])
    assert ran.json["planted"] >= 50


def test_a_broken_gate_reports_itself(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that no longer sees a fault fails its self-test."""
    monkeypatch.setattr("agent.gates.block._free_list", lambda *_: None)
    ran = run("validate", "--self-test", "--snapshot", saved(tmp_path, "1"), "-o", "json")
    assert (ran.code, ran.json["broken"]) == (1, ["1 block"])
    assert {item["code"] for item in ran.json["codes"] if item["result"] == "broken"} == {"KV106", "KV107", "KV108"}


def test_live_without_a_feed_abstains(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose page table cannot be followed is no error: the gates abstain, and the note says why."""
    session = FakeSession(cases.case_8())

    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError("the feed is off", why="an unknown writer of ref_cnt")

    monkeypatch.setattr(session, "follow", refuse)
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    ran = run("validate", "--fail-on", "abstain")
    assert (ran.code, "an unknown writer of ref_cnt" in ran.err) == (6, True)


def test_live_finds_what_a_file_shows(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live engine is read with references, free list and evidence, and judged like a file."""
    session = FakeSession(cases.case_8())
    monkeypatch.setattr("agent.session.open_target", lambda **_: session)
    ran = run("validate", "-o", "name")
    assert (ran.code, ran.out) == (1, "KV103\nKV106\nKV107\n")
    assert session.followed == [Level.REFERENCES]


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_every_finding_says_what_to_do(run: Runner, tmp_path: Path, name: str) -> None:
    """Below each finding stands the catalogue's remedy; JSON has it as `action`."""
    file = saved(tmp_path, name)
    found = run("validate", "--snapshot", file, "-o", "json").json["findings"]
    assert [item["action"] for item in found] == [CATALOGUE[item["code"]].remedy for item in found]
    assert run("validate", "--snapshot", file).out.count("do: ") == len(found)


def test_the_name_of_a_pair_is_no_word_for_a_person() -> None:
    """KV207 says which two requests share a prefix, in words; every pair that an engine hashes has some."""
    (finding,) = [one for result in run_gates(cases.case_16()) for one in result.findings if one.code == "KV207"]
    assert "a request with a salt and one with a LoRA adapter of that name" in finding.sentence
