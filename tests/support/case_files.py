"""The cases of ``tests.support.cases`` as snapshot files; ``python -m tests.support.case_files`` writes them anew.

Invariant: the files say what the builders say, which ``tests/test_gates_case_files.py`` checks; they keep their keys,
because nobody's prompts are in them.
"""

from pathlib import Path

from inspector.store import save
from tests.support import cases

FOLDER = Path(__file__).resolve().parents[1] / "data" / "cases"


def path_of(name: str) -> Path:
    """Return the file of a case."""
    return FOLDER / f"case-{name}.kvsnap"


def main() -> None:
    """Write every case that has a snapshot."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (make, _) in cases.EXPECTED.items():
        save(make(), path_of(name), reveal=True)


if __name__ == "__main__":
    main()
