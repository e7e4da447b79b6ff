"""Rules about the source text itself: size of files, broad excepts, relative imports, nothing of one machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.hygiene.conftest import ROOT

PACKAGES = ("kvctl", "inspector", "exporters", "agent")
MAX_LINES = 400
MAX_FUNCTION_LINES = 50
BROAD_EXCEPT_IN = "agent/probe/guard.py"

OF_ONE_MACHINE = (
    *("/" + "work/", "/" + "root/", "/" + "home/", "/" + "opt/pypi"),
    *("pypi." + "org", "python" + "hosted", "deb." + "debian", "registry." + "npmjs"),
)
"""Put together from parts, so that this file does not contain them."""


def tracked() -> list[Path]:
    """Return every file that is tracked, or would be if it were added."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def sources(*tops: str) -> Iterator[tuple[str, str]]:
    """Yield (relative path, text) of the Python files below ``tops``."""
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(".py") and name.split("/")[0] in tops:
            yield name, path.read_text(encoding="utf-8")


def test_a_file_is_a_room() -> None:
    """No Python file has 400 lines or more."""
    long = {
        name: text.count("\n")
        for name, text in sources(*PACKAGES, "tests", "benchmarks", ".ci")
        if text.count("\n") >= MAX_LINES
    }
    assert not long


def test_functions_fit_on_a_screen() -> None:
    """No function of the product is longer than 50 lines, its docstring not counted."""
    long = {}
    for name, text in sources(*PACKAGES):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if ast.get_docstring(node, clean=False) is not None:
                    lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{name}:{node.name}"] = lines
    assert not long


def test_every_module_says_what_it_is() -> None:
    """Every Python file begins with a docstring."""
    silent = [name for name, text in sources(*PACKAGES, "tests", ".ci") if ast.get_docstring(ast.parse(text)) is None]
    assert not silent


def test_one_broad_except() -> None:
    """Only the file of the probe's guard catches everything."""
    found = [
        name
        for name, text in sources(*PACKAGES)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _passes_on(node)
    ]
    assert set(found) == {BROAD_EXCEPT_IN}


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler only tidies up and raises the same again."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(part, ast.Name) and part.id in {"Exception", "BaseException"} for part in parts)


def test_the_agent_names_itself_relatively() -> None:
    """Nothing under ``agent`` imports one of our packages absolutely: in an engine it has another name."""
    absolute = []
    for name, text in sources("agent"):
        for node in ast.walk(ast.parse(text)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            absolute += [f"{name}: {module}" for module in names if module.split(".")[0] in PACKAGES]
    assert not absolute


def test_nothing_of_one_machine() -> None:
    """No tracked text file names a folder of one machine or a package registry's host."""
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        text = data.decode("utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in OF_ONE_MACHINE if word in text]
    assert not found


def test_tests_do_not_sleep_or_retry() -> None:
    """Only the waiting helper sleeps, and the stand-in for the engine's own spinning; no test does."""
    word = re.compile(r"\btime\.sleep\(|\bfrom time import sleep|pytest\.mark\.flaky")
    sleeping = [name for name, text in sources("tests") if word.search(text)]
    allowed = {"tests/support/waiting.py", "tests/support/calm.py", "tests/hygiene/test_source_rules.py"}
    assert sorted(set(sleeping) - allowed) == []
