"""What a text names can be used as it stands: commands with their target, ids that were cut, lists that are whole."""

import shlex
from pathlib import Path

import pytest

from inspector.hints import aim, quoted
from inspector.store import save
from tests.support.cli import Runner
from tests.support.snapshots import gemma

TARGET = "--snapshot f.kvsnap"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine, in a terminal of 80 columns."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("COLUMNS", "80")
    return Runner(capsys)


@pytest.mark.parametrize(
    ("text", "aimed"),
    [
        ("kvctl inspect", "kvctl inspect {}"),
        ("kvctl inspect prefixes   what can be used", "kvctl inspect prefixes {}   what can be used"),
        ("'kvctl inspect groups' prints the unit", "'kvctl inspect groups {}' prints the unit"),
        ("`kvctl inspect groups -o json` shows it", "`kvctl inspect groups -o json {}` shows it"),
        ("kvctl decisions --where reason=cold", "kvctl decisions --where reason=cold {}"),
        ("to list them: kvctl decisions", "to list them: kvctl decisions {}"),
        ("kvctl explain 17", "kvctl explain 17 {}"),
        ("kvctl explain window_hole", "kvctl explain window_hole"),
        ("kvctl decisions -f   follows", "kvctl decisions -f   follows"),
        ("kvctl inspect --snapshot other", "kvctl inspect --snapshot other"),
        ("kvctl inspect prefix 'request:a b', or", "kvctl inspect prefix 'request:a b' {}, or"),
        ("kvctl inspect prefix page:15,16, or", "kvctl inspect prefix page:15,16 {}, or"),
        ("kvctl fingerprint show names it", "kvctl fingerprint show {} names it"),
        ("kvctl fingerprint pin", "kvctl fingerprint pin"),
        ("kvctl ps shows it", "kvctl ps shows it"),
        ("kvctl invalidate stale", "kvctl invalidate stale"),
    ],
)
def test_commands_that_read_get_the_target(text: str, aimed: str) -> None:
    """A command that reads an engine or file gets the target behind its own words; others stay as they are."""
    assert aim(text, TARGET) == aimed.format(TARGET)


@pytest.mark.parametrize(
    ("text", "aimed"),
    [
        ("kvctl decisions -f   follows", "kvctl decisions -f {}   follows"),
        ("kvctl invalidate page:15,16", "kvctl invalidate page:15,16 {}"),
        ("kvctl invalidate stale", "kvctl invalidate stale {}"),
        ("kvctl invalidate SELECTOR --save-plan FILE", "kvctl invalidate SELECTOR --save-plan FILE {}"),
        ("(kvctl fingerprint pin)", "(kvctl fingerprint pin {})"),
        ("kvctl fingerprint diff", "kvctl fingerprint diff"),
        ("kvctl run -- vllm serve MODEL", "kvctl run -- vllm serve MODEL"),
    ],
)
def test_commands_for_live_engines_get_a_live_target(text: str, aimed: str) -> None:
    """What follows or changes an engine goes to the one that was chosen; a file it never gets."""
    assert aim(text, "--pid 17") == aimed.format("--pid 17")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("plain/path-1.kvsnap", "plain/path-1.kvsnap"),
        ("it's a file", """'it'"'"'s a file'"""),
        ("request:ends.", "'request:ends.'"),
        ("", "''"),
        ("a\x1b[31mb", "FILE"),
        ("a\u202eb", "FILE"),
        ("a\u200bb", "FILE"),
        ("a\nb", "FILE"),
        ("a\udc80b", "FILE"),
    ],
)
def test_a_name_in_a_command_is_that_name_or_a_placeholder(text: str, word: str) -> None:
    """What a shell reads from a hint is the very name; one that would be shown as another one is not in it."""
    assert quoted(text, "FILE") == word
    assert word == "FILE" or shlex.split(word) == [text]


