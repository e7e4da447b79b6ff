"""Starting: help, light imports, hostile neighbours, settings in their layers, documents from one source."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inspector.store import save
from kvctl.app import SECTIONS, load, summaries
from kvctl.docs import TABLES, updated
from tests.support.cli import ROOT, Runner
from tests.support.snapshots import gemma

HEAVY = ("textual", "torch", "numpy", "opentelemetry", "rich", "duckdb", "prometheus_client", "agent.session", "click")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner with a config file of its own."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    return Runner(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give a saved snapshot."""
    path = tmp_path / "s.kvsnap"
    save(gemma(), path, reveal=True)
    return path


def python(program: str, *, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KVCTL_CONFIG": "/nowhere", **env}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd, env=environ, check=False
    )


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]], ids=["nothing", "--help", "-h"])
def test_help(run: Runner, words: list[str]) -> None:
    """No arguments and --help show the help on stdout and are no error."""
    ran = run(*words)
    assert (ran.code, ran.err) == (0, "")
    for name in summaries():
        assert f"  {name} " in ran.out
    assert "Exit codes" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_version(run: Runner) -> None:
    """--version prints the name and the version."""
    from kvctl import __version__

    assert run("--version").out == f"kvctl {__version__}\n"


def test_every_command_file_is_a_command(run: Runner) -> None:
    """Each file in kvctl/commands loads, has help of its own, and its first line is its line in the help."""
    for name, summary in summaries().items():
        assert load(name).name == name
        assert 10 < len(summary) < 100, name
        ran = run(name, "--help")
        assert ran.code == 0, name
        assert ran.out.startswith(f"Usage: kvctl {name}"), name


def test_every_command_has_a_place_in_the_help() -> None:
    """No command is left over in a section of its own."""
    listed = {name for names in SECTIONS.values() for name in names}
    assert set(summaries()) <= listed


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    """``kvctl --help`` imports no textual, torch, numpy or opentelemetry, and no rich either."""
    program = (
        "import sys, kvctl.main\n"
        "kvctl.main.pin_packages()\n"
        "code = kvctl.main.main(['--help'])\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(code, loaded, file=sys.stderr)\n"
    )
    assert python(program, cwd=tmp_path).stderr == "0 []\n"


@pytest.mark.parametrize("command", ["ps", "explain cold", "decisions --snapshot x", "snapshot info x"])
def test_commands_import_only_what_they_use(tmp_path: Path, command: str) -> None:
    """Commands that draw no dashboard and export nothing import neither textual nor opentelemetry nor torch."""
    program = (
        "import sys, kvctl.main\n"
        "kvctl.main.pin_packages()\n"
        f"kvctl.main.main({command.split()!r})\n"
        "print([name for name in ('textual', 'torch', 'opentelemetry', 'rich') if name in sys.modules])\n"
    )
    done = python(program, cwd=tmp_path, KVCTL_RUNTIME_DIR=str(tmp_path))
    assert done.stdout.splitlines()[-1] == "[]"


HOSTILE = "raise SystemExit('a stranger was imported: ' + __name__)\n"


@pytest.mark.parametrize("name", ["agent", "inspector", "exporters", "typer", "rich", "numpy", "json"])
def test_hostile_files_in_the_current_folder(tmp_path: Path, name: str) -> None:
    """``python -m kvctl`` runs beside a file that is called like one of our packages or libraries."""
    (tmp_path / f"{name}.py").write_text(HOSTILE, encoding="utf-8")
    environ = {**os.environ, "KVCTL_CONFIG": "/nowhere", "KVCTL_RUNTIME_DIR": str(tmp_path)}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", "kvctl", "ps", "-o", "json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environ,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["engines"] == []


