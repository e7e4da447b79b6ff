"""A command that stays, running beside a test: ``kvctl decisions -f``, the decisions of a live engine as they come.

Invariant: the command is a process of its own, ended with the context; a decision is waited for, never slept for.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import engine_env
from tests.support.server import Server
from tests.support.waiting import wait_for


@dataclass(slots=True)
class Follower:
    """A running ``kvctl decisions -f -o jsonl``."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    taken: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)

    def _complete_lines(self) -> list[str]:
        if self.process.poll() is not None:
            raise AssertionError(f"the command ended with {self.process.returncode}: {self.err.read_text()}")
        return self.out.read_text(encoding="utf-8").split("\n")[:-1]

    def next(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for ``count`` further decisions and return them."""
        want = self.taken + count
        lines = wait_for(
            lambda: lines if len(lines := self._complete_lines()) >= want else None,
            f"decision {want} from kvctl decisions -f",
        )
        assert lines is not None
        new = [json.loads(line) for line in lines[self.taken : want]]
        self.taken = want
        self.seen += new
        return new


@contextmanager
def follow_decisions(
    server: Server, folder: Path, *, words: tuple[str, ...] = ("decisions", "-f")
) -> Iterator[Follower]:
    """Follow the decisions of a server until the context is left; entered when the follower has joined the feed.

    Args:
        server: Whose.
        folder: For its output.
        words: Another command that stays.
    """
    out, err = folder / "decisions.jsonl", folder / "decisions.err"
    environment = engine_env.clean_environment() | {"KVCTL_RUNTIME_DIR": str(server.runtime), "PYTHONUNBUFFERED": "1"}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [*engine_env.kvctl_command(), *words, "-o", "jsonl"],
            env=environment,
            cwd=engine_env.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    follower = Follower(process, out, err)
    try:
        wait_for(lambda: _joined(server, follower), "the command to join the feed")
        follower.taken = len(out.read_text(encoding="utf-8").split("\n")) - 1
        yield follower
    finally:
        process.terminate()
        process.wait(timeout=30)


def _joined(server: Server, follower: Follower) -> bool:
    if follower.process.poll() is not None:
        raise AssertionError(f"the command ended with {follower.process.returncode}: {follower.err.read_text()}")
    with server.session() as session:
        feed = session.call("capabilities")["feed"]
    return any(feed["readers"].values()) and feed["bootstrap_pages_left"] == 0
