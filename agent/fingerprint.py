"""Read the fingerprint of a live engine or a snapshot, keep it in a file, and find the one that was pinned.

Invariant: what the engine or a worker could not say is in ``missing`` with its reason; a file is written whole or not
at all. Called by ``kvctl fingerprint`` and, for the pinned contract, by :mod:`agent.collect`.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import jsonfile
from .codec import from_plain, to_plain
from .errors import FileError, KvctlError, ProtocolError, RefusedError, UnsupportedError, UsageError
from .model.evidence import Contract, Evidence, Weights
from .model.fingerprint import Fingerprint, Mode, Part, comparable
from .model.groups import Geometry
from .model.snapshot import Snapshot
from .replies import evidence

if TYPE_CHECKING:
    from .session import Session

FILE_VERSION: Final = 1
FULL_DEADLINE_S: Final = 600.0
"""Reading every byte of the weights: about 1 GB/s on every worker."""
NAMED: Final = 3
"""Unreadable tensors that a reason names."""
_PART: Final = "contract."
"""Before the name of a part of the contract in ``Evidence.missing``."""


def read(session: "Session", *, mode: Mode = Mode.SAMPLE, deadline_s: float = 30.0) -> Fingerprint:
    """Read contract and weights of an engine.

    Args:
        session: With the engine.
        mode: How much of the weights to read.
        deadline_s: For the contract, and for a sample of the weights.
    """
    plain = session.call("fingerprint", deadline_s=deadline_s)
    contract, weights = _texts(plain.get("contract")), _texts(plain.get("weights"))
    missing = _texts(plain.get("missing"))
    lost: dict[str, str] = {}
    _workers(plain.get("workers"), contract, weights, missing, lost)
    contract |= _of_geometry(session.geometry)
    if mode is not Mode.NONE and "digest" not in weights:
        lost |= _memory(session, mode, weights, lost, deadline_s=deadline_s)
    elif "digest" in weights:
        mode = Mode.FULL  # an engine that digests its own weights reads all of them
    else:
        lost["memory"] = "nobody read the weights in memory"
    return Fingerprint(
        contract=Part(fields=contract, missing=missing),
        weights=Part(fields=weights, missing=lost),
        mode=mode,
        taken_ns=time.time_ns(),
        engine=f"{session.info.engine} {session.info.version}",
        model=session.info.model,
        name=session.info.name,
    )


def _of_geometry(geometry: Geometry) -> dict[str, str]:
    fields = {
        "geometry.hash_unit": str(geometry.hash_unit),
        "geometry.alignment": str(geometry.alignment),
        "geometry.partial_hits": str(geometry.partial_hits).lower(),
        "geometry.retention_interval": str(geometry.retention_interval),
    }
    return fields | {f"geometry.group.{group.id}": f"{group.state}, {group.kind}" for group in geometry.groups}


def kept(session: "Session", snapshot: Snapshot, *, deadline_s: float = 30.0) -> Snapshot:
    """Add the contract now in force to a snapshot that is to be looked at without its engine.

    What the engine or a worker does not say is in ``Evidence.missing`` with its reason. The weights are not read.
    """
    evidence = snapshot.evidence or Evidence()
    known, missing = evidence.contract, dict(evidence.missing)
    try:
        found = read(session, mode=Mode.NONE, deadline_s=deadline_s).contract
    except KvctlError as error:
        missing["contract"] = f"the contract was not read: {error.why or error.what}"
        return replace(snapshot, evidence=replace(evidence, missing=missing))
    missing |= {f"{_PART}{name}": why for name, why in found.missing.items()}
    # A file is compared with the pin of the host where it is looked at, not with that of the engine's.
    missing.pop("contract", None)
    contract = Contract(fields=found.fields, fingerprint=None if known is None else known.fingerprint)
    return replace(snapshot, evidence=replace(evidence, contract=contract, missing=missing))


def changes(session: "Session", *, deadline_s: float = 30.0) -> Weights | None:
    """Read which changes of the weights an engine's agent has seen; None where nobody watches."""
    try:
        found = evidence(session.call("read", tables=False, deadline_s=deadline_s))
    except (RefusedError, UnsupportedError):
        return None
    return None if found is None else found.weights


def of_snapshot(snapshot: Snapshot) -> Fingerprint:
    """Return what a snapshot holds of its engine's fingerprint; everything that it does not is in ``missing``."""
    engine, evidence = snapshot.engine, snapshot.evidence or Evidence()
    contract = {"engine": engine.engine, "version": engine.version, **_of_geometry(snapshot.geometry)}
    missing = {name.removeprefix(_PART): why for name, why in evidence.missing.items() if name.startswith(_PART)}
    if evidence.contract is None:
        missing["contract"] = evidence.missing.get("contract", "unknown: it was not read into the file")
    else:
        contract |= evidence.contract.fields
        if "hash.algorithm" in contract and "hash.seed" not in contract:
            missing["hash.seed"] = "unknown: a file that can be handed on does not hold it (--reveal keeps it)"
    weights, digest = {"model": engine.model}, None if evidence.weights is None else evidence.weights.digest
    lost = {}
    asked = any(item.name == "weights_digest" and item.on for item in snapshot.capabilities)
    own = digest is not None and not asked  # an engine that digests its own weights reads all of them
    if digest is not None:
        weights["digest"] = digest
    else:
        lost["memory"] = "unknown: no digest of the weights was read into the file"
    if digest is not None and evidence.weights is not None and not evidence.weights.complete:
        lost["memory"] = "the digest does not cover every tensor"
    if not own:
        lost["names"] = "unknown: revision, quantization and adapters are not in the file"
    return Fingerprint(
        contract=Part(fields=contract, missing=missing),
        weights=Part(fields=weights, missing=lost),
        mode=Mode.NONE if digest is None else Mode.FULL if own else Mode.SAMPLE,
        taken_ns=snapshot.capture.taken_ns,
        engine=f"{engine.engine} {engine.version}",
        model=engine.model,
        name=engine.name,
    )


