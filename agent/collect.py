"""Collect what the gates need beyond the tables, from a live engine and from this host.

Invariant: what cannot be collected is None with its reason in ``Evidence.missing``, never an error: a gate abstains.
Costs two collective calls to the workers, and a sample of the weights where nobody can vouch for them. Called by
``kvctl validate`` and by whoever runs gates on a live engine.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from .codec import from_plain
from .errors import KvctlError
from .fingerprint import pinned, read
from .gates.workers import worker_padding, worker_ranks, worker_tensors
from .health import device_health
from .model.evidence import Contract, Evidence, Weights, WorkerTensor
from .model.fingerprint import Mode, comparable
from .model.snapshot import Snapshot

if TYPE_CHECKING:
    from .session import Session

MAX_LOOKUPS = 32
"""Look-ups that the engine is asked for at one safe point."""


def collect(session: "Session", snapshot: Snapshot) -> Snapshot:
    """Add the workers' tensors and the health of this host's devices to a snapshot."""
    found = snapshot.evidence or Evidence()
    missing = dict(found.missing)
    found = _workers(session, snapshot, found, missing)
    devices, why = device_health()
    if why is not None:
        missing["devices"] = why
    weights = _weights(session, snapshot, found.weights)
    contract = _contract(session, found.contract, missing)
    evidence = replace(found, devices=devices, weights=weights, contract=contract, missing=missing)
    return replace(snapshot, evidence=evidence)


def _workers(session: "Session", snapshot: Snapshot, found: Evidence, missing: dict[str, str]) -> Evidence:
    """Ask the workers for their tensors and the padding rows of their block tables."""
    reason = _off(snapshot, "layout")
    tensors: tuple[WorkerTensor, ...] | None = None
    if reason is None:
        try:
            answers = session.call("layout").get("workers") or ()
            tensors, reason = worker_tensors(answers)
        except KvctlError as error:
            reason = f"the workers did not answer: {error.why or error.what}"
    if tensors is None:
        # An engine without workers describes them itself.
        unread = {"tensors": found.tensors, "padding": found.graphs}
        missing.update({name: reason for name, part in unread.items() if reason is not None and part is None})
        return found
    graphs, why = worker_padding(answers)
    missing.update({} if why is None else {"padding": why})
    return replace(found, tensors=tensors, ranks=worker_ranks(answers), graphs=graphs)


def _weights(session: "Session", snapshot: Snapshot, known: Weights | None) -> Weights | None:
    """Have a sample of the weights read where there is none yet, or something unknown may have changed them."""
    if known is None or (known.digest is not None and known.watched) or _off(snapshot, "weights_digest") is not None:
        return known
    try:
        plain = session.call("weights_digest").get("weights")
        return known if plain is None else from_plain(Weights, plain)
    except KvctlError:
        return known


def _contract(session: "Session", known: Contract | None, missing: dict[str, str]) -> Contract | None:
    """Compare with what was pinned for an engine of this name; where nothing was nobody asks the engine."""
    try:
        before = pinned(session.info.name)
        if before is None:
            return known
        now = read(session, mode=Mode.NONE)
    except KvctlError as error:
        missing["contract"] = f"the pinned contract could not be compared: {error.why or error.what}"
        return None
    old, new = comparable(before, now)
    return Contract(fields=new, pinned=old, fingerprint=None if known is None else known.fingerprint)


def _off(snapshot: Snapshot, name: str) -> str | None:
    """Why a capability is off; None where it is on."""
    for item in snapshot.capabilities:
        if item.name == name:
            return None if item.on else item.reason or "this engine does not tell"
    return "this engine does not tell"
