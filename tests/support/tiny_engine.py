"""The smallest thing that a probe can sit in: one thread with a queue, four pages, no model.

Invariant: real probe, real socket, real threads; only the engine is small. For tests of the socket and of its clients,
which have to run where no engine is installed. Not a stand-in for vLLM: what depends on an engine is tested on it.
"""

import os
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent import paths
from agent.engines.base import RequestRow
from agent.errors import UnsupportedError
from agent.model.evidence import Evidence
from agent.model.groups import Geometry, Group
from agent.model.snapshot import Capability, EngineInfo, PoolInfo, Tier
from agent.model.states import GroupId, ResumeKind, State
from agent.probe.lifecycle import Probe

ON = ("pool", "requests", "free_list", "holders", "chain", "engine_hit", "tiers", "safe_point", "decisions")
PAGES = 4


class TinyEngine:
    """An adapter and its engine in one."""

    engine = "tiny"

    def __init__(self, *, version: str = "1") -> None:
        self.version = version
        self.inbox: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.rows: list[RequestRow] = []
        self.threads: set[str] = set()
        """Threads on which the engine's tables were read."""
        self.probe: Probe | None = None
        self._thread = threading.Thread(target=self._loop, name="tiny-engine", daemon=True)

    def start(self, environ: Mapping[str, str]) -> Probe:
        """Start the engine and its probe."""
        self.probe = Probe(self, environ=dict(environ))
        self._thread.start()
        probe, started = self.probe, threading.Event()

        def begin() -> None:
            probe.start()
            started.set()

        self.inbox.put(begin)
        assert started.wait(30)
        return probe

    def stop(self) -> None:
        """End both."""
        if self.probe is not None:
            self.probe.stop()
        self.inbox.put(None)
        self._thread.join(30)

    def block(self) -> Callable[[], None]:
        """Keep the engine's thread busy until the returned function is called."""
        blocked, go_on = threading.Event(), threading.Event()

        def busy() -> None:
            blocked.set()
            go_on.wait(60)

        self.inbox.put(busy)
        assert blocked.wait(30)
        return go_on.set

    def _loop(self) -> None:
        while (job := self.inbox.get()) is not None:
            job()

    # ------------------------------------------------------------------ adapter

    def info(self) -> EngineInfo:
        """Describe the engine."""
        pid = os.getpid()
        return EngineInfo(
            pid=pid,
            start_ticks=paths.start_ticks(pid) or 0,
            engine="tiny",
            version=self.version,
            model="none",
            name="tiny",
        )

    def geometry(self) -> Geometry:
        """One ordinary group."""
        group = Group(id=GroupId(0), name="full16#0", states=(State.COMPRESSED,), kind=ResumeKind.FULL, block_size=16)
        return Geometry(groups=(group,), hash_unit=16, alignment=16)

    def capabilities(self) -> tuple[Capability, ...]:
        """Everything but a feed."""
        listed = [Capability(name=name, on=True) for name in ON]
        return (*listed, Capability(name="feed", on=False, reason="this engine has no page table to follow"))

    def pool_port(self) -> Any:
        """There is none."""
        raise UnsupportedError("no pool")

    def install(self, probe: Probe) -> None:
        """Nothing to hook."""

    def uninstall(self) -> None:
        """Nothing to restore."""

    def wake(self) -> bool:
        """Pass a safe point."""
        assert self.probe is not None
        probe = self.probe
        self.inbox.put(lambda: probe.between_steps(idle=True))
        return True

    def idle(self) -> bool:
        """It always is."""
        return True

    def pool(self) -> PoolInfo:
        """Counters."""
        self.threads.add(threading.current_thread().name)
        return PoolInfo(pages=PAGES, null_page=None, free=PAGES, keys=0)

    def requests(self, *, tables: bool) -> list[RequestRow]:
        """Whatever the test put there."""
        return list(self.rows)

    def page_ids(self, pages: Sequence[Any]) -> list[int]:
        """Pages are their ids."""
        return [int(page) for page in pages]

    def holders(self) -> dict[int, int]:
        """None."""
        return {}

    def free_pages(self, after: Any | None, limit: int) -> tuple[list[int], Any | None]:
        """All pages, one at a time."""
        at = 0 if after is None else int(after)
        return [at], None if at + 1 >= PAGES else at + 1

    def tiers(self) -> tuple[Tier, ...]:
        """None."""
        return ()

    def evidence(self) -> Evidence:
        """None."""
        return Evidence()

    def hash_table(self) -> list[tuple[bytes, Any]]:
        """Empty."""
        return []

    def chain(self, request: str) -> list[bytes]:
        """No request has one."""
        return []

    def engine_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Nothing hits."""
        return 0

    def keys_of(self, pages: Iterable[int]) -> set[tuple[int, bytes]]:
        """No keys."""
        return set()

    def pages_of(self, keys: Iterable[tuple[int, bytes]]) -> Mapping[tuple[int, bytes], list[int]]:
        """No pages."""
        return {}

    def stamps(self, pages: Iterable[int]) -> list[int]:
        """No stamps."""
        return [0 for _ in pages]

    def evict(
        self, keys: Iterable[tuple[int, bytes]], *, quarantine: bool, groups: Collection[int] | None = None
    ) -> dict[int, int]:
        """Nothing to evict."""
        return {}

    def worker_call(self, method: str) -> list[Any]:
        """No workers."""
        raise UnsupportedError("no workers")


@contextmanager
def tiny_engine(runtime: Path, **environ: str) -> Iterator[TinyEngine]:
    """Run one until the context is left; its socket is in ``runtime``."""
    engine = TinyEngine()
    engine.start({"KVCTL_RUNTIME_DIR": str(runtime), **environ})
    try:
        yield engine
    finally:
        engine.stop()
