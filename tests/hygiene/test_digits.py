"""Digits of other scripts are no numbers: ``"²".isdigit()`` holds, and ``int("²")`` fails."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = re.compile(r"\.(isdigit|isnumeric)\(\)")


def test_digits_are_asked_for_ascii_first() -> None:
    """Wherever text is taken for a number because it has only digits, it was asked for ASCII on the same line."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("agent", "kvctl", "inspector", "exporters")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if DIGITS.search(line) and ".isascii()" not in line
    ]
    assert found == [], found
