"""The reference engine as a child process of ``kvctl demo``.

Invariant: the child never outlives the parent (it ends when its standard input ends); it makes every file itself and
takes it along, and what it could not, because it was killed, is removed here. Called by the demo command only.
"""

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.attach import launch
from agent.discovery import EndpointState, discover, remove_leftover
from agent.errors import AgentError, DeadlineError, RefusedError, TargetError, UnsupportedError

START_S = 60.0
"""Importing torch takes seconds on a cold disk."""
STOP_S = 10.0
_KEPT_LINES = 20
_KEPT_BYTES = 1 << 16


def require_torch() -> None:
    """Refuse politely where the engine cannot run.

    Raises:
        UnsupportedError: The extra is not installed.
    """
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "the reference engine needs torch",
            why=f"not installed: {', '.join(missing)}",
            next_step="in the checkout of kvctl: pip install '.[reference]'",
        )


class DemoEngine:
    """A reference engine with the agent in it, started and closed once.

    Args:
        rate: Requests a second.
        seed: Fixes the traffic.
        restart_s: Seconds between two losses of device and host memory; 0 for none.
        allow_changes: Its agent may change it: prefixes can be taken out.
    """

    def __init__(self, *, rate: float, seed: int, restart_s: float = 0.0, allow_changes: bool = False) -> None:
        """Prepare; nothing is made before the start."""
        self._arguments = ["--rate", str(rate), "--seed", str(seed), "--restart-every", str(restart_s)]
        self._allow_changes = allow_changes
        self._scratch = Path(tempfile.gettempdir()) / f"kvctl-demo-{secrets.token_hex(8)}"
        self._log = os.memfd_create("kvctl-demo-log", os.MFD_CLOEXEC)
        self._process: subprocess.Popen[str] | None = None

    def start(self, held: Callable[[], AbstractContextManager[None]]) -> None:
        """Start the engine and wait until its agent answers; :meth:`close` is owed whatever comes of it.

        Args:
            held: Holds signals back, for what must be done as a whole.

        Raises:
            AgentError: It ended, or its agent could not start; the last lines it wrote are in ``why``.
            DeadlineError: It was not ready in time.
        """
        command = [sys.executable, "-P", "-m", "agent.reference.serve", *self._arguments]
        command += ["--scratch", str(self._scratch)]
        with held():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=_environment(os.environ, allow_changes=self._allow_changes),
                process_group=0,  # ^C is for us: the engine answers until the report is made
            )
        self._wait()

    def _wait(self) -> None:
        process = self.process
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        if not ready:
            raise DeadlineError(f"the reference engine was not ready after {START_S:.0f} s")
        line = process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"ready": False}
        if not said["ready"]:
            raise AgentError("the reference engine did not start", why=self.last_words())
        if said["deaf"] is not None:
            raise AgentError("the agent in the reference engine has no socket", why=said["deaf"])

    @property
    def process(self) -> "subprocess.Popen[str]":
        """The child."""
        if self._process is None:
            raise AgentError("the reference engine was not started")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self.process.pid

    def inject(self, fault: str) -> None:
        """Have the engine act a fault out before its next step.

        Raises:
            TargetError: It has ended.
        """
        if self.process.stdin is None:
            return
        try:
            self.process.stdin.write(fault + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise TargetError("the reference engine has ended", why=self.last_words()) from error

    def last_words(self) -> str:
        """Return the last lines of its standard error."""
        # The child writes where it stands in the file: it is read without moving there.
        begin = max(0, os.fstat(self._log).st_size - _KEPT_BYTES)
        lines = os.pread(self._log, _KEPT_BYTES, begin).decode("utf-8", "replace").splitlines()
        return " / ".join(line.strip() for line in lines[-_KEPT_LINES:] if line.strip())[-500:]

    def end(self) -> None:
        """Tell the engine to end, and do not wait for it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the engine, and remove what it has left if it was killed."""
        self.end()
        process, self._process = self._process, None
        os.close(self._log)
        if process is None:
            return
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        for left in discover():
            if left.pid == process.pid and left.state is EndpointState.DEAD:
                with suppress(RefusedError, OSError):
                    remove_leftover(left)


def _environment(environ: Mapping[str, str], *, allow_changes: bool) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **launch.environment(environ, allow_changes=allow_changes)}
