"""What became of each code in runs of the gates, held against the list of where each can fail; and that list as a page.

Invariant: live tests run both engines and compare what was looked at and every reason with :mod:`agent.gates.blind`,
which ``docs/codes.md`` shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.gates.blind import REFERENCE, UNTIL, VLLM, at_times, sentences
from agent.gates.catalogue import CATALOGUE, GATE_TITLES
from agent.model.finding import GateResult


@dataclass(slots=True)
class Seen:
    """What became of every code in many runs of the gates."""

    looked: set[str] = field(default_factory=set)
    why: dict[str, set[str]] = field(default_factory=dict)

    def add(self, results: Iterable[GateResult]) -> None:
        """Add one run."""
        for result in results:
            self.looked |= result.looked.keys()
            for code, reason in result.abstained.items():
                self.why.setdefault(code, set()).add(reason)

    def blind(self) -> set[str]:
        """Codes that were never looked at."""
        return set(CATALOGUE) - self.looked

    def agrees(self, never: Mapping[str, frozenset[str]]) -> bool:
        """Tell whether what was never looked at is what the table says; NVML is there on some hosts."""
        return self.blind() | {"KV409"} == set(never)

    def unlisted(self, never: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
        """Reasons that the table does not have."""
        known = {code: never.get(code, frozenset()) | UNTIL.get(code, frozenset()) for code in CATALOGUE}
        told = {code: reasons - known[code] for code, reasons in self.why.items() if code != "KV409"}
        return {code: reasons for code, reasons in told.items() if reasons}


def markdown() -> str:
    """Write the table."""
    lines = [
        "# Where each code can fail",
        "",
        "Checked by tests that run both engines (`tests/reference/test_codes.py`, `tests/engine/gates/test_codes.py`):",
        "what is looked at there, and the words of every abstention of a live engine, are those of this table. vLLM is",
        "0.32 on CPU, in process and served; the reference engine runs on CPU. `yes`: the code is looked at there and",
        "can fail; after `at times` stands what it lacks at first, or on some models. `no`: it abstains there, with",
        "one of the reasons after `always on` that engine. Where a saved file lacks what a code needs, it abstains",
        "and says so in other words. What each code means: [findings](findings.md) and `kvctl explain CODE`.",
        "",
        "| code | what | gate | reference engine | vLLM 0.32 on CPU | why it abstains |",
        "|---|---|---|---|---|---|",
    ]
    for code in CATALOGUE.values():
        name = code.code
        gate = GATE_TITLES[code.gate].split(":")[0].split(",")[0].lower()
        parts = [f"always {why}" for why in sentences(name)]
        if lacks := at_times(name):
            parts.append(f"at times: {'; '.join(lacks)}")
        cells = [name, code.title, gate, *("no" if name in never else "yes" for never in (REFERENCE, VLLM))]
        lines.append(f"| {' | '.join([*cells, ' · '.join(parts)])} |")
    return "\n".join([*lines, ""])
