"""When the weights of a vLLM engine changed, as far as it passes through the engine core.

Invariant: a change is noted before any page is registered after it; a call to the workers whose effect is not known
ends the claim that every change is seen. Engine's thread. vLLM keeps cached pages over every one of these changes.
"""

from collections.abc import Callable
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
            self.points += 1

    def changed(self, cause: str) -> None:
        """Note a change: pages of later schedule calls belong to other weights."""
        feed = self._probe.feed
        self.points += 1
        self._seen.clear()
        self._last, self._last_good = None, None
        if feed is not None:
            feed.note_weights_change(self._probe.recorder.step)
            self._causes = [*self._causes, cause][-CAUSES_KEPT:]

    def digested(self, mode: str, digest: str, *, complete: bool) -> None:
        """Compare a digest of the weights in memory with the last one that was read in the same way.

        One that differs without a change that was seen is a change somewhere since the last one: pages registered in
        between are doubtful. An equal one that covers every tensor shows that an unknown call changed nothing.

        Args:
            mode: ``sample`` or ``full``.
            digest: What was read.
            complete: It covers every tensor.
        """
        before = self._seen.get(mode)
        if before is not None and before[0] != digest:
            self.changed("digest")
            self._last_good = before[1]
            self.unknown_call = None
        elif before is not None and complete:
            self.unknown_call = None
        self._seen[mode] = (digest, (self._probe.recorder.step + 1) << STEP_SHIFT)
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
