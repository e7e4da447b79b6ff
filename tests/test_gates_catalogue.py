"""The catalogue is whole, its texts can be filled in, and the page in the documentation is the catalogue."""

import re
import string

import pytest

from agent.errors import UsageError
from agent.gates import blind, catalogue, limits
from agent.gates.catalogue import CATALOGUE, lookup
from agent.gates.runner import gate_of, run
from agent.gates.selftest import PLANTS, untested
from agent.model.finding import GateName, Severity
from inspector.views.explanations import explanation
from tests.support import cases, code_table
from tests.support.cli import ROOT, check_golden

CODES = {
    *range(101, 120),
    *range(201, 212),
    *range(301, 313),
    *range(401, 410),
    *(501, 502, 503, 511, 521, 522, 531, 532, 541),
}
"""Every code of the specification."""


def test_every_code_is_there() -> None:
    """No code is missing, none is made up, and each is of the gate that its number says."""
    assert {int(code[2:]) for code in CATALOGUE} == CODES
    gates = dict(zip("12345", GateName, strict=True))
    assert all(code.gate is gates[name[2]] for name, code in CATALOGUE.items())


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_code_is_explained(name: str) -> None:
    """Cause, how to confirm and what to do are sentences; reports are public addresses."""
    code = CATALOGUE[name]
    for text in (code.cause, code.confirm, code.remedy):
        assert text[0].isupper() or text[0] == "`"
        assert text.rstrip().endswith((".", "`."))
        assert len(text) > 10
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", url) for url in code.reports)
    shown = explanation(name.lower()).data
    assert (shown["title"], shown["cause"], shown["action"]) == (code.title, code.cause, code.remedy)


def test_a_code_says_where_it_is_not_looked_at() -> None:
    """A code that an engine never lets be looked at says on which and why, in the words of the abstention there."""
    for name in CATALOGUE:
        shown = explanation(name).data["not_looked_at"]
        assert len(shown) == len(set(blind.always(name).values()))
        for engine, reasons in blind.always(name).items():
            assert any(engine in line and all(reason in line for reason in reasons) for line in shown)
    assert explanation("KV541").data["not_looked_at"] == [
        "on the reference engine and vLLM 0.32 (CPU build): event streams are not read in this version"
    ]


def test_thresholds_are_told() -> None:
    """From when on a loss is a finding stands in its explanation."""
    assert "50%" in CATALOGUE["KV310"].cause
    assert str(limits.MIN_PAGES) in CATALOGUE["KV310"].cause
    assert str(limits.MIN_DECISIONS) in CATALOGUE["KV309"].cause
    assert str(limits.MIN_PROMPTS) in CATALOGUE["KV209"].cause


def test_sentences_are_filled_in() -> None:
    """Every finding of every case is a whole sentence: nothing is left open, no value of Python shows."""
    for make, _ in cases.EXPECTED.values():
        for result in run(make()):
            for finding in result.findings:
                assert not set("{[|") & set(finding.sentence)
                assert "None" not in finding.sentence
                large = [value for value in finding.values.values() if isinstance(value, int) and value >= 1000]
                assert not any(re.search(rf"(?<!page )\b{value}\b", finding.sentence) for value in large)
                fields = {
                    field for _, field, _, _ in string.Formatter().parse(CATALOGUE[finding.code].sentence) if field
                }
                assert fields <= {*finding.values, "page", "group"}


def test_an_unknown_code_is_a_usage_error() -> None:
    """A code or gate that does not exist says where they are listed."""
    with pytest.raises(UsageError):
        lookup("KV999")
    with pytest.raises(UsageError):
        gate_of("5")
    assert lookup(" kv301 ").severity is Severity.WARNING
    assert gate_of("redlines") is GateName.REDLINES


def test_a_code_is_planted_or_says_why_not() -> None:
    """The self-test knows a fault for every code, but for three."""
    assert set(PLANTS) | set(untested()) == set(CATALOGUE)


def test_the_documentation_is_the_catalogue() -> None:
    """docs/findings.md is what the catalogue writes."""
    check_golden(str(ROOT / "docs" / "findings.md"), catalogue.markdown())


def test_the_table_of_codes_is_written_down() -> None:
    """docs/codes.md is the table that both engines are compared with, one row for each code of the catalogue."""
    table = code_table.markdown()
    check_golden(str(ROOT / "docs" / "codes.md"), table)
    assert re.findall(r"^\| (KV\d+) ", table, re.MULTILINE) == list(CATALOGUE)
    assert {*blind.REFERENCE, *blind.VLLM, *blind.UNTIL} <= set(CATALOGUE)
