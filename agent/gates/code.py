"""What the catalogue knows of one code, and the public reports it may cite.

Invariant: a code never changes its meaning. Only the catalogue's own files build these values.
"""

from dataclasses import dataclass

from ..model.finding import GateName, Severity

_VLLM = "https://github.com/vllm-project/vllm"


def vllm(number: int) -> str:
    """Give the address of a vLLM issue or pull request (GitHub redirects one to the other)."""
    return f"{_VLLM}/issues/{number}"


def sglang(number: int) -> str:
    """Give the address of an SGLang issue or pull request."""
    return f"https://github.com/sgl-project/sglang/issues/{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One kind of fault."""

    code: str
    gate: GateName
    severity: Severity
    """Severity once the code is on record as clean; until then an error is shown as an experimental warning."""
    title: str
    sentence: str
    """Template of the sentence; its fields are the finding's values, ``[page is|pages are]`` follows ``count``."""
    cause: str
    confirm: str
    """How to make sure that it is so."""
    remedy: str
    """What to do."""
    command: str | None = None
    """A command that helps; a finding puts its own pages in the place of ``PAGE`` (the first) and ``PAGES``."""
    reports: tuple[str, ...] = ()
    """Public reports of the same kind of fault."""
    essential: bool = False
    """A gate that could not look at this code does not pass."""
