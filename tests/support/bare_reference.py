"""The reference engine with a probe, stepped by hand: what the contract of adapters needs of it.

Invariant: the engine is the real one, model included; one lock stands for its thread. Only ``tests/reference`` uses it.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.discovery import EndpointState, discover
from agent.engines.reference.adapter import ReferenceAdapter
from agent.probe.lifecycle import Probe
from agent.reference.config import EngineConfig, ModelConfig
from agent.reference.engine import Engine
from agent.session import Session

MODEL = ModelConfig(vocabulary=300)
"""All five kinds of layers; the vocabulary of the tests' prompts."""

CONFIG = EngineConfig(
    max_tokens=520,
    chunk=128,
    step_tokens=256,
    compressed_pages=300,
    tail_pages=600,
    window_pages=200,
    indexer_pages=110,
    # Without it the cache of those that have ended is evicted to let the waiting ones in: nobody would be preempted.
    cached_share=1.0,
)


def open_own(runtime: Path) -> Session:
    """Open a session with the one engine of this process that listens in a folder."""
    found = discover({"KVCTL_RUNTIME_DIR": str(runtime)})
    live = [item for item in found if item.state is EndpointState.LIVE and item.pid == os.getpid()]
    assert len(live) == 1, live
    return Session.open(live[0], deadline_s=60.0)


class BareReference:
    """One reference engine and its probe.

    Args:
        runtime: Folder for the probe's socket, short.
    """

    def __init__(self, runtime: Path) -> None:
        self.engine = Engine(MODEL, CONFIG)
        self.runtime = runtime
        self._turn = threading.RLock()
        environ = {"KVCTL_RUNTIME_DIR": str(runtime), "KVCTL_ALLOW_CHANGES": "1"}
        self.probe = Probe(ReferenceAdapter(self.engine), turn=self._turn, environ=environ)

    def session(self) -> Session:
        """Open a session with it."""
        return open_own(self.runtime)

    def add(self, name: str, tokens: Sequence[int], outputs: int = 4) -> None:
        """Add a request."""
        with self._turn:
            self.engine.submit(name, tokens, outputs)

    def step(self) -> None:
        """Run one step."""
        with self._turn:
            self.engine.step()

    def busy(self) -> bool:
        """Whether a request is left."""
        return not self.engine.idle

    def run(self, name: str, tokens: Sequence[int], outputs: int = 4) -> int:
        """Run a request to its end; return the tokens that the engine reused for it."""
        self.add(name, tokens, outputs)
        while self.busy():
            self.step()
        return next(record.reused for record in reversed(self.engine.scheduler.records) if record.request == name)

    def hooked(self) -> Mapping[str, Any]:
        """Return everything that the probe may hook."""
        engine = self.engine
        objects = (engine, engine.scheduler, engine.pages, engine.reuser, engine.committer, engine.prefetcher)
        return {type(each).__name__: each for each in objects}

    def registered(self) -> Mapping[int, tuple[int, bytes]]:
        """Return group and key of every page that carries one."""
        pages = self.engine.pages
        keyed = [(page, key) for page, key in enumerate(pages.key) if key is not None]
        return {page: (pages.group[page], key) for page, key in keyed}

    def references(self) -> Mapping[int, int]:
        """Return the engine's own count of every page."""
        return dict(enumerate(self.engine.pages.references[1:], start=1))

    def free(self) -> set[int]:
        """Return the pages that nobody holds."""
        pages = self.engine.pages
        return {page for lists in (pages.free, pages.evictable) for pool in lists.values() for page in pool}
