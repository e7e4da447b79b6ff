"""Print the N-th shell block of a Markdown file, so that CI runs what the reader is told to run.

Invariant: standard library only. Called by the scripts of this folder and by the hygiene tests.
"""

import re
import sys
from pathlib import Path


def shell_blocks(text: str) -> list[str]:
    """Return the contents of all fenced ``sh`` blocks, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def main() -> int:
    """Print block ``argv[2]`` (from 1) of the file ``argv[1]``."""
    blocks = shell_blocks(Path(sys.argv[1]).read_text(encoding="utf-8"))
    number = int(sys.argv[2])
    if not 1 <= number <= len(blocks):
        sys.stderr.write(f"{sys.argv[1]} has {len(blocks)} shell blocks, number {number} was asked for\n")
        return 1
    sys.stdout.write(blocks[number - 1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
