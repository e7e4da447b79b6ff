"""What a person sees at 80 and 160 columns: golden files that were looked at."""

from pathlib import Path

import pytest

from inspector.format import width_of
from inspector.store import save
from tests.support.cli import Runner, check_golden
from tests.support.snapshots import deepseek, gemma

MAKERS = {"gemma": gemma, "deepseek": deepseek}
VIEWS = (
    "inspect overview",
    "inspect groups",
    "inspect states",
    "inspect pages --limit 6",
    "inspect prefixes",
    "inspect requests",
    "inspect tiers",
    "inspect prefix hash:{broken}",
    "decisions",
    "explain {decision}",
    "ps",
)
BROKEN = {"gemma": "54328da708b7", "deepseek": "b93e232c0ff8"}
DECISION = {"gemma": "4", "deepseek": "2"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    return Runner(capsys)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("engine", MAKERS)
@pytest.mark.parametrize("view", VIEWS)
def test_golden(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, view: str, width: int
) -> None:
    """Each view of each engine looks as it did when somebody last looked at it, and no line is too long."""
    monkeypatch.chdir(tmp_path)
    file = Path("s.kvsnap")  # the name is in the texts
    save(MAKERS[engine](), file, reveal=True)
    monkeypatch.setenv("COLUMNS", str(width))
    command = view.format(broken=BROKEN[engine], decision=DECISION[engine])
    form = "table" if width == 80 else "wide"
    ran = run(*command.split(), "--snapshot", file, "-o", form)
    assert ran.code == 0
    if form == "table":
        assert max(map(width_of, ran.out.splitlines())) <= width
    name = "-".join(word for word in view.partition(" --")[0].split() if "{" not in word)
    check_golden(f"{engine}-{name}-{width}.txt", f"$ kvctl {command}\n{ran.out}")


@pytest.mark.parametrize("topic", ["window_hole", "not_retained", "KV301", "logical", "swa", "partial", "exit-codes"])
def test_golden_explanations(run: Runner, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Explanations read as they did when somebody last read them."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("explain", topic)
    assert ran.code == 0
    assert max(map(width_of, ran.out.splitlines())) <= 80 or "https://" in ran.out
    check_golden(f"explain-{topic}.txt", f"$ kvctl explain {topic}\n{ran.out}")


def test_golden_snapshot_files(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving, looking into and comparing files reads as it did when somebody last looked."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    save(gemma(), Path("before.kvsnap"), reveal=True)
    save(deepseek(), Path("after.kvsnap"), reveal=True)
    # Keys in a file are drawn anew for each file, so that its compressed size wanders a little.
    monkeypatch.setattr("inspector.anonymise.secrets.token_bytes", lambda count: bytes(range(count)))
    text = ""
    for command in ("snapshot save new.kvsnap --snapshot before.kvsnap", "snapshot diff before.kvsnap after.kvsnap"):
        text += f"$ kvctl {command}\n{run(*command.split()).out}\n"
    check_golden("snapshot-files.txt", text)


def test_golden_help(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of the read commands reads as it did when somebody last read it."""
    monkeypatch.setenv("COLUMNS", "80")
    text = "".join(
        f"$ kvctl {name} --help\n{run(*name.split(), '--help').out}\n"
        for name in (
            "inspect",
            "decisions",
            "explain",
            "snapshot",
            "snapshot save",
            "run",
            "ps",
            "doctor",
            "completion",
        )
    )
    assert max(map(len, text.splitlines())) <= 80
    check_golden("help.txt", text)
