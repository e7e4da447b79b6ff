"""Collect what the gates need beyond the tables, from a live engine and from this host.

Invariant: what cannot be collected is None with its reason in ``Evidence.missing``, never an error: a gate abstains.
Costs one collective call to the workers. Called by ``kvctl validate`` and by whoever runs gates on a live engine.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from .errors import KvctlError
from .gates.workers import worker_tensors
from .health import device_health
from .model.evidence import Evidence
from .model.snapshot import Snapshot

if TYPE_CHECKING:
    from .session import Session

MAX_LOOKUPS = 32
"""Look-ups that the engine is asked for at one safe point."""


def collect(session: "Session", snapshot: Snapshot) -> Snapshot:
    """Add the workers' tensors and the health of this host's devices to a snapshot."""
    found = snapshot.evidence or Evidence()
    missing = dict(found.missing)
    tensors, reason = None, _off(snapshot, "layout")
    if reason is None:
        try:
            tensors, reason = worker_tensors(session.call("layout").get("workers") or ())
        except KvctlError as error:
            reason = f"the workers did not answer: {error.why or error.what}"
    if tensors is None:
        tensors = found.tensors  # an engine without workers describes them itself
    if tensors is None and reason is not None:
        missing["tensors"] = reason
    devices, why = device_health()
    if why is not None:
        missing["devices"] = why
    evidence = replace(found, tensors=tensors, devices=devices, missing=missing)
    return replace(snapshot, evidence=evidence)


def _off(snapshot: Snapshot, name: str) -> str | None:
    """Why a capability is off; None where it is on."""
    for item in snapshot.capabilities:
        if item.name == name:
            return None if item.on else item.reason or "this engine does not tell"
    return "this engine does not tell"
