"""When the weights of a vLLM engine changed, as far as it passes through the engine core.

Invariant: a change is noted before any page is registered after it; a call to the workers whose effect is not known
ends the claim that every change is seen. Engine's thread. vLLM keeps cached pages over every one of these changes.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ...feedformat import STEP_SHIFT
from ...model.evidence import Weights
from ...probe.patches import Patches

CHANGING: Final[dict[str, str]] = {
    "reload_weights": "reload",
    "load_weights": "reload",
    "update_weights": "update",
    "update_weight": "update",
    "finish_weight_update": "update",
    "start_draft_weight_update": "update",
}
"""Worker methods that change weights, and the word for the cause."""

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
        "compute_weight_checksums",
        "checkpoint_prepare",
        "list_loras",
        "pin_lora",
        "save_sharded_state",
    }
)
"""Worker methods that leave weights as they are."""

CAUSES_KEPT: Final = 64


class WeightsWatch:
    """Watch one engine core.

    Args:
        probe: Its probe.
    """

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._causes: list[str] = []
        self.unknown_call: str | None = None
        """A worker method that was called and may have changed weights."""
        self.points = 0
        """Changes seen so far, and calls that may have been some: a reading during which it grows is void."""
        self._seen: dict[str, tuple[str, int]] = {}
        """By way of reading: the last digest, and the stamp that pages registered after it would carry at least."""
        self._last: tuple[str, bool] | None = None
        """The last digest of all, and whether it covers every tensor."""
        self._last_good: int | None = None
        self._loras: dict[tuple[str, int], tuple[str, int]] = {}
        """By way of reading and id of an adapter: as for all other weights."""
        self._added: set[int] = set()
        """Adapters that were loaded through the engine core at some time."""
        self._there = False

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
            patches.set(engine, "collective_rpc", guard.after(engine.collective_rpc, self._called))
        if hasattr(engine, "add_lora"):
            loading = guard.after(engine.add_lora, self._adapter_loaded)
            patches.set(
                engine, "add_lora", guard.before(loading, lambda request, *_a, **_k: self._loads(engine, request))
            )

    def _loads(self, engine: Any, request: Any) -> None:
        """Note whether an adapter is there that is about to be loaded; asked of the workers only where it matters."""
        number = int(request.lora_int_id)
        asked = getattr(request, "load_inplace", False) or number in self._added
        self._there = bool(asked) and number in engine.list_loras()

    def _adapter_loaded(self, _result: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
        """Pages of an adapter keep their keys when its bytes change: in place for certain, loaded again perhaps."""
        number = int(request.lora_int_id)
        if getattr(request, "load_inplace", False):
            if self._there:
                self.changed("lora")
        elif number in self._added and not self._there:
            self.unknown_call = "add_lora"
            self.points += 1
        self._added.add(number)

    def _called(self, _result: Any, method: str | Callable[..., Any], *_args: Any, **_kwargs: Any) -> None:
        name = method if isinstance(method, str) else getattr(method, "__name__", "a function")
        if cause := CHANGING.get(name):
            self.changed(cause)
        elif name not in HARMLESS:
            self.unknown_call = name[:100]
            self.points += 1

    def changed(self, cause: str) -> None:
        """Note a change: pages of later schedule calls belong to other weights."""
        feed = self._probe.feed
        self.points += 1
        self._seen.clear()
        self._loras.clear()
        self._last, self._last_good = None, None
        if feed is not None:
            feed.note_weights_change(self._probe.recorder.step)
            self._causes = [*self._causes, cause][-CAUSES_KEPT:]

    def digested(
        self, mode: str, digest: str, *, complete: bool, loras: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Compare a digest of the weights in memory with the last one that was read in the same way.

        One that differs without a change that was seen is a change somewhere since the last one: pages registered in
        between are doubtful. An equal one that covers every tensor shows that an unknown call changed nothing.

        Args:
            mode: ``sample`` or ``full``.
            digest: What was read.
            complete: It covers every tensor.
            loras: Digest of each adapter in memory by its id. One that was not there before is no change.
        """
        before = self._seen.get(mode)
        known = [(self._loras[mode, number], text) for number, text in loras.items() if (mode, number) in self._loras]
        if reloaded := [stamp for (last, stamp), text in known if last != text]:
            self.changed("lora")
            self._last_good = min(reloaded)
            self.unknown_call = None
        if before is not None and before[0] != digest:
            self.changed("digest")
            self._last_good = before[1]
            self.unknown_call = None
        elif before is not None and complete and len(known) == len(loras):
            self.unknown_call = None
        now = (self._probe.recorder.step + 1) << STEP_SHIFT
        self._seen[mode] = (digest, now)
        self._loras.update({(mode, number): (text, now) for number, text in loras.items()})
        self._last = (digest, complete)

    def evidence(self) -> Weights | None:
        """Return what was seen; None without a feed, whose stamps the changes refer to."""
        feed = self._probe.feed
        if feed is None:
            return None
        changes = tuple(feed.weights_changes)
        return Weights(
            changes=changes,
            causes=tuple(self._causes[-len(changes) :]) if changes else (),
            last_good=self._last_good,
            digest=None if self._last is None else self._last[0],
            complete=self._last is not None and self._last[1],
            watched=not self.unknown_call,
        )
