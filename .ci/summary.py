"""Summarise a CI run: stages with their times, test counts of each job, every skip with its reason.

Invariant: standard library only; exit status 0 only if every stage ended well, no test failed, something ran, and no
test was skipped for another reason than an absent GPU. Called by ``.ci/run``.
"""

import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ALLOWED_SKIP = "no GPU"


@dataclass(slots=True)
class Count:
    """What one junit file says."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


def read(path: Path) -> Count:
    """Count the cases of one junit file."""
    count = Count()
    for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}"
        count.seconds += float(case.get("time") or 0)
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed.append(name)
        elif skip is not None:
            count.skipped.append((name, skip.get("message") or "without a reason"))
        else:
            count.passed += 1
    return count


def main() -> int:
    """Print the summary of ``argv[1]`` (stages) and ``argv[2]`` (folder of junit files)."""
    say = sys.stdout.write
    say("\n=== summary\n")
    broken = []
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        name, status, seconds = line.split("\t")
        say(f"{'ok    ' if status == '0' else 'FAILED'} {int(seconds):>5} s  {name}\n")
        if status != "0":
            broken.append(name)
    totals = Count()
    for path in sorted(Path(sys.argv[2]).glob("*.xml")):
        count = read(path)
        say(f"{path.stem}: {count.passed} passed, {len(count.failed)} failed, {len(count.skipped)} skipped\n")
        for name in count.failed:
            say(f"  FAILED  {name}\n")
        for name, reason in count.skipped:
            say(f"  skipped {name}: {reason}\n")
        totals.passed += count.passed
        totals.failed += count.failed
        totals.skipped += count.skipped
    forbidden = [name for name, reason in totals.skipped if not reason.startswith(ALLOWED_SKIP)]
    for name in forbidden:
        say(f"  not allowed to skip: {name}\n")
    for name in broken:
        say(f"  stage failed: {name}\n")
    say(f"{totals.passed} passed, {len(totals.failed)} failed, {len(totals.skipped)} skipped\n")
    return 1 if broken or totals.failed or forbidden or totals.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
