"""Take what could confirm a guessed prompt, or name a customer, out of a snapshot.

Invariant: keys become keyed BLAKE2b under a random key that nobody keeps, so that two saved files cannot be compared
key by key and no file confirms a prompt; equal keys stay equal inside one snapshot, and parents still point at them.
Request ids become pseudonyms the same way. Called by :mod:`inspector.store` unless the operator asks with
``--reveal``.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from agent.model.decision import Decision
from agent.model.evidence import Admission, Binds, Contract, Evidence, HashTable
from agent.model.snapshot import PageColumns, Snapshot

from .columns import columns_of

T = TypeVar("T")


def anonymise(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every key and request id replaced."""
    return _Veil(secrets.token_bytes(32)).snapshot(snapshot)


class _Veil:
    """One random key, used for one snapshot and then forgotten."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def key(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=len(key)).digest() if any(key) else key

    def request(self, name: str) -> str:
        text = name.encode("utf-8", "surrogatepass")
        return "req-" + blake2b(text, key=self._secret, digest_size=5).hexdigest()

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        requests = snapshot.requests
        decisions = snapshot.decisions
        return replace(
            snapshot,
            pages=None if snapshot.pages is None else self.pages(snapshot.pages),
            requests=None if requests is None else tuple(replace(item, id=self.request(item.id)) for item in requests),
            decisions=None if decisions is None else tuple(self.decision(item) for item in decisions),
            evidence=None if snapshot.evidence is None else self.evidence(snapshot.evidence),
        )

    def decision(self, item: Decision) -> Decision:
        chain = None if item.chain is None else tuple(self.key(key) for key in item.chain)
        return replace(item, request=self.request(item.request), chain=chain, trace=())

    def pages(self, pages: PageColumns) -> PageColumns:
        """Replace the keys of all pages; a parent that no page carries gets a key of its own."""
        columns = columns_of(pages)
        cached = np.flatnonzero(columns.cached)
        old = [columns.key[page].tobytes() for page in cached.tolist()]
        new = {key: self.key(key) for key in dict.fromkeys(old)}
        extra = {page: tuple(self._secondary(raw, new) for raw in raws) for page, raws in pages.extra_keys.items()}
        keys = np.zeros((columns.count, 16), np.uint8)
        if old:
            keys[cached] = np.frombuffer(b"".join(new[key] for key in old), np.uint8).reshape(-1, 16)
        parent = None
        if columns.parent is not None:
            heads = {key[:8]: value[:8] for key, value in new.items()}
            raw = np.zeros((columns.count, 8), np.uint8)
            for page in cached[columns.parent[cached] != 0].tolist():
                before = columns.parent[page].tobytes()
                after = heads.setdefault(before, self.key(before))
                raw[page] = np.frombuffer(after, np.uint8)
            parent = memoryview(raw.tobytes())
        return replace(pages, key=memoryview(keys.tobytes()), parent=parent, extra_keys=extra)

    def _secondary(self, raw: bytes, new: Mapping[bytes, bytes]) -> bytes:
        return (new.get(raw[:16]) or self.key(raw[:16])) + raw[16:]

    def evidence(self, found: Evidence) -> Evidence:
        return replace(
            found,
            hash_table=None if found.hash_table is None else self.hash_table(found.hash_table),
            lookups=_each(
                found.lookups,
                lambda item: replace(
                    item, request=self.request(item.request), chain=tuple(self.key(key) for key in item.chain)
                ),
            ),
            transfers=_each(
                found.transfers,
                lambda item: item if item.request is None else replace(item, request=self.request(item.request)),
            ),
            # The id of a plan that an admission made has the request in it.
            plans=_each(found.plans, lambda item: replace(item, id=self.request(item.id))),
            binds=None if found.binds is None else self.binds(found.binds),
            contract=None if found.contract is None else _without_seed(found.contract),
            tiers=_each(
                found.tiers,
                lambda tier: replace(
                    tier,
                    folder=None,
                    entries=tuple(replace(entry, name=self.request(entry.name)) for entry in tier.entries),
                ),
            ),
            identities=_each(
                found.identities, lambda item: replace(item, left=self.key(item.left), right=self.key(item.right))
            ),
            admission=None if found.admission is None else self.admission(found.admission),
        )

    def hash_table(self, table: HashTable) -> HashTable:
        raw = bytes(table.key)
        known: dict[bytes, bytes] = {}
        parts = []
        for at in range(0, len(raw), 16):
            key = raw[at : at + 16]
            parts.append(known.setdefault(key, b"") or self.key(key))
            known[key] = parts[-1]
        return replace(table, key=memoryview(b"".join(parts)))

    def binds(self, binds: Binds) -> Binds:
        conflicts = tuple(replace(item, request=self.request(item.request)) for item in binds.conflicts)
        return replace(binds, conflicts=conflicts)

    def admission(self, found: Admission) -> Admission:
        return replace(
            found,
            needs={self.request(name): number for name, number in found.needs.items()},
            returned={self.request(name): number for name, number in found.returned.items()},
        )


def _without_seed(contract: Contract) -> Contract:
    """Drop what could confirm a guess of the seed that keys are hashed with, which may be a secret."""
    return replace(contract, fields={name: text for name, text in contract.fields.items() if name != "hash.seed"})


def _each(items: tuple[T, ...] | None, change: Callable[[T], T]) -> tuple[T, ...] | None:
    return None if items is None else tuple(change(item) for item in items)
