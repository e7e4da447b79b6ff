"""Label values: free text from engines and clients made short and harmless, and counter keys with their labels.

Invariant: pure functions; every label value of a series went through :func:`clean_label`. Used by the whole package.
"""

import re
import unicodedata
from collections.abc import Mapping

MAX_LABEL = 120
"""Characters of a label value."""

NONE = "none"
"""Label value where a loss or a decision belongs to no group or state: an empty one would mean "no such label"."""

_FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_PAIR = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')


def clean_label(text: str, limit: int = MAX_LABEL) -> str:
    """Return text without control and format characters, cut to ``limit``; ``unknown`` if nothing is left."""
    # A look at more than will be kept, but not at megabytes.
    head = text[: 16 * limit]
    kept = "".join(char for char in head if unicodedata.category(char) not in _FORBIDDEN).strip()
    if len(kept) > limit:
        kept = kept[: limit - 1] + "…"
    return kept or "unknown"


def key_of(name: str, labels: Mapping[str, str]) -> str:
    """Return a counter's key as the probe writes it: ``name{label="value",...}``, labels in the order given."""
    if not labels:
        return name
    pairs = (
        f'{label}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for label, value in labels.items()
    )
    return f"{name}{{{','.join(pairs)}}}"


def parse_key(key: str) -> tuple[str, dict[str, str]] | None:
    """Read a counter's key; None where it is none."""
    name, brace, rest = key.partition("{")
    if not brace:
        return name, {}
    if not rest.endswith("}"):
        return None
    labels: dict[str, str] = {}
    at, body = 0, rest[:-1]
    while at < len(body):
        found = _PAIR.match(body, at)
        if found is None:
            return None
        labels[found[1]] = re.sub(r"\\(.)", r"\1", found[2])
        at = found.end()
    return name, labels
