"""What the gates need beyond tables and decisions, read from a vLLM engine core at one safe point.

Invariant: every part stands alone; one that cannot be read is None, with the reason in ``missing``, and never an error.
Called by the adapter on the engine's thread.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...model.evidence import Admission, Binds, Evidence, IdentityProbe, TierReport, Transfer, Weights
from ...model.states import GroupId, ResumeKind, State
from . import admission, offload

if TYPE_CHECKING:
    from .adapter import VllmAdapter

CAUGHT: Final = (AttributeError, TypeError, ValueError, LookupError, RuntimeError, AssertionError)

FIXED: Final = {
    "recovery": "vLLM has no routes by state: what is missing is computed again, or loaded through the connector",
    "cap": "vLLM pins no cached page and has no cap: what nobody holds can be taken at once",
    "padding": "the workers' block tables were not read",
}
"""What vLLM never tells."""


class Reader:
    """Read one engine's evidence.

    Args:
        adapter: The adapter of that engine.
    """

    def __init__(self, adapter: "VllmAdapter") -> None:
        self._adapter = adapter
        self._missing: dict[str, str] = {}

    def read(self) -> Evidence:
        """Read everything."""
        adapter = self._adapter
        self._missing = {**FIXED, "graphs": self._graphs()}
        transfers, tiers = self._tiers()
        rewindable: dict[GroupId, bool] | None = self._part("rewindable", self._rewindable)
        admitted: Admission | None = self._part("admission", lambda: admission.read(adapter.scheduler))
        return Evidence(
            weights=self._weights(),
            binds=self._binds(),
            identities=self._identities(),
            admission=admitted,
            transfers=transfers,
            tiers=tiers,
            rewindable=rewindable,
            drafts=self._drafts(),
            missing=self._missing,
        )

    def _part(self, name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except CAUGHT as error:
            self._missing[name] = f"this vLLM tells it in another way: {type(error).__name__}: {error}"[:300]
            return None

    def _weights(self) -> Weights | None:
        weights = self._adapter.weights_seen()
        if weights is None:
            self._missing["weights"] = "without a feed pages have no stamps to compare with"
        return weights

    def _binds(self) -> Binds | None:
        bound = self._adapter.bound
        if bound is None:
            reason = self._adapter.off("binds") or self._adapter.off("decisions")
            self._missing["binds"] = reason or "look-ups and admissions are not compared here"
        return None if bound is None else bound.evidence()

    def _identities(self) -> tuple[IdentityProbe, ...] | None:
        if (reason := self._adapter.off("hash_tokens")) is not None:
            self._missing["identities"] = reason
            return None
        found: tuple[IdentityProbe, ...] | None = self._part(
            "identities", lambda: self._adapter.identities.read(self._adapter.core)
        )
        return found

    def _tiers(self) -> tuple[tuple[Transfer, ...] | None, tuple[TierReport, ...] | None]:
        adapter = self._adapter
        connector = getattr(adapter.scheduler, "connector", None)
        if connector is None:
            return (), ()
        reason = offload.unknown(connector)
        if reason is not None:
            self._missing["transfers"] = self._missing["tiers"] = reason
            return None, None
        found: tuple[TierReport, ...] | None = self._part("tiers", lambda: offload.tiers(connector, adapter.groups()))
        moving: tuple[Transfer, ...] | None = None
        coarse = self._part("transfers", lambda: offload.unstamped(connector))
        if coarse is not None:
            self._missing["transfers"] = coarse
        elif adapter.has_feed and "transfers" not in self._missing:
            overlapping = getattr(adapter.core, "batch_queue", None) is not None
            moving = self._part(
                "transfers",
                lambda: offload.transfers(adapter.scheduler, adapter.stamp_of, overlapping=overlapping),
            )
        else:
            self._missing.setdefault("transfers", "without a feed pages have no stamps to compare with")
        return moving, found

    def _graphs(self) -> str:
        core = self._adapter.core
        device = str(getattr(getattr(core.vllm_config, "device_config", None), "device_type", None) or "this device")
        if device == "cpu":
            return "no graph is captured on cpu"
        if getattr(getattr(core.vllm_config, "model_config", None), "enforce_eager", False):
            return "this engine runs eagerly: it captures no graph"
        return f"buffers of captured graphs on {device} were never seen by this version of kvctl"

    def _rewindable(self) -> dict[GroupId, bool] | None:
        """Tell which groups with a state that folds tokens in can take drafted ones back."""
        if not self._drafts():
            self._missing["rewindable"] = "this engine drafts nothing, so nothing is rewound"
            return None
        managers = self._adapter.scheduler.kv_cache_manager.coordinator.single_type_managers
        able: dict[GroupId, bool] = {}
        for group, manager in zip(self._adapter.groups().groups, managers, strict=True):
            if group.kind is ResumeKind.RECURRENT:
                # With pages for the states after each drafted token there is one to go back to.
                able[group.id] = int(manager.kv_cache_spec.num_speculative_blocks) > 0
            elif group.tokens_per_entry > 1 or group.state in {State.TAIL, State.UNKNOWN}:
                self._missing["rewindable"] = f"vLLM does not say whether a draft can rewind group {group.name}"
                return None
        return able

    def _drafts(self) -> bool:
        return getattr(self._adapter.core.vllm_config, "speculative_config", None) is not None
