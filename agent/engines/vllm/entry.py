"""Where the probe comes into a vLLM process: a few class methods that every engine passes through.

Invariant: registering only replaces functions of classes, at once where their module is loaded and right after its
import otherwise; threads and sockets begin with an engine core, so the hooks survive fork and spawn and cost nothing in
API servers and workers. Called by ``kvctl.plugin`` in every process of the engine.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from ...probe.guard import Guard, Limits
from ...probe.lifecycle import Probe
from ...probe.patches import Patches
from . import worker
from .adapter import VllmAdapter

CORE: Final = "vllm.v1.engine.core"
CLIENT: Final = "vllm.v1.engine.core_client"
WORKER: Final = "vllm.v1.worker.worker_base"

CALLER_ENTRIES: Final = (
    "get_output",
    "add_request",
    "abort_requests",
    "reset_prefix_cache",
    "sleep",
    "wake_up",
    "release_kv_cache_memory",
    "collective_rpc",
    "add_lora",
    "set_weight_version",
)
"""Methods of ``InprocClient`` through which a caller changes tables or weights of an engine in its own process."""


class Entry:
    """The entry hooks of this process.

    Args:
        log: Receives single lines.
        notes: What the plugin says about its files.
        limits: What the host tolerates; for tests.
        prepare: Called with each probe before it starts; for tests.
    """

    def __init__(
        self,
        *,
        log: Callable[[str], None] | None = None,
        notes: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        prepare: Callable[[Probe], object] | None = None,
    ) -> None:
        self._log = log
        self._notes = dict(notes or {})
        self._limits = limits
        self._prepare = prepare
        self.guard = Guard(log=log)
        self._patches = Patches()
        self._probes: weakref.WeakKeyDictionary[Any, Probe] = weakref.WeakKeyDictionary()
        self._finder: AfterImport | None = None
        self.guard.on_open(self.remove)

    def register(self) -> None:
        """Hook the classes, now or when they are imported."""
        waiting: dict[str, Callable[[ModuleType], None]] = {}
        targets = {CORE: self._hook_core, CLIENT: self._hook_client, WORKER: self._hook_worker}
        for name, hook in targets.items():
            module = sys.modules.get(name)
            # A module that is being imported right now is only partly there.
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.guard.call(hook, module)
            else:
                waiting[name] = hook
        if waiting:
            self._finder = AfterImport(waiting, self.guard)
            sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Restore every class."""
        if self._finder is not None and self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._patches.remove()

    def probe_of(self, engine: Any) -> Probe | None:
        """Return the probe of an engine core."""
        return self._probes.get(engine)

    # ------------------------------------------------------------------ classes

    def _hook_core(self, module: ModuleType) -> None:
        core, served = module.EngineCore, module.EngineCoreProc
        for owner in (served, getattr(module, "DPEngineCoreProc", None)):
            if owner is not None and "run_busy_loop" in vars(owner):
                self._patches.set(
                    owner, "run_busy_loop", self.guard.before(owner.run_busy_loop, self._loop_begins, timed=True)
                )
        self._patches.set(
            core,
            "__init__",
            self.guard.after(core.__init__, lambda _result, engine, *_a, **_k: self._constructed(engine, served)),
        )
        self._patches.set(core, "shutdown", self.guard.before(core.shutdown, self._shut_down))

    def _hook_client(self, module: ModuleType) -> None:
        client = module.InprocClient
        for name in CALLER_ENTRIES:
            original = getattr(client, name, None)
            if original is not None:
                self._patches.set(client, name, self._in_turn(original))

    def _hook_worker(self, module: ModuleType) -> None:
        for name, method in worker.METHODS.items():
            self._patches.set(module.WorkerBase, name, method)

    # ------------------------------------------------------------------ engines

    def _loop_begins(self, engine: Any, *_args: Any, **_kwargs: Any) -> None:
        self._begin(engine, served=True)

    def _constructed(self, engine: Any, served_kind: type) -> None:
        if not isinstance(engine, served_kind):
            self._begin(engine, served=False)

    def _begin(self, engine: Any, *, served: bool) -> None:
        # The operator may have changed his mind since the plugin was loaded.
        if engine in self._probes or os.environ.get("KVCTL_AGENT") != "1":
            return
        turn = None if served else threading.RLock()
        adapter = VllmAdapter(engine, served=served, notes=self._notes)
        probe = Probe(adapter, log=self._log, turn=turn, limits=self._limits)
        self._probes[engine] = probe
        if self._prepare is not None:
            self._prepare(probe)
        probe.start()
        weakref.finalize(engine, probe.stop, "the engine was dropped").atexit = False

    def _shut_down(self, engine: Any, *_args: Any, **_kwargs: Any) -> None:
        probe = self._probes.get(engine)
        if probe is not None:
            probe.stop()

    def _in_turn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        guard = self.guard

        def stand_in(client: Any, *args: Any, **kwargs: Any) -> Any:
            engine = getattr(client, "engine_core", None)
            probe = self._probes.get(engine) if guard.on and engine is not None else None
            if probe is None and guard.on and engine is not None:
                guard.call(self._begin, engine, served=False)
                probe = self._probes.get(engine)
            if probe is None or not probe.guard.on or probe.safe_point.turn is None:
                return original(client, *args, **kwargs)
            with probe.safe_point.turn:
                try:
                    return original(client, *args, **kwargs)
                finally:
                    probe.guard.attempt(_pass_safe_point, probe)

        stand_in.__name__ = getattr(original, "__name__", "stand_in")
        stand_in.__wrapped__ = original  # type: ignore[attr-defined]
        return stand_in


def _pass_safe_point(probe: Probe) -> None:
    probe.between_steps(idle=probe.adapter.idle())


class AfterImport(importlib.abc.MetaPathFinder):
    """Call a function right after a module was imported.

    Args:
        waiting: Function for each module name.
        guard: Runs them.
    """

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]], guard: Guard) -> None:
        self._waiting = waiting
        self._guard = guard

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the next finders find the module, and have its loader tell us."""
        if fullname not in self._waiting:
            return None
        hook = self._waiting.pop(fullname)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = next(
            (
                found
                for finder in sys.meta_path
                if finder is not self and hasattr(finder, "find_spec")
                if (found := finder.find_spec(fullname, path, target)) is not None
            ),
            None,
        )
        loader = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._guard.call(hook, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_entry: Entry | None = None


def register(*, log: Callable[[str], None] | None = None, notes: Mapping[str, str] | None = None) -> Entry:
    """Register once in this process; later calls return the same entry."""
    global _entry  # noqa: PLW0603 - plugins are loaded several times, classes are hooked once
    if _entry is None:
        _entry = Entry(log=log, notes=notes)
        _entry.guard.call(_entry.register)
    return _entry
