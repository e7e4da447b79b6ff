"""The reference engine as a child process of ``kvctl demo``.

Invariant: the child never outlives the parent (it ends when its standard input ends), and its disk tier lives in a
folder that goes with it. Called by the demo command only.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.errors import AgentError, DeadlineError, TargetError, UnsupportedError

START_S = 60.0
"""Importing torch takes seconds on a cold disk."""
STOP_S = 10.0
_KEPT_LINES = 20


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
            next_step="pip install '.[reference]' in the checkout of kvctl",
        )


class DemoEngine:
    """A running reference engine with the agent in it; a context manager.

    Args:
        rate: Requests a second.
        seed: Fixes the traffic.
        restart_s: Seconds between two losses of device and host memory; 0 for none.
    """

    def __init__(self, *, rate: float, seed: int, restart_s: float = 0.0) -> None:
        """Prepare; the engine starts on entering."""
        self._arguments = ["--rate", str(rate), "--seed", str(seed), "--restart-every", str(restart_s)]
        self._folder = tempfile.TemporaryDirectory(prefix="kvctl-demo-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "engine.log"
        self._disk = Path(self._folder.name) / "disk"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Start the engine and wait until its agent answers.

        Raises:
            AgentError: It ended, or its agent could not start; the last lines it wrote are in ``why``.
            DeadlineError: It was not ready in time.
        """
        command = [sys.executable, "-P", "-m", "agent.reference.serve", *self._arguments]
        command += ["--folder", str(self._disk), "--scratch", self._folder.name]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(os.environ),
                process_group=0,  # ^C is for us: the engine answers until the report is made
            )
        with ExitStack() as undo:
            undo.callback(self.close)
            self._wait()
            undo.pop_all()
        return self

    def _wait(self) -> None:
        process = self.process
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        if not ready:
            raise DeadlineError(f"the reference engine was not ready after {START_S:.0f} s")
        line = process.stdout.readline()
        if not line or not json.loads(line)["ready"]:
            raise AgentError("the reference engine did not start", why=self.last_words())

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
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-_KEPT_LINES:] if line.strip())[-500:]

    def end(self) -> None:
        """Tell the engine to end, and do not wait for it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the engine and remove its folder."""
        self.end()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._folder.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine."""
        self.close()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, "KVCTL_AGENT": "1", "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1")}
