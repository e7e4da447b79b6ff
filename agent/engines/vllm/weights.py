"""When the weights of a vLLM engine changed, as far as it passes through the engine core.

Invariant: a change is noted before any page is registered after it; a call to the workers whose effect is not known
ends the claim that every change is seen. Engine's thread. vLLM keeps cached pages over every one of these changes.
"""

from collections.abc import Callable
from typing import Any, Final

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

    def _called(self, _result: Any, method: str | Callable[..., Any], *_args: Any, **_kwargs: Any) -> None:
        name = method if isinstance(method, str) else getattr(method, "__name__", "a function")
        if cause := CHANGING.get(name):
            self.changed(cause)
        elif name not in HARMLESS:
            self.unknown_call = name[:100]

    def changed(self, cause: str) -> None:
        """Note a change: pages of later schedule calls belong to other weights."""
        feed = self._probe.feed
        if feed is not None:
            feed.note_weights_change(self._probe.recorder.step)
            self._causes = [*self._causes, cause][-CAUSES_KEPT:]

    def evidence(self) -> Weights | None:
        """Return what was seen; None without a feed, whose stamps the changes refer to."""
        feed = self._probe.feed
        if feed is None:
            return None
        changes = tuple(feed.weights_changes)
        return Weights(
            changes=changes,
            causes=tuple(self._causes[-len(changes) :]) if changes else (),
            watched=not self.unknown_call,
        )
