"""The catalogue of findings: every code, once.

Invariant: a code never changes its meaning, and each is of exactly one gate. Gates, ``kvctl explain`` and
``docs/findings.md`` read it.
"""

from ..errors import UsageError
from ..model.finding import GateName
from .blind import sentences
from .code import Code
from .codes_block import BLOCK_CODES
from .codes_contract import CONTRACT_CODES
from .codes_intersection import INTERSECTION_CODES
from .codes_layout import ALIGNMENT_CODES, REDLINE_CODES
from .record import markdown as on_record

CATALOGUE: dict[str, Code] = {
    code.code: code for code in (*BLOCK_CODES, *CONTRACT_CODES, *INTERSECTION_CODES, *ALIGNMENT_CODES, *REDLINE_CODES)
}
"""All codes in order."""

GATE_TITLES: dict[GateName, str] = {
    GateName.BLOCK: "Gate 1, block level: the page exists, is counted right, was computed, and was not taken away",
    GateName.CONTRACT: "Gate 2, operator contract: layout, precision, page size and weights are what was agreed",
    GateName.INTERSECTION: "Gate 3, intersection: every group agrees on where to resume",
    GateName.ALIGNMENT: "Gate 4, byte-level alignment: addresses and strides that the hardware can read",
    GateName.REDLINES: "Red lines",
}


def lookup(code: str) -> Code:
    """Find a code, however it is written (``kv301`` as well).

    Raises:
        UsageError: There is no such code.
    """
    found = CATALOGUE.get(code.strip().upper())
    if found is None:
        raise UsageError(f"no finding has the code {code[:20]!r}", next_step="codes are listed in docs/findings.md")
    return found


def codes_of(gate: GateName) -> tuple[Code, ...]:
    """List the codes of a gate in order."""
    return tuple(code for code in CATALOGUE.values() if code.gate is gate)


def markdown() -> str:
    """Write the whole catalogue as Markdown; ``docs/findings.md`` is this text."""
    lines = [
        "# Findings",
        "",
        "Written from the catalogue by a test (`KVCTL_UPDATE_GOLDEN=1`); do not edit. `kvctl explain CODE` prints the",
        "same. Severity `error`: wrong output is possible; `warning`: reuse or capacity is lost; `info`: good to know.",
        "An error is shown as a warning marked `experimental` until 100,000 clean checks of this engine configuration",
        "are on record (see the end of this page). A code that could not be looked at abstains with the reason, and a",
        "gate does not pass without its essential codes.",
    ]
    for gate, title in GATE_TITLES.items():
        lines += ["", f"## {title}"]
        for code in codes_of(gate):
            lines += ["", f"### {code.code} {code.title}", "", f"*{code.severity}*"]
            if code.essential:
                lines[-1] += " · essential"
            lines += ["", f"Cause: {code.cause}", "", f"How to confirm: {code.confirm}", ""]
            lines += [f"What to do: {code.remedy}" + (f" `{code.command}`" if code.command else "")]
            lines += [line for why in sentences(code.code) for line in ("", f"Not looked at {why}.")]
            lines += ["", "Reports: " + ", ".join(f"<{report}>" for report in code.reports)] if code.reports else []
    return "\n".join([*lines, "", on_record()])
