"""Run the command line in this process, and compare what it writes with golden files and schemas."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agent.errors import KvctlError
from agent.model.decision import Decision
from agent.model.groups import Geometry
from agent.model.snapshot import EngineInfo, Level, Snapshot
from kvctl.main import main

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "schema"
GOLDEN = ROOT / "tests" / "golden"


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@dataclass
class Runner:
    """Runs command lines with a clean environment of settings."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Ran:
        """Run ``kvctl WORDS`` and return what it did."""
        self.capture.readouterr()
        code = main([str(word) for word in words])
        out, err = self.capture.readouterr()
        return Ran(int(code), out, err)


def schema(kind: str) -> Any:
    """Return the published JSON Schema of a kind of output."""
    return json.loads((SCHEMAS / f"{kind}.json").read_text(encoding="utf-8"))


def check_schema(data: Any) -> None:
    """Fail unless an object fits the schema of its kind."""
    jsonschema.validate(data, schema(data["kind"]))


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file; ``KVCTL_UPDATE_GOLDEN=1`` writes it, for a person to look at."""
    path = GOLDEN / name
    if os.environ.get("KVCTL_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs"


@dataclass
class FakeSession:
    """A live engine that is a snapshot: what :class:`agent.session.Session` shows to the command line."""

    full: Snapshot
    fresh: list[tuple[Decision, ...]] = field(default_factory=list)
    followed: list[Level] = field(default_factory=list)
    closed: bool = False
    follow_error: KvctlError | None = None

    @property
    def info(self) -> EngineInfo:
        """Who it is."""
        return self.full.engine

    @property
    def geometry(self) -> Geometry:
        """Its groups."""
        return self.full.geometry

    def overview(self, **_: Any) -> Snapshot:
        """Return everything but the page table."""
        from dataclasses import replace

        return replace(self.full, pages=None, capture=replace(self.full.capture, level=None, epoch=None))

    def follow(self, level: Level = Level.CONTENT, *, progress: Any = None, deadline_s: float = 1.0) -> None:
        """Join at a level."""
        if self.follow_error is not None:
            raise self.follow_error
        self.followed.append(level)
        if progress is not None:
            progress(0.5)
            progress(1.0)

    def poll(self) -> tuple[Decision, ...]:
        """Return the next batch of decisions; ends the test's patience when there are none."""
        if self.fresh:
            return self.fresh.pop(0)
        return ()

    def rest(self, seconds: float) -> None:
        """Let no time go by between two readings."""

    def snapshot(self, *, tables: bool = True, free_list: bool = False, lookups: int = 0) -> Snapshot:
        """Return the whole snapshot."""
        return self.full

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer nothing: there are no workers."""
        return {}

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


@contextmanager
def columns(monkeypatch: pytest.MonkeyPatch, width: int) -> Iterator[None]:
    """Pretend a terminal of this width, without its colours."""
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        yield


def words(command: str, file: Path) -> Sequence[str]:
    """Split a command line and add the snapshot file."""
    return [*command.split(), "--snapshot", str(file)]
