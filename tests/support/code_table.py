"""Where each code can fail: on the reference engine and on vLLM's CPU build, and why it abstains where it does.

Invariant: the words of an abstention are those that a user is shown; live tests run both engines and compare what was
looked at and every reason with this table, which ``docs/codes.md`` shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.gates.catalogue import CATALOGUE, GATE_TITLES
from agent.model.finding import GateResult

_NO_TIER = "there is no other tier"
_SINGLE = "entries of the tiers are single pages: none lists its parts"
_NO_ENTRY = "no tier holds an entry"
_NO_HOST = "no worker describes the host pool of OffloadingConnector"
_NO_NVML = "no NVIDIA driver library (NVML) on this host"
_NO_EVENTS = "event streams are not read in this version"
_NO_PAGE = "no request holds a page"
_NO_UNIT = "no kernel of this engine asks for pages padded to a unit"
_UNEXPLAINED = "no decision was explained from a page table"
_UNASKED = "the engine knows no request that it could look up"
_SINCE = f"{_UNEXPLAINED} since the last check"
_NO_BIND = "no page was bound yet"

REFERENCE: Mapping[str, frozenset[str]] = {
    "KV311": frozenset({_SINGLE}),
    "KV403": frozenset({_NO_UNIT}),
    "KV407": frozenset({"copies of this host pool need no locked pages"}),
    "KV409": frozenset({_NO_NVML}),
    "KV541": frozenset({_NO_EVENTS}),
}
"""Codes that cannot be looked at on the reference engine on CPU, and what a user is told."""

VLLM: Mapping[str, frozenset[str]] = {
    "KV206": frozenset(
        {_NO_TIER, "entries of OffloadingConnector carry no fingerprint: nothing says whose bytes they are"}
    ),
    "KV208": frozenset({_NO_TIER, _NO_HOST}),
    "KV211": frozenset(
        {
            "this engine drafts nothing, so nothing is rewound",
            "no group is sparse",
            "vLLM does not say whether a draft can rewind group NAME",
        }
    ),
    "KV303": frozenset({"no group keeps indexer keys apart from the entries they select", _SINGLE}),
    "KV311": frozenset({_NO_TIER, _SINGLE}),
    "KV401": frozenset({"no kernel of this engine asks for an alignment of addresses"}),
    "KV406": frozenset({"no kernel of this engine reads rows in bulk copies"}),
    "KV407": frozenset({_NO_TIER, _NO_HOST}),
    "KV408": frozenset({_NO_TIER, "no tier lists a file and its size"}),
    "KV409": frozenset({_NO_NVML}),
    "KV501": frozenset({"vLLM pins no cached page and has no cap: what nobody holds can be taken at once"}),
    "KV511": frozenset(
        {"vLLM has no routes by state: what is missing is computed again, or loaded through the connector"}
    ),
    "KV531": frozenset({"no graph is captured on cpu"}),
    "KV541": frozenset({_NO_EVENTS}),
}
"""The same for vLLM 0.32 on CPU, in process and served, with any model and connector that was seen."""

UNTIL: Mapping[str, frozenset[str]] = {
    "KV101": frozenset({"the hash table is empty"}),
    "KV102": frozenset({"no page carries a key"}),
    "KV107": frozenset({"the free list is empty"}),
    "KV109": frozenset({_NO_PAGE}),
    "KV111": frozenset({_NO_PAGE}),
    "KV113": frozenset({_NO_BIND}),
    "KV114": frozenset({"no page carries a key"}),
    "KV115": frozenset({"no transfer is in flight"}),
    "KV116": frozenset({"no page carries a key"}),
    "KV117": frozenset({"no request holds a page that carries a key"}),
    "KV118": frozenset({"no page carries a key"}),
    "KV119": frozenset({"no page carries a key"}),
    "KV202": frozenset({"no contract was pinned (kvctl fingerprint pin)"}),
    "KV205": frozenset({_NO_TIER, "no tier says which states it has a pool for"}),
    "KV206": frozenset({_NO_ENTRY}),
    "KV209": frozenset({"fewer than 20 decisions: the usual prompt is not known"}),
    "KV301": frozenset({_UNEXPLAINED, _SINCE, "no group keeps a window"}),
    "KV302": frozenset({_UNEXPLAINED, _SINCE, "no group keeps a tail"}),
    "KV303": frozenset({_UNEXPLAINED, _SINCE, _SINGLE, _NO_ENTRY}),
    "KV304": frozenset({_UNEXPLAINED, _SINCE, "no group is recurrent"}),
    "KV305": frozenset({_UNASKED}),
    "KV306": frozenset({_UNASKED}),
    "KV307": frozenset({_UNASKED}),
    "KV308": frozenset({_UNEXPLAINED, _NO_TIER, _NO_ENTRY}),
    "KV309": frozenset({"fewer than 20 decisions with a page table found anything cached"}),
    "KV310": frozenset({"fewer than 64 pages of full history are cached"}),
    "KV311": frozenset({_NO_ENTRY}),
    "KV312": frozenset({"no decision was made yet", "no group is recurrent"}),
    "KV402": frozenset({"no kernel of this engine asks for an alignment of block strides"}),
    "KV403": frozenset({_NO_UNIT}),
    "KV405": frozenset({"no group has tensors of two layers on one rank"}),
    "KV408": frozenset({"no tier lists a file and its size"}),
    "KV502": frozenset({"no request waits"}),
    "KV503": frozenset({"the engine has no request"}),
    "KV511": frozenset({"nothing was recovered"}),
    "KV521": frozenset({"no plan was made, and no page was bound yet"}),
    "KV522": frozenset({_NO_BIND}),
    "KV531": frozenset(
        {"no graph was captured (the engine may run without)", "the addresses of captured buffers were not read"}
    ),
    "KV532": frozenset({"no batch is padded"}),
}
"""What a user is told while there is nothing that a code could look at yet, or not on this model."""


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
        "what is looked at there, and the words of every abstention, are those of this table. vLLM is 0.32 on CPU, in",
        "process and served; the reference engine runs on CPU. `yes`: the code is looked at there and can fail; after",
        "`at times` stands what it lacks at first, or on some models. `no`: it abstains there, with one of the reasons",
        "after `always`. What each code means: [findings](findings.md).",
        "",
        "| code | what | gate | reference engine | vLLM 0.32 on CPU | why it abstains |",
        "|---|---|---|---|---|---|",
    ]
    for code in CATALOGUE.values():
        name = code.code
        gate = GATE_TITLES[code.gate].split(":")[0].split(",")[0].lower()
        always = REFERENCE.get(name, frozenset()) | VLLM.get(name, frozenset())
        parts = [("always", always), ("at times", UNTIL.get(name, frozenset()) - always)]
        told = " · ".join(f"{word}: {'; '.join(sorted(reasons))}" for word, reasons in parts if reasons)
        cells = [name, code.title, gate, *("no" if name in never else "yes" for never in (REFERENCE, VLLM)), told]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