def _texts(plain: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in plain.items()} if isinstance(plain, Mapping) else {}


def _workers(
    answers: Any, contract: dict[str, str], weights: dict[str, str], missing: dict[str, str], lost: dict[str, str]
) -> None:
    """Add what the workers say; a field on which they agree is one field, else it is one for each rank."""
    told: dict[str, dict[int, str]] = {}
    loras: set[tuple[int, ...]] = set()
    ranks = 0
    for answer in answers or ():
        error = answer.get("error") if isinstance(answer, Mapping) else "not an answer of kvctl"
        if error:
            missing["workers"] = f"a worker could not describe itself: {error}"
            continue
        ranks += 1
        for name, value in _texts(answer.get("fields")).items():
            told.setdefault(name, {})[int(answer["rank"])] = value
        if answer.get("loras") is None:
            lost["lora"] = "a worker does not tell which adapters it holds"
        else:
            loras.add(tuple(int(number) for number in answer["loras"]))
    for name, values in told.items():
        if len(set(values.values())) == 1 and len(values) == ranks:
            contract[name] = next(iter(values.values()))
        else:
            contract |= {f"rank.{rank}.{name}": value for rank, value in values.items()}
    if loras:
        weights["lora"] = "; ".join(", ".join(map(str, held)) or "none" for held in sorted(loras))
        if any(loras):
            lost["lora bytes"] = "the bytes of LoRA adapters were not read"


def _memory(
    session: "Session", mode: Mode, weights: dict[str, str], missing: dict[str, str], *, deadline_s: float
) -> dict[str, str]:
    """Add the digests of the weights in memory, adapters among them; return what is missing."""
    full = mode is Mode.FULL
    try:
        plain = session.call(
            "weights_digest", deadline_s=max(deadline_s, FULL_DEADLINE_S) if full else deadline_s, full=full
        )
    except KvctlError as error:
        if isinstance(error, ProtocolError):
            raise
        return {"memory": f"{error.what}: {error.why}" if error.why else error.what}
    lost: dict[str, str] = {}
    ranks = plain.get("ranks") or ()
    if ranks and all(rank.get("loras") for rank in ranks):
        missing.pop("lora bytes", None)
    for rank in ranks:
        head = f"memory.rank{rank['rank']}"
        weights[head] = str(rank["digest"])
        weights |= {f"{head}.{name}": digest for name, digest in _texts(rank["parts"]).items()}
        if count := int(rank["unreadable_count"]):
            some = [f"{name} ({why})" for name, why in list(_texts(rank["unreadable"]).items())[:NAMED]]
            lost[f"memory.rank{rank['rank']} unreadable"] = (
                f"{count} of {rank['tensors']} tensors could not be read: "
                + ", ".join(some)
                + (", ..." if count > NAMED else "")
            )
    return lost


# ------------------------------------------------------------------------ files


def pins_folder() -> Path:
    """Return where pinned fingerprints lie: beside the config file of the user."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "kvctl" / "pins"


def pin_path(name: str) -> Path:
    """Return the file of the pin for an engine's name; names are free text, file names are not."""
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name).strip(".")
    # A file name has room for 255 bytes, not letters.
    short = plain[:100].encode()[:200].decode(errors="ignore")
    return pins_folder() / f"{short or 'engine'}.json"


def save(found: Fingerprint, path: Path) -> None:
    """Write a fingerprint to a file, whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=error.strerror) from error
    jsonfile.write({"kvctl_fingerprint": FILE_VERSION, **to_plain(found)}, path, pretty=True)


def load(path: Path) -> Fingerprint:
    """Read a fingerprint from a file.

    Raises:
        FileError: It is missing, or no fingerprint, or of a newer version.
    """
    body = jsonfile.read(path, "fingerprint", version=FILE_VERSION, make="kvctl fingerprint pin --file FILE")
    try:
        return from_plain(Fingerprint, {name: value for name, value in body.items() if name != "kvctl_fingerprint"})
    except ProtocolError as error:
        raise FileError(f"{path} is a damaged fingerprint", why=error.why) from error


def pinned(name: str) -> Fingerprint | None:
    """Return the fingerprint that was pinned for an engine of this name; None: none was."""
    path = pin_path(name)
    return load(path) if path.exists() else None


def with_pin(snapshot: Snapshot) -> Snapshot:
    """Set the contract that a snapshot without its engine holds against what was pinned here for an engine of its name.

    A comparison that the snapshot already holds stays. Where none is possible ``Evidence.missing`` says what lacks.
    """
    found = snapshot.evidence or Evidence()
    held, missing = found.contract, dict(found.missing)
    if held is not None and held.pinned is not None:
        return snapshot
    if held is None or not held.fields:
        missing.setdefault("contract", "the file holds no contract")
        return replace(snapshot, evidence=replace(found, missing=missing))
    try:
        before = pinned(snapshot.engine.name)
    except KvctlError as error:
        missing["contract"] = f"the pinned contract could not be compared: {error.why or error.what}"
        before = None
    if before is None:
        name = snapshot.engine.name[:60]
        missing.setdefault("contract", f"the file holds a contract; none is pinned here for an engine named {name!r}")
        return replace(snapshot, evidence=replace(found, missing=missing))
    now = of_snapshot(snapshot)
    old, new = comparable(before, replace(now, contract=replace(now.contract, fields=held.fields)))
    return replace(snapshot, evidence=replace(found, contract=replace(held, fields=new, pinned=old)))
