"""Unpack an engine's wheel into a folder for ``PYTHONPATH``: what pip does with --target, without compiling every file.

Invariant: standard library only; every file is the wheel's own. Called by ``.ci/engines.sh``.
"""

import argparse
import zipfile
from pathlib import Path


def unpack(wheel: Path, folder: Path, *, kernels: bool) -> None:
    """Unpack ``wheel`` into ``folder``.

    Args:
        wheel: The wheel.
        folder: Is created.
        kernels: Compiled libraries, too. Those of a GPU build cannot be loaded here and are most of its size.
    """
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if kernels or not name.endswith(".so")])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-kernels", action="store_true")
    options = parser.parse_args()
    unpack(options.wheel, options.folder, kernels=not options.without_kernels)