@pytest.mark.parametrize("words", [("inspect",), ("explain", "5"), ("decisions", "--where", "request=nobody")])
def test_hints_lead_on_in_the_same_file(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Every command of a text about a file that reads one names that file, and runs."""
    monkeypatch.chdir(tmp_path)
    save(gemma(), Path("my file"), reveal=True)
    ran = run(*words, "--snapshot", "my file")
    lines = [line.split("DO ")[-1].strip() for line in ran.out.splitlines() if "kvctl " in line]
    commands = [line for line in lines if line.startswith("kvctl ")]
    assert commands or words[0] == "decisions"
    for command in commands:
        assert run(*shlex.split(command)[1:]).code == 0, command
    assert any("--snapshot 'my file'" in command for command in commands) or words[0] == "decisions"


@pytest.mark.parametrize("words", [("inspect",), ("explain", "5"), ("snapshot", "info")])
def test_commands_are_never_broken(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """At 80 columns a command that is longer stands in one line, in sentences, too; what is copied runs."""
    monkeypatch.chdir(tmp_path)
    file = Path(f"it's {'long ' * 20}, yes.")
    save(gemma(), file, reveal=True)
    target = f"--snapshot {quoted(str(file), 'FILE')}"
    ran = run(*words, file) if words[0] == "snapshot" else run(*words, "--snapshot", file)
    assert target in ran.out
    for line in ran.out.splitlines():
        assert line.count("--snapshot") == line.count(target)
        command = line[line.index("kvctl ") :].partition("`")[0] if "kvctl " in line else ""
        if target in command:
            assert run(*shlex.split(command)[1:]).code == 0, command


def test_a_file_that_cannot_be_shown_is_not_named(run: Runner, tmp_path: Path) -> None:
    """A path with a control character is shown cleaned; a hint has FILE in its place, not the name of another file."""
    file = tmp_path / "a\x1b[31mb.kvsnap"
    save(gemma(), file, reveal=True)
    assert "next: kvctl inspect prefix hash:12ab --snapshot FILE" in run("inspect", "hash:12ab", "--snapshot", file).err
    assert "kvctl inspect --snapshot FILE" in run("snapshot", "info", file).out
    wrong = run("inspect", "request:a\u202eb", "--snapshot", file)
    assert "next: kvctl inspect prefix SELECTOR --snapshot FILE" in wrong.err


def test_errors_lead_on_in_the_same_file(run: Runner, tmp_path: Path) -> None:
    """The next step of an error names the file, too."""
    file = tmp_path / "s.kvsnap"
    save(gemma(), file, reveal=True)
    ran = run("explain", "4711", "--snapshot", file)
    assert ran.code == 2
    assert f"next: to list them: kvctl decisions --snapshot {file}" in ran.err
    ran = run("inspect", "page:3", "--snapshot", file)
    assert f"next: kvctl inspect prefix page:3 --snapshot {file}\n" in ran.err


def test_an_id_as_the_table_cut_it(run: Runner, tmp_path: Path) -> None:
    """A request id with the sign for what was cut out is explained; one that fits several lists their numbers."""
    file = tmp_path / "s.kvsnap"
    save(gemma(), file, reveal=True)
    whole = run("explain", "5", "--snapshot", file)
    assert run("explain", "request:chatcmpl-e…n", "--snapshot", file).out == whole.out
    assert run("explain", "request:chatcmpl-erin", "--snapshot", file).out == whole.out
    several = run("explain", "request:chatcmpl-…", "--snapshot", file)
    assert several.code == 2
    assert "kvctl explain 6" in several.err
    none = run("explain", "request:nobody", "--snapshot", file)
    assert none.code == 2
    assert "no decision of a request 'nobody'" in none.err


@pytest.mark.parametrize("words", [("explain",), ("explain", "exit-codes")])
def test_lists_of_meanings_are_whole(run: Runner, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """At 80 columns no meaning is cut, and each is what a wide terminal shows."""
    narrow = run(*words).out
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "400")
    assert narrow.split() == run(*words).out.split()


@pytest.mark.parametrize(
    ("words", "what", "step"),
    [
        ("inspect tokens:", "tokens: names no file", "tokens:FILE"),
        ("inspect hash:12ab", "'hash:12ab' is a SELECTOR, no VIEW", "kvctl inspect prefix hash:12ab"),
        ("inspect request:$(id)", "'request:$(id)' is a SELECTOR, no VIEW", "kvctl inspect prefix 'request:$(id)'"),
        ("inspect nonsense", "there is no view 'nonsense'", "overview, groups"),
        ("inspect prefix tokens:", "tokens: names no file", "tokens:FILE"),
        ("inspect prefix tokens:/no/file", "/no/file cannot be read", "[1, 2, 3]"),
        ("inspect prefix request:", "request: names no request", "kvctl inspect requests"),
        ("fingerprint check /no/file", "/no/file cannot be read", "kvctl fingerprint pin --file FILE"),
        ("fingerprint diff /no/file /no/file", "/no/file cannot be read", "kvctl fingerprint pin --file FILE"),
    ],
)
def test_what_is_missing_has_a_next_step(run: Runner, words: str, what: str, step: str) -> None:
    """An argument that is missing or wrong is one sentence, with what to do, and exit code 2."""
    ran = run(*words.split())
    assert ran.code == 2
    assert ran.err.splitlines()[0] == f"kvctl: {what}"
    assert step in next(line for line in ran.err.splitlines() if line.startswith("  next: "))
