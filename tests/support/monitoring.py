"""``kvctl export`` and a real Prometheus as processes beside a test, and promtool.

Invariant: both listen on loopback, are ended with their context, and are waited for by what they say. The programs
``prometheus`` and ``promtool`` must be there: a missing one fails the test, it does not skip it.
"""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import parser

from tests.support import engine_env
from tests.support.waiting import wait_for

_ADDRESS = re.compile(r"metrics at (http://\S+)/metrics")


def tool(name: str) -> str:
    """Return the path of a program; fail where it is missing."""
    found = shutil.which(name)
    if found is None:
        raise AssertionError(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


def promtool(*arguments: str, text: str | None = None) -> str:
    """Run promtool; return what it says, fail unless it is content."""
    done = subprocess.run(
        [tool("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def get(url: str, accept: str = "text/plain") -> str:
    """Fetch a page."""
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A running ``kvctl export``."""

    process: subprocess.Popen[bytes]
    base: str
    err: Path

    def text(self) -> str:
        """Scrape it."""
        return get(f"{self.base}/metrics")

    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Scrape it and return every sample by name and labels, the engine's and the model's left out."""
        return {
            (
                sample.name,
                frozenset((k, v) for k, v in sample.labels.items() if k not in {"engine", "model"}),
            ): sample.value
            for family in parser.text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def follows(self) -> None:
        """Wait until it follows the page table of an engine; what it said is part of the failure."""
        last = wait_for(lambda: self.value("kvctl_following") == 1 or self._complaint(), "kvctl export to follow")
        assert last is True, last

    def _complaint(self) -> str | None:
        said = self.err.read_text(encoding="utf-8", errors="replace")
        return said if "not explained" in said else None

    def value(self, name: str, **labels: str) -> float | None:
        """Return one sample; None where there is none."""
        return self.values().get((name, frozenset(labels.items())))


@contextmanager
def exporting(
    runtime: Path, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Exporter]:
    """Run ``kvctl export`` for the engines of a runtime folder; entered when it listens."""
    err = folder / f"export-{len(list(folder.glob('export-*')))}.err"
    variables = engine_env.clean_environment() | {"KVCTL_RUNTIME_DIR": str(runtime)} | dict(environment or {})
    with err.open("wb") as stderr:
        process = subprocess.Popen(
            [*engine_env.kvctl_command(), "export", "--listen", "127.0.0.1:0", *arguments],
            env=variables,
            cwd=engine_env.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

    def address() -> str | None:
        said = err.read_text(encoding="utf-8", errors="replace")
        assert process.poll() is None, f"kvctl export ended with {process.returncode}: {said}"
        found = _ADDRESS.search(said)
        return None if found is None else found[1]

    try:
        base = wait_for(address, "kvctl export to listen")
        assert base is not None
        yield Exporter(process=process, base=base, err=err)
    finally:
        process.terminate()
        process.wait(timeout=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A running Prometheus."""

    base: str

    def ask(self, path: str, **fields: str) -> Any:
        """Ask its API; return the data of the answer."""
        answer = json.loads(get(f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(fields)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def number(self, query: str) -> float | None:
        """Return the value of an instant query with one result; None where it has none."""
        results = self.ask("query", query=query)["result"]
        return float(results[0]["value"][1]) if results else None


@contextmanager
def prometheus(folder: Path, targets: list[str], rules: list[Path], port: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes ``targets`` every second; entered when it is ready."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "kvctl", "static_configs": [{"targets": targets}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(tool("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    running = Prometheus(base=f"http://127.0.0.1:{port}")

    def ready() -> bool:
        assert process.poll() is None, f"prometheus ended: {log.read_text(encoding='utf-8', errors='replace')}"
        try:
            return "ready" in get(f"{running.base}/-/ready").lower()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    try:
        wait_for(ready, "prometheus to be ready")
        yield running
    finally:
        process.terminate()
        process.wait(timeout=30)
