"""A real ``vllm serve`` on loopback with the agent in it, in a process group of its own, and the commands run on it.

Invariant: leaving the context ends the server and every process it started; nothing is waited for by length of time.
Used by the live tests; one server at a time, they share two cores.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import calm, compat, engine_env
from tests.support.client_http import HttpClient
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from agent.session import Session

START_S = 600.0
"""Data parallel servers on two busy cores; an idle machine needs 25 s for one engine."""
STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one kvctl command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A private "host": a runtime folder in which only the engines of one test are found."""

    runtime: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def kvctl(self, *arguments: str, deadline_s: float = 120.0, command: Sequence[str] | None = None) -> Result:
        """Run one kvctl command in its own process; ``command`` starts it in another way."""
        environment = engine_env.clean_environment() | {
            "KVCTL_RUNTIME_DIR": str(self.runtime),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [*(command or engine_env.kvctl_command()), *arguments],
            env=environment | dict(self.environment),
            cwd=engine_env.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
        return Result(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Host):
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def http(self) -> HttpClient:
        """A client of its OpenAI interface."""
        return HttpClient(self.port)

    def log_tail(self, size: int = 4000) -> str:
        """Return the end of what it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-size:]

    def children(self) -> list[int]:
        """Return the pids of its process group, itself included, that have not ended."""
        return group_members(self.process.pid)

    def session(self, pid: int | None = None) -> "Session":
        """Open a session with its engine core from the test's own process."""
        from agent.discovery import discover
        from agent.session import Session

        wanted = pid or self.engine_pid()
        found = [item for item in discover({"KVCTL_RUNTIME_DIR": str(self.runtime)}) if item.pid == wanted]
        assert len(found) == 1, (wanted, found)
        return Session.open(found[0], deadline_s=30.0)

    def engine_pid(self) -> int:
        """Return the pid of its (first) engine core process."""
        cores = [pid for pid in self.children() if "EngineCore" in _title(pid)]
        if not cores:
            raise AssertionError(f"no engine core among {self.children()}: {self.log_tail()}")
        return cores[0]


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def group_members(group: int) -> list[int]:
    """Return the pids of a process group that have not ended (zombies do not count)."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] != "Z":
                members.append(int(entry.name))
    return members


def free_port() -> int:
    """Return a port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: politely, then not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.wait(timeout=STOP_S)
            wait_for(lambda: not group_members(process.pid), "the server's children to end", deadline_s=STOP_S)
        except (subprocess.TimeoutExpired, AssertionError):
            continue
        return
    raise AssertionError(f"processes {group_members(process.pid)} survived SIGKILL")


@contextmanager
def serve(
    model: Path,
    *arguments: str,
    agent: bool = True,
    weights: bool = False,
    caching: bool = True,
    environment: Mapping[str, str] | None = None,
    plugins: Mapping[str, tuple[Path, str]] | None = None,
    runtime: Path | None = None,
    wrap: Sequence[str] = (),
) -> Iterator[Server]:
    """Run ``vllm serve`` for a tiny model until the context is left.

    Args:
        model: Folder from ``tests.support.models.write_model``.
        arguments: Further arguments of ``vllm serve``.
        agent: Start it with ``KVCTL_AGENT=1``.
        weights: The folder has weights; otherwise they are made up.
        caching: Prefix caching, said explicitly: vLLM's default differs from model to model.
        environment: Further environment variables.
        plugins: Further vLLM plugins, name to (file, function); what DeepSeek-V4 needs on CPU and calm
            waiting are always there.
        runtime: Runtime folder to share with another server; a private one by default.
        wrap: A command to put before ``vllm`` (``kvctl run --``).
    """
    with engine_env.short_folder() as own:
        folder = runtime or own / "run"
        folder.mkdir(mode=0o700, exist_ok=True)
        site = own / "site"
        site.mkdir()
        for module in (calm, compat):
            name = f"kvctl_test_{module.__name__.rpartition('.')[2]}"
            engine_env.write_plugin(site, name, Path(str(module.__file__)), "install")
        for name, (source, function) in (plugins or {}).items():
            engine_env.write_plugin(site, name, source, function)
        port = free_port()
        command = [
            *(*wrap, *engine_env.vllm_command(), "serve", str(model), "--served-model-name", "m"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager"),
            *("--load-format", "auto" if weights else "dummy", "--enable-prompt-tokens-details"),
            "--enable-prefix-caching" if caching else "--no-enable-prefix-caching",
            *arguments,
        ]
        log = own / "log.txt"
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        variables = engine_env.engine_environment(folder, agent=agent, PYTHONPATH=path) | dict(environment or {})
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=own,
            )
        server = Server(runtime=folder, process=process, port=port, log=log)
        try:
            wait_for(lambda: _ready(server), f"vLLM to serve {model.name}", deadline_s=START_S)
            yield server
        finally:
            stop_group(process)


def _ready(server: Server) -> bool:
    if server.process.poll() is not None:
        raise AssertionError(f"the server ended with {server.process.returncode}:\n{server.log_tail()}")
    return server.http.healthy()
