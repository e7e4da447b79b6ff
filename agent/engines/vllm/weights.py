"""When the weights of a vLLM engine changed, as far as it passes through the engine core.

Invariant: a change is noted before any page is registered after it, also where the call that made it failed half way;
a call to the workers whose effect is not known ends the claim that every change is seen. Engine's thread. vLLM keeps
cached pages over every one of these changes but a sleep that it was asked for itself.
"""

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ...feedformat import STEP_SHIFT
from ...model.evidence import Weights
from ...probe.adapters import Adapters, Identity
from ...probe.patches import Patches
from .doubt import Doubt

CHANGING: Final[dict[str, str]] = {
    "reload_weights": "reload",
    "load_weights": "reload",
    "update_weights": "update",
    "update_weight": "update",
    "finish_weight_update": "update",
    "start_draft_weight_update": "update",
    "sleep": "wake",
    "wake_up": "wake",
    "discard": "wake",
}
"""Worker methods that change weights or take them out of memory, and the word for the cause."""

ON_THE_WAY: Final = frozenset({"update_weights", "update_weight", "start_draft_weight_update", "sleep", "discard"})
"""Those of them after which the weights are not what they are going to be: nothing is read of them then."""

HARMLESS: Final = frozenset(
    {
        "kvctl_layout",
        "kvctl_runtime",
        "kvctl_weights_digest",
        "start_weight_update",
        "init_weight_transfer_engine",
        "shutdown_weight_transfer_engine",
        "get_model",
        "get_kv_cache_spec",
        "get_supported_tasks",
        "check_health",
        "profile",
        "synchronize_device",
        "compute_weight_checksums",
        "checkpoint_prepare",
        "list_loras",
        "pin_lora",
        "save_sharded_state",
    }
)
"""Worker methods that leave weights as they are."""

CHANGES_KEPT: Final = 64

MOST_PAGES: Final = 4_096
"""Pages of one adapter that are named one by one; with more of them a change of it counts as one of all weights."""

FULL: Final = "full"
"""The way of reading that takes in every byte."""

WEIGHTS: Final = "weights"
"""vLLM's tag of the memory that weights lie in."""

Change = tuple[int, str, int | None]
"""Stamp of the first page after it, cause, adapter that it is about (None: all weights)."""


def _identity(adapter: Any) -> Identity:
    return (adapter.lora_name, adapter.lora_path), int(adapter.lora_int_id)


