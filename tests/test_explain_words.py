"""Every word that an output prints can be looked up with `kvctl explain`."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from agent.engines.reference.gains import DEGRADED
from agent.engines.vllm.capabilities import NEEDS
from agent.errors import UsageError
from agent.model.decision import Fidelity, Outcome, Phase, Reason
from agent.model.finding import GateName, Severity, Verdict
from agent.model.fingerprint import Mode
from agent.model.snapshot import Consistency, Level
from agent.model.states import Requirement, ResumeKind, State, Status
from agent.reference.config import Recovery
from agent.reference.request import RequestStatus
from inspector.symbols import ABSENT, SHORT, SIGN
from inspector.views.common import ESSENTIAL
from inspector.views.explanations import explanation
from inspector.views.weight_changes import CAUSES
from tests.support.cli import ROOT

ENUMERATIONS: tuple[type[StrEnum], ...] = (
    *(Fidelity, Outcome, Phase, Reason, GateName, Severity, Verdict, Mode, Consistency, Level),
    *(Requirement, ResumeKind, State, Status),
)
PLAIN = {
    *("after", "before", "cause", "change", "confirm", "details", "do", "engine", "field", "file", "fix", "gpu", "id"),
    *(
        "kind",
        "look",
        "not looked at",
        "meaning",
        "means",
        "model",
        "name",
        "number",
        "pid",
        "question",
        "reports",
        "result",
        "share",
    ),
    *("size", "time", "took", "topic", "value", "what", "why", "word", "holds", "not looked at"),
}
"""Headings that say what they say: everybody knows these words, and nothing more is meant by them here."""
GOLDEN = (*(ROOT / "tests" / "golden").glob("*.txt"), *(ROOT / "tests" / "tui" / "golden").glob("*.txt"))


def headings(path: Path) -> Iterator[str]:
    """Headers of tables and labels of facts in a source file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Column":
            for item in node.keywords:
                if item.arg == "header" and isinstance(item.value, ast.Constant):
                    yield str(item.value.value)
        if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
            label = node.elts[0].value
            if isinstance(label, str) and re.fullmatch(r"[A-Z][A-Z -]+", label):
                yield label


def printed(path: Path) -> Iterator[str]:
    """Headings that stand in a golden file: words in capitals."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(("$", " ")) and "kvctl explain KV" not in line:
            yield from re.findall(r"(?:^|  )([A-Z]{2,}(?:[ -][A-Z]{2,})*)(?=  |$)", line)


def known(word: str) -> bool:
    """Whether `kvctl explain` has something to say about a word."""
    try:
        explanation(word)
    except UsageError:
        return word.lower() in PLAIN
    return True


def test_headings_are_explained() -> None:
    """Every heading of a table and every label, in the sources and in the golden files, is a topic."""
    sources = [path for folder in ("inspector", "kvctl") for path in (ROOT / folder).rglob("*.py")]
    words = {word for path in sources for word in headings(path)} | {word for path in GOLDEN for word in printed(path)}
    assert {"OWN HIT", "RECOVERY", "LIMITED BY", "STRANDED"} <= words
    assert sorted(word for word in words - {"", "HUP"} if not known(word)) == []


@pytest.mark.parametrize("kind", ENUMERATIONS, ids=lambda kind: kind.__name__)
def test_values_are_explained(kind: type[StrEnum]) -> None:
    """Every value of the model that a table or JSON shows is a topic."""
    assert [value for value in kind if not known(value)] == []


def test_signs_and_capabilities_are_explained() -> None:
    """The signs of the five-state row, its short names, causes of changes, and what an agent can do are topics."""
    words = [*SIGN.values(), ABSENT, *(short for short in SHORT.values() if short != "?"), *CAUSES, *NEEDS, *ESSENTIAL]
    others = ("losses", "experimental", "recoverable", "degraded", "tainted", "consistency", "red lines", "abstain")
    assert [word for word in (*words, *others, "swa16/w1024#0", "compressed+indexer") if not known(word)] == []


def test_routes_and_requests_are_explained() -> None:
    """The routes that the overview counts, and what a request can be doing, are topics."""
    words = [*Recovery, DEGRADED, *(status for status in RequestStatus)]
    assert [word for word in words if not known(word)] == []


def test_joined_words_are_explained_one_by_one() -> None:
    """Routes that only together brought a prefix back stand joined in a table, and are explained so."""
    assert explanation("recompute_tail+realign_window").names == ["recompute_tail", "realign_window"]
    with pytest.raises(UsageError):
        explanation("recompute_tail+nonsense")
