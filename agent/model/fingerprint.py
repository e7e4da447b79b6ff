"""What an engine's cached pages depend on: the operator contract and the weights, each with all its fields.

Invariant: a digest is a function of its fields and of nothing else, so that a difference can be named field by field; a
part that could not be read is named in ``missing`` and makes the fingerprint partial: it can fail, it cannot pass.
Standard library only.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """How much of the weights was read."""

    SAMPLE = "sample"
    """Evenly spread elements of every tensor."""
    FULL = "full"
    """Every byte."""
    NONE = "none"
    """Nothing: only what the engine says of them."""


def digest_of(fields: Mapping[str, str]) -> str:
    """Return the digest of named fields, 32 hex digits."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(fields):
        for part in (name, fields[name]):
            body = part.encode("utf-8", errors="surrogatepass")
            state.update(len(body).to_bytes(4, "little") + body)
    return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the two digests with its fields."""

    fields: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""

    @property
    def digest(self) -> str:
        """Digest of the fields that were read, 32 hex digits."""
        return digest_of(self.fields)

    @property
    def partial(self) -> bool:
        """Something is missing."""
        return bool(self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The fingerprint of one engine."""

    contract: Part
    weights: Part
    mode: Mode = Mode.NONE
    """How the weights were read: two readings can be compared only where this is the same."""
    taken_ns: int = 0
    """Wall clock, nanoseconds since 1970."""
    engine: str = ""
    """Engine and version, for people."""
    model: str = ""
    name: str = ""

    @property
    def partial(self) -> bool:
        """Something is missing: equal fields do not prove that everything is equal."""
        return self.contract.partial or self.weights.partial

    @property
    def short(self) -> str:
        """Short id of both digests."""
        return digest_of({"contract": self.contract.digest, "weights": self.weights.digest})[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that is not the same in two fingerprints."""

    part: str
    """``contract`` or ``weights``."""
    field: str
    before: str | None
    """None: the field is not there."""
    after: str | None


READINGS = "memory."
"""Fields of the weights that come from reading memory: comparable only where both were read in the same way."""


def differences(before: Fingerprint, after: Fingerprint) -> tuple[Difference, ...]:
    """Return every field that differs.

    Fields that one side could not read are no differences: they are missing there, which makes that side partial.
    """
    found: list[Difference] = []
    for name, one, other in (
        ("contract", before.contract, after.contract),
        ("weights", before.weights, after.weights),
    ):
        for key in sorted({*one.fields, *other.fields}):
            values = one.fields.get(key), other.fields.get(key)
            if values[0] == values[1] or _unread(key, one, other) or _otherwise(key, before, after):
                continue
            found.append(Difference(part=name, field=key, before=values[0], after=values[1]))
    return tuple(found)


def comparable(before: Fingerprint, after: Fingerprint) -> tuple[dict[str, str], dict[str, str]]:
    """Return the contract fields of two fingerprints, without those that one side could not read."""
    one, other = before.contract, after.contract
    keys = [key for key in {*one.fields, *other.fields} if not _unread(key, one, other)]
    return (
        {key: one.fields[key] for key in keys if key in one.fields},
        {key: other.fields[key] for key in keys if key in other.fields},
    )


def unsure(before: Fingerprint, after: Fingerprint) -> tuple[str, ...]:
    """Return why equal fields do not prove that two fingerprints are equal, one sentence each."""
    reasons: list[str] = []
    for side, item in (("the first", before), ("the second", after)):
        for name, part in (("contract", item.contract), ("weights", item.weights)):
            reasons += [f"{side} lacks {name} {key}: {why}" for key, why in part.missing.items()]
    if before.mode is not after.mode:
        reasons.append(f"the weights were read in two ways, {before.mode} and {after.mode}: they were not compared")
    return tuple(reasons)


def _unread(key: str, one: Part, other: Part) -> bool:
    """A field lies in a part that one side could not read."""
    for part, elsewhere in ((one, other), (other, one)):
        if key not in part.fields and key in elsewhere.fields:
            return any(_within(key, lost) for lost in part.missing)
    return False


def _within(key: str, lost: str) -> bool:
    if lost == "workers":
        return key == "runner" or key.startswith(("rank.", "group.", "layout", "environment.", "kv_tp_replicas"))
    return key == lost or key.startswith(f"{lost}.")


def _otherwise(key: str, before: Fingerprint, after: Fingerprint) -> bool:
    return key.startswith(READINGS) and before.mode is not after.mode