@pytest.mark.parametrize("name", ["agent", "inspector", "exporters"])
def test_hostile_package_first_on_the_path(tmp_path: Path, name: str) -> None:
    """A package that is called like ours and comes first on PYTHONPATH is not imported by the command."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(HOSTILE, encoding="utf-8")
    program = "import sys; sys.argv = ['kvctl', 'explain', 'cold', '-q']; from kvctl.main import run; run()"
    done = python(program, cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_locale_without_our_signs(tmp_path: Path, file: Path) -> None:
    """With an ASCII terminal the output is poorer, not an error."""
    program = (
        "import sys; "
        f"sys.argv = ['kvctl', 'inspect', 'prefixes', '--snapshot', {str(file)!r}]; "
        "from kvctl.main import run; run()"
    )
    done = python(program, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "LOGICAL" in done.stdout


def test_flags_beat_environment_beats_file(
    run: Runner, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting comes from the flag, else the environment, else the file, else the default."""
    words = ["inspect", "groups", "--snapshot", str(file)]
    assert run(*words).out.startswith("ENGINE")
    (tmp_path / "config.toml").write_text('output = "jsonl"\n', encoding="utf-8")
    from kvctl import config

    config._file.cache_clear()
    assert run(*words).out.startswith('{"schema_version"')
    monkeypatch.setenv("KVCTL_OUTPUT", "name")
    assert run(*words).out.startswith("swa16")
    assert run(*words, "-o", "json").out.startswith("{\n")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('output = "xml"', "is 'xml'"),
        ("colour = 1", "which is no setting"),
        ("output = ", "not valid TOML"),
        ("timeout = -3", "is '-3'"),
        ('bytes = "perhaps"', "is 'perhaps'"),
    ],
)
def test_bad_config_files(run: Runner, file: Path, tmp_path: Path, text: str, what: str) -> None:
    """A config file that does not fit is exit code 2 and named."""
    from kvctl import config

    (tmp_path / "config.toml").write_text(text + "\n", encoding="utf-8")
    config._file.cache_clear()
    ran = run("inspect", "--snapshot", file)
    assert ran.code == 2
    assert what in ran.err
    assert "config.toml" in ran.err


def test_target_from_the_environment(run: Runner, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVCTL_SNAPSHOT chooses the target, and a flag for another kind of target beats it."""
    monkeypatch.setenv("KVCTL_SNAPSHOT", str(file))
    assert run("inspect").code == 0
    assert run("inspect", "--pid", "1").code == 3


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_documents_are_up_to_date(path: Path) -> None:
    """Generated tables in README and docs equal what the generator says now."""
    text = path.read_text(encoding="utf-8")
    assert updated(text) == text, f"run python -m kvctl.docs {path.relative_to(ROOT)}"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_a_table(name: str) -> None:
    """Each generated table has a header and as many cells in every row."""
    rows = TABLES[name]().splitlines()
    assert len({row.replace("\\|", "").count("|") for row in rows}) == 1
    assert len(rows) > 4


def test_the_generator_replaces_only_its_blocks() -> None:
    """Text around a generated table stays, the table is replaced."""
    text = "before\n<!-- kvctl:exit-codes -->\nold\n<!-- kvctl:end -->\nafter\n"
    new = updated(text)
    assert new.startswith("before\n<!-- kvctl:exit-codes -->\n| exit code | meaning |")
    assert new.endswith("<!-- kvctl:end -->\nafter\n")
    assert "old" not in new
    assert updated(new) == new


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Runner, shell: str) -> None:
    """Each shell gets a script that asks kvctl."""
    out = run("completion", shell).out
    assert "_KVCTL_COMPLETE" in out


def test_completion_answers(tmp_path: Path) -> None:
    """The script's question is answered with the commands that begin like that."""
    program = "import sys; sys.argv = ['kvctl']; from kvctl.main import run; run()"
    done = python(program, cwd=tmp_path, _KVCTL_COMPLETE="complete_bash", COMP_WORDS="kvctl ins", COMP_CWORD="1")
    assert done.stdout.split() == ["inspect"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("explain not_re", {"not_retained", "not_ready"}),
        ("explain KV54", {"KV541"}),
        ("demo --inject dr", {"drop-window-page", "drop-indexer-page"}),
        ("validate --gate re", {"redlines"}),
    ],
)
def test_completion_knows_names(tmp_path: Path, words: str, found: set[str]) -> None:
    """A shell completes what explain, demo and validate take."""
    program = "import sys; sys.argv = ['kvctl']; from kvctl.main import run; run()"
    line = {"COMP_WORDS": f"kvctl {words}", "COMP_CWORD": str(len(words.split()))}
    done = python(program, cwd=tmp_path, _KVCTL_COMPLETE="complete_bash", **line)
    assert set(done.stdout.split()) == found, done.stderr


def helps() -> list[str]:
    """Every command and subcommand, as it is typed."""
    root = [(), *((name,) for name in summaries())]
    groups = {"fingerprint": ("show", "check", "diff", "pin"), "snapshot": ("save", "info", "diff")}
    groups |= {"export": ("assets",)}
    return [" ".join(words) for words in [*root, *((name, sub) for name, subs in groups.items() for sub in subs)]]


@pytest.mark.parametrize("command", helps())
def test_help_fits_a_terminal(run: Runner, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """At 80 columns no line of a help is wider, none ends inside an option, and no type of Python stands in it."""
    monkeypatch.setenv("COLUMNS", "80")
    text = run(*command.split(), "--help").out
    assert text.startswith("Usage: kvctl")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert re.findall(r"--?[a-z][a-z-]*-$|\bkvctl [a-z]+$(?=\n +-)", text, re.MULTILINE) == []
    assert re.findall(r"<(?:str|int|float|path|list)\b[^>]*>", text) == []
