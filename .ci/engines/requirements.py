"""Print what an engine's wheel requires, without the packages that this project installs or leaves out itself.

Invariant: standard library only; environment markers are left to pip. Called by ``.ci/engines.sh``.
"""

import re
import sys
import zipfile
from email.parser import Parser

LEFT_OUT = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
"""torch is installed before, from the constraints; the others are not needed for text models and have no CPU build."""


def requirements(wheel: str) -> list[str]:
    """Return the requirement lines of the wheel's metadata, extras and ``LEFT_OUT`` removed."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    lines = []
    for line in metadata.get_all("Requires-Dist", []):
        match = re.match(r"[A-Za-z0-9._-]+", line)
        if match and match[0].lower() not in LEFT_OUT and not re.search(r"\bextra\s*==", line):
            lines.append(line)
    return lines


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in requirements(sys.argv[1])))
