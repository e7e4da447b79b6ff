"""Snapshot files that cannot be read: one sentence, the next step, exit code 2; never a traceback or half a view."""

from pathlib import Path

import pytest

from tests.support import engine_env
from tests.support.messages import explains
from tests.support.server import Host

RECORDED = engine_env.ROOT / "tests" / "data" / "gemma3.kvsnap"


def damaged(damage: str, folder: Path) -> Path:
    """Return the path of a copy of the recorded snapshot with one kind of damage."""
    good, bad = RECORDED.read_bytes(), folder / "bad.kvsnap"
    match damage:
        case "truncated":
            bad.write_bytes(good[: len(good) // 2])
        case "foreign":
            bad.write_bytes(b"\x89PNG\r\n\x1a\n" + good)
        case "empty":
            bad.write_bytes(b"")
        case "flipped":
            bad.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
        case "folder":
            bad.mkdir()
    return bad


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "flipped", "missing", "folder"])
def test_damaged(damage: str, tmp_path: Path) -> None:
    """A file that is cut, foreign, empty, damaged or missing is refused by name."""
    host = Host(runtime=tmp_path)
    explains(host.kvctl("inspect", "--snapshot", str(damaged(damage, tmp_path))), 2, "bad.kvsnap")


@pytest.mark.parametrize("cut", range(0, 2000, 97))
def test_cut_anywhere(cut: int, tmp_path: Path) -> None:
    """Wherever the file ends too early, loading it raises the one error meant for that."""
    from agent.errors import FileError
    from inspector.store import load

    bad = tmp_path / "bad.kvsnap"
    bad.write_bytes(RECORDED.read_bytes()[:cut])
    with pytest.raises(FileError):
        load(bad)
