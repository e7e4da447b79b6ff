"""The cases as files, as somebody would send them: opened by the commands, each says what its case is."""

from pathlib import Path

import pytest

from agent.codec import to_plain
from inspector.store import load
from tests.support import cases
from tests.support.case_files import FOLDER, path_of
from tests.support.cli import Runner


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
    """`kvctl validate --snapshot FILE` names exactly the codes of the case, and its exit code says whether it fails."""
    _, codes = cases.EXPECTED[name]
    ran = run("validate", "--snapshot", path_of(name), "-o", "json")
    assert {finding["code"] for finding in ran.json["findings"]} == codes
    assert ran.code == any(finding["severity"] != "info" for finding in ran.json["findings"])
