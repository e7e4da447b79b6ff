"""The engine's side of a feed with readers in processes of their own, for tests that drive a pool.

Plays what the live probe does with its socket: counts readers in and out, forwards their wish for a bootstrap, notices
one that is gone.
"""

import json
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.model.snapshot import Level
from agent.probe.feed import Feed
from tests.support.waiting import wait_for

AUDIT_EVERY = 20
"""Looks at a waiting reader between two audits: an audit reads the whole pool, on both sides."""

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Remote:
    """One reader process."""

    process: "subprocess.Popen[str]"
    link: socket.socket
    level: Level
    slow: bool
    compared: int = 0
    """Audits it compared so far."""
    gone: bool = False


class FeedHost:
    """Readers of one feed."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.remotes: list[Remote] = []

    def start(self, level: Level = Level.CONTENT, *, work: int = 0) -> Remote:
        """Start a reader; it joins now and bootstraps whenever it gets there."""
        self.feed.join(level)
        ring = self.feed.ring_fd
        assert ring is not None
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.feed_reader",
                str(ring),
                str(theirs.fileno()),
                level.value,
                str(work),
            ],
            cwd=ROOT,
            pass_fds=(ring, theirs.fileno()),
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        remote = Remote(process=process, link=ours, level=level, slow=work > 0)
        self.remotes.append(remote)
        return remote

    def serve(self) -> None:
        """At a safe point: do what readers asked for."""
        for remote in self.remotes:
            if remote.gone:
                continue
            try:
                asked = remote.link.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                asked = b""
            if not asked:
                remote.gone = True
                self.feed.leave(remote.level)
                continue
            remote.compared += asked.count(b"a")
            if b"b" in asked:
                self.feed.request_bootstrap()

    def wait_for_audit(self, audits: int) -> None:
        """Wait until every quick reader that is complete has compared all but the last few audits."""

        def caught_up() -> bool:
            self.serve()
            self.feed.shadow()
            return all(
                remote.slow or remote.gone or not remote.compared or remote.compared >= audits
                for remote in self.remotes
            )

        wait_for(caught_up, "quick readers to compare audits")

    def wait_complete(self, remote: Remote) -> None:
        """Wait until a reader has a whole table: it compares an audit."""
        before = remote.compared
        quiet = 0

        def compared() -> bool:
            nonlocal quiet
            self.serve()
            if self.feed.idle():
                quiet = 0
                return False
            if quiet % AUDIT_EVERY == 0:
                self.feed.audit()
            quiet += 1
            return remote.compared > before

        wait_for(compared, "a reader to have the whole table", deadline_s=180.0)

    def kill(self, remote: Remote) -> None:
        """Kill a reader with SIGKILL, whatever it is doing."""
        remote.process.send_signal(signal.SIGKILL)
        remote.process.wait()

    def finish(self) -> list[dict[str, Any]]:
        """Close every link, as an engine that dies does; return what the readers saw."""
        found = []
        for remote in self.remotes:
            remote.link.close()
        for remote in self.remotes:
            output, _ = remote.process.communicate(timeout=60)
            if remote.process.returncode == 0:
                found.append(json.loads(output))
        return found
