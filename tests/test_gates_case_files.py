"""The cases as files, as somebody would send them: opened by the commands, each says what its case is."""

from pathlib import Path

import pytest

from agent.codec import to_plain
from inspector.store import load
from tests.support import cases
from tests.support.case_files import FOLDER, path_of
from tests.support.cli import Runner, check_schema


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """The command line, without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    return Runner(capsys)


def test_no_file_is_left_over() -> None:
    """There is a file for every case, and no other."""
    assert {path.name for path in FOLDER.iterdir()} == {path_of(name).name for name in cases.EXPECTED}


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_a_file_says_what_its_case_says(name: str) -> None:
    """A committed file, read back, is the snapshot that the case builds."""
    make, _ = cases.EXPECTED[name]
    assert to_plain(load(path_of(name))) == to_plain(make())


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_validate_finds_the_case_in_its_file(run: Runner, name: str) -> None:
    """`kvctl validate --snapshot FILE` names exactly the codes of the case, and its exit code says whether it fails.

    Its JSON fits the published schema.
    """
    _, codes = cases.EXPECTED[name]
    ran = run("validate", "--snapshot", path_of(name), "-o", "json")
    check_schema(ran.json)
    assert {finding["code"] for finding in ran.json["findings"]} == codes
    assert ran.code == any(finding["severity"] != "info" for finding in ran.json["findings"])


@pytest.mark.parametrize("name", [name for name in cases.EXPECTED if (cases.EXPECTED[name][0]().decisions or ())])
def test_a_decision_that_took_too_much_says_so(run: Runner, name: str) -> None:
    """`kvctl explain` of a decision warns where the engine reused more than the rules allow, and only there."""
    text = run("explain", "1", "--snapshot", path_of(name)).out
    assert ("DANGER" in text) == (name == "5")
    if name == "5":
        assert "reused 3,072 tokens" in text
        assert "2,048 only" in text
        assert "kvctl explain KV305" in text


def test_a_prefix_off_the_boundaries_is_not_called_usable(run: Runner) -> None:
    """`kvctl inspect prefix` of a page between two boundaries does not say that all of it can be used."""
    ran = run("inspect", "prefix", "page:1", "--snapshot", path_of("2"))
    assert "no page is known at a boundary" in ran.out
    assert "everything that is cached can be used" not in ran.out