class WeightsWatch:
    """Watch one engine core.

    Args:
        probe: Its probe.
    """

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._changes: list[Change] = []
        self.doubt = Doubt()
        """Calls that may have changed weights."""
        self.points = 0
        """Changes seen so far, and calls that may have been some: a reading during which it grows is void."""
        self._seen: dict[str, tuple[str, int]] = {}
        """By way of reading: the last digest, and the stamp that pages registered after it would carry at least."""
        self._last: tuple[str, bool] | None = None
        """The last digest of all, and whether it covers every tensor."""
        self._last_good: int | None = None
        self._loras: dict[tuple[str, Hashable], tuple[str, int]] = {}
        """By way of reading and adapter: as for all other weights."""
        self._adapters = Adapters(0, list, self._identity_of)
        self._owners_known = False
        """It is on record which adapter computed each page."""
        self._room: int | None = None
        """Adapters that stay in memory: with more of them in use, workers load one again by themselves."""
        self._was_there = False
        self._asleep = False
        self.away = False
        """Weights are out of memory on some worker, and the executor does not say so: they must not be touched."""

    def install(self, engine: Any, patches: Patches) -> None:
        """Hook the ways through the engine core."""
        guard = self._probe.guard
        if hasattr(engine, "set_weight_version"):
            patches.set(
                engine,
                "set_weight_version",
                guard.after(engine.set_weight_version, lambda *_a, **_k: self.changed("update")),
            )
        if hasattr(engine, "collective_rpc"):
            patches.set(
                engine, "collective_rpc", guard.around(engine.collective_rpc, lambda *_a, **_k: None, self._called)
            )
        if hasattr(engine, "add_lora"):
            patches.set(engine, "add_lora", guard.around(engine.add_lora, self._loads, self._loaded))
        if hasattr(engine, "remove_lora"):  # the workers load it again by themselves, whatever lies there then
            forgotten = guard.after(engine.remove_lora, lambda *_a, **_k: self._may_have_changed("remove_lora"))
            patches.set(engine, "remove_lora", forgotten)
        self._watch_sleep(engine.model_executor, patches)
        self._watch_owners(engine, patches)

    # ------------------------------------------------------------------ sleep

    def _watch_sleep(self, executor: Any, patches: Patches) -> None:
        """Hook where memory really goes and comes: a sleep may wait for requests long after it was asked for.

        A sleep of level 0 does not come here: it stops scheduling and leaves the memory alone.
        """
        if not hasattr(executor, "sleeping_tags"):
            return

        def before(*_args: Any, **_kwargs: Any) -> None:
            self._asleep = WEIGHTS in executor.sleeping_tags

        def slept(failed: bool, *_args: Any, **_kwargs: Any) -> None:
            if failed and not self._asleep:  # on some workers, perhaps, and it does not count as asleep
                self.away = True
                self.changed("wake", read=False)

        def woken(failed: bool, *_args: Any, **_kwargs: Any) -> None:
            if self._asleep and (failed or WEIGHTS not in executor.sleeping_tags):
                self.away = failed
                self.changed("wake", read=not failed)

        for name, after in (("sleep", slept), ("wake_up", woken)):
            if hasattr(executor, name):
                patches.set(executor, name, self._probe.guard.around(getattr(executor, name), before, after))

    # --------------------------------------------------------------- adapters

    def _watch_owners(self, engine: Any, patches: Patches) -> None:
        """Keep which adapter computed each page, where the engine serves any and nothing is cached yet."""
        feed, config = self._probe.feed, getattr(engine.vllm_config, "lora_config", None)
        if feed is None or config is None:
            return
        self._room = getattr(config, "max_cpu_loras", None)
        pool = self._probe.adapter.pool_port()
        self._adapters = Adapters(feed.pages, pool.ids, self._identity_of)
        self._owners_known = not self._probe.adapter.pool().keys
        # A request that registers no page may load an adapter all the same.
        patches.set(engine.scheduler, "schedule", self._probe.guard.after(engine.scheduler.schedule, self._scheduled))
        feed.stamps.adapters = self._adapters

    def _scheduled(self, output: Any, *_args: Any, **_kwargs: Any) -> None:
        for request in output.scheduled_new_reqs:
            if (identity := self._identity_of(request)) is not None:
                self._adapters.learn(identity)

    def _identity_of(self, request: Any) -> Identity | None:
        """Return what vLLM's keys carry of a request's adapter, and its number; None: it uses none."""
        adapter = request.lora_request
        if adapter is None:
            return None
        if getattr(adapter, "load_inplace", False):  # the workers load it again in every step, whatever lies there then
            self._rise("a request that loads its adapter in place")
        return _identity(adapter)

    def _loads(self, request: Any, *_args: Any, **_kwargs: Any) -> None:
        """Note whether an adapter is there that is about to be loaded; asked of the workers only where it matters."""
        (name, number), in_place = _identity(request), getattr(request, "load_inplace", False)
        asked = in_place or name in self._adapters.known
        self._was_there = bool(asked) and number in self._probe.adapter.core.list_loras()

    def _loaded(self, failed: bool, request: Any, *_args: Any, **_kwargs: Any) -> None:
        """Pages of an adapter keep their keys when its bytes change: in place for certain, loaded again perhaps."""
        name, number = _identity(request)
        again = name in self._adapters.known and not self._was_there
        if failed or again:
            self._may_have_changed("add_lora")
        elif self._was_there and getattr(request, "load_inplace", False):
            self._adapter_changed(name, number)
        self._adapters.learn((name, number))

    def _adapter_changed(self, name: Hashable, number: int) -> None:
        """One adapter has other bytes: pages of others, and of none, stay good where it is known whose they are."""
        feed = self._probe.feed
        pages = None if feed is None else self._pages_of(name)
        if pages is None:
            self.changed("lora")
            return
        self.points += 1
        self._loras = {key: value for key, value in self._loras.items() if key[1] != name}
        self._last_good = None
        self.doubt.stale(name)
        self._note("lora", number)
        held = self._probe.adapter.scheduler.requests
        feed.note_adapter_change(pages, [key for key, one in held.items() if _uses(one, name, number)])
        self._read_again()

    def _pages_of(self, name: Hashable) -> dict[int, int] | None:
        """Return the cached pages that an adapter computed; None where that is not known of all pages."""
        stamps = self._probe.feed.stamps
        stamps.fold()
        if not self._owners_known or stamps.dropped:
            return None
        pages, pool = self._adapters.pages_of(name, stamps.page_stamps), self._probe.adapter.pool_port()
        held = pool.tokens([pool.take(page, page + 1)[0] for page in pages])
        pages = {page: stamp for (page, stamp), tokens in zip(pages.items(), held, strict=True) if tokens}
        return pages if len(pages) <= MOST_PAGES else None

    # ---------------------------------------------------------------- changes

    def _called(self, failed: bool, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        name = method if isinstance(method, str) else getattr(method, "__name__", "a function")
        if cause := CHANGING.get(name):
            if cause == "wake" and _of_weights(name, *args, **kwargs):
                self.away = failed or name != "wake_up"
            self.changed(cause, read=not failed and not self.away and name not in ON_THE_WAY)
        elif name not in HARMLESS or not isinstance(method, str):  # a function of any name may do anything
            self._may_have_changed(name[:100])

    def _may_have_changed(self, call: str) -> None:
        """Nobody knows what a call did; where changes are acted on, a digest tells as soon as it can."""
        self._rise(call)
        if getattr(self._probe.feed, "on_weights_change", None) is not None:
            self._read_again()

    def _rise(self, call: str) -> None:
        """Note that a call may have changed weights, with what was read before it."""
        base = {mode: text for mode, (text, _) in self._seen.items()}
        self.points += 1
        self.doubt.rise(call, self._probe.recorder.step, base, {key: text for key, (text, _) in self._loras.items()})

    def changed(self, cause: str, *, read: bool = True) -> None:
        """Note a change: pages of later schedule calls belong to other weights.

        Args:
            cause: One word.
            read: The weights are what they are going to be, and can be read.
        """
        feed = self._probe.feed
        self.points += 1
        self._seen.clear()
        self._loras.clear()
        self.doubt.end()
        self._last, self._last_good = None, None
        if feed is not None:
            if getattr(self._probe, "unsettled", False):
                self._probe.dispatched()
            self._note(cause, None)
            feed.note_weights_change(self._probe.recorder.step)
        if read:
            self._read_again()

    def _note(self, cause: str, adapter: int | None) -> None:
        """Remember a change; the last one of all weights is never forgotten."""
        self._changes.append(((self._probe.recorder.step + 1) << STEP_SHIFT, cause, adapter))
        if len(self._changes) > CHANGES_KEPT:
            oldest = self._changes[0]
            later = any(change[2] is None for change in self._changes[1:])
            del self._changes[0 if later or oldest[2] is not None else 1]

    def _read_again(self) -> None:
        """Have a sample read: without one, later readings have nothing to be compared with."""
        readings = getattr(self._probe, "readings", None)
        if readings is not None:
            readings.ask()

    # ---------------------------------------------------------------- digests

    def digested(
        self, mode: str, digest: str, *, complete: bool, loras: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Compare a digest of the weights in memory with the last one that was read in the same way.

        One that differs without a change that was seen is a change somewhere since the last one: pages registered in
        between are doubtful. A full one that equals one from before an unknown call shows that nothing changed.

        Args:
            mode: ``sample`` or ``full``; only the second can clear an unknown call.
            digest: What was read.
            complete: It covers every tensor.
            loras: Digest of each adapter in memory by its id. One that was not there before is no change.
        """
        before = self._seen.get(mode)
        # Loaded again under another number it has the same keys; the newest is the one that requests get.
        named = {self._adapters.names.get(number, number): (number, loras[number]) for number in sorted(loras)}
        known = {name: self._loras[mode, name] for name in named if (mode, name) in self._loras}
        reloaded = [name for name, (text, _) in known.items() if text != named[name][1]]
        for name in reloaded:
            self._adapter_changed(name, named[name][0])
        if reloaded:
            self._last_good = min(known[name][1] for name in reloaded)
        if before is not None and before[0] != digest:
            self.changed("digest", read=False)
            self._last_good = before[1]
        elif complete and mode == FULL:
            self.doubt.answer(mode, digest, {name: text for name, (_, text) in named.items()}, self._adapters.known)
        now = (self._probe.recorder.step + 1) << STEP_SHIFT
        self._seen[mode] = (digest, now)
        self._loras.update({(mode, name): (text, now) for name, (_, text) in named.items()})
        self._last = (digest, complete)

    def evidence(self) -> Weights | None:
        """Return what was seen; None without a feed, whose stamps the changes refer to."""
        feed = self._probe.feed
        if feed is None:
            return None
        stamps, causes, adapters = zip(*self._changes, strict=True) if self._changes else ((), (), ())
        return Weights(
            changes=stamps,
            causes=causes,
            adapters=adapters,
            adapter_pages=feed.adapter_pages(),
            last_good=self._last_good,
            digest=None if self._last is None else self._last[0],
            complete=self._last is not None and self._last[1],
            watched=self.doubt.call is None and (self._room is None or self._adapters.used <= self._room),
        )


def _uses(request: Any, name: Hashable, number: int) -> bool:
    """Return whether a request is computed with an adapter: by number also where it came from another path."""
    adapter = request.lora_request
    return adapter is not None and (_identity(adapter)[0] == name or int(adapter.lora_int_id) == number)


def _of_weights(
    name: str, _timeout: Any = None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> bool:
    """Return whether a worker's ``sleep``, ``discard`` or ``wake_up`` concerns the memory of the weights."""
    tags = (kwargs or {}).get("tags", args[0] if args else None)
    return name == "sleep" or tags is None or WEIGHTS in tags
