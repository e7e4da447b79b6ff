"""Optional evidence: what the gates need beyond page table, requests and decisions.

Invariant: every part defaults to None, which means that nobody looked; a gate then abstains with that reason. An empty
tuple means that somebody looked and there was nothing. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .states import GroupId, PageId, State, Status, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTable:
    """The engine's own hash table as columns, one row for each pair of key and page; n rows, little-endian."""

    count: int
    key: memoryview
    """uint8, n * 16: first 16 bytes of the chained hash."""
    group: memoryview
    """uint8, n."""
    page: memoryview
    """int32, n: page that the table names for this key; a key with duplicates has several rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLookup:
    """One look-up that the engine answered, made at a safe point or at a delta cut, with the keys it was asked for."""

    request: str
    """The engine's request id, or a name of the sample; free text."""
    chain: tuple[bytes, ...]
    """Keys of 16 bytes; ``chain[i]`` ends at ``(i + 1) * hash_unit`` tokens."""
    limit: Tokens
    """Largest boundary that was allowed: tokens - 1."""
    answer: Tokens
    """What the engine would reuse locally."""
    epoch: int
    """Feed epoch of the answer. It is compared only with a table of the same epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What is known of the weights in memory and when they changed."""

    changes: tuple[int, ...]
    """Stamps (``step << 20 | call``) of the change points, rising: pages stamped lower were computed before that."""
    causes: tuple[str, ...] = ()
    """One word for each change point: ``update``, ``reload``, ``lora``, ``wake``, ``digest``."""
    adapters: tuple[int | None, ...] = ()
    """For each change point the LoRA adapter that it is about; None, or shorter than the others: all weights."""
    adapter_pages: Mapping[PageId, int] = field(default_factory=dict)
    """Pages computed with older bytes of one adapter, each with the stamp under which that holds."""
    last_good: int | None = None
    """Stamp at the last digest that matched, where the change was found by a digest; pages from here to the change
    point are doubtful and count as stale."""
    digest: str | None = None
    complete: bool = False
    """The digest covers all tensors: a partial one can fail, it cannot pass."""
    watched: bool = True
    """Every path that changes weights is hooked; False: only digests tell."""

    @property
    def last_of_all(self) -> int | None:
        """Index of the last change point that is about all weights: every page stamped below it is of older ones."""
        about = (*self.adapters, *(None for _ in self.changes[len(self.adapters) :]))
        found = [place for place, adapter in enumerate(about[: len(self.changes)]) if adapter is None]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTensor:
    """One cache tensor as a worker holds it, or the host-side pool of a tier (``host``). Bytes and tokens."""

    rank: int
    layer: str
    group: GroupId
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements, as torch says."""
    address: int
    """Address of page 0 of this layer."""
    page_bytes: int
    """Bytes of one page of this layer, padding included."""
    block_stride: int
    """Bytes from one page of this layer to the next."""
    pages: int
    allocation: tuple[int, int]
    """Address and bytes of the storage behind it."""
    spec_dtype: str | None = None
    spec_shape: tuple[int, ...] | None = None
    spec_strides: tuple[int, ...] | None = None
    """What the group's spec says, from the worker's copy; None where it was not derived."""
    address_alignment: int | None = None
    """Bytes that the address must be a multiple of; None: not known, or no such rule."""
    required_alignment: int | None = None
    """Bytes that the block stride must be a multiple of (576, 512, 16 ...)."""
    page_unit: int | None = None
    """Bytes that a page must be padded to; None: the kernel has no such unit."""
    row_bytes: int | None = None
    row_alignment: int | None = None
    """Bytes that a row must be a multiple of where bulk copies read it; None: no such copies."""
    kernel_block: Tokens | None = None
    """Tokens in one block of the attention kernel."""
    layout: str | None = None
    """Layout id: order of axes and arrangement inside a row."""
    host: bool = False
    pinned: bool | None = None
    """For host pools: page-locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Fields of the operator contract now in force, and those that were pinned."""

    fields: Mapping[str, str]
    pinned: Mapping[str, str] | None = None
    """None: nothing was pinned."""
    fingerprint: str | None = None
    """Short id that tier entries must carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A copy into or out of a page that has not been acknowledged."""

    page: PageId
    into: bool
    """True: the page is written; False: it is read."""
    stamp: int
    """Stamp of the page when the transfer began."""
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindConflict:
    """A page that was not the same when it was bound as when it was checked."""

    request: str
    checked: PageId
    bound: PageId
    stamp_checked: int | None
    """Stamp of the page at the check; None: not known, because it was registered anew since, or there are no stamps."""
    stamp_bound: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binds:
    """The always-on comparison of checked and bound pages."""

    compared: int
    conflicts: tuple[BindConflict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan that was handed in for execution."""

    id: str
    planned: Mapping[PageId, int | None]
    """Stamp of each page when the plan was made; None: not known, but another one."""
    found: Mapping[PageId, int | None]
    """Stamp of each page when the plan was to be executed."""
    executed: bool
    """False: refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierEntry:
    """One prefix, or one page of it, held by another tier."""

    tier: str
    name: str
    """File name or key; hashed like any key."""
    status: Status = Status.READY
    registered: bool = True
    """The tier's index says that it is there."""
    acknowledged: bool = True
    """The transfer that brought it has been acknowledged."""
    fingerprint: str | None = None
    """Fingerprint it carries."""
    bytes: int | None = None
    expected_bytes: int | None = None
    pages: Mapping[State, int] | None = None
    """Pages of each state from the first one on, without a gap; for records of several states."""
    page_tokens: Tokens | None = None
    ranks: tuple[int, ...] | None = None
    """Ranks whose part is there; None where it is one record for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """A tier that was looked through."""

    name: str
    states: frozenset[State] | None = None
    """States it has a pool for; None where it does not say."""
    fingerprinted: bool = True
    """Its entries are meant to carry a fingerprint."""
    folder: str | None = None
    """Where its files lie; None: it has none, or does not say."""
    ranks: int = 1
    entries: tuple[TierEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProbe:
    """Two synthetic requests that must not share a key, hashed in the engine."""

    name: str
    """What differs: ``lora``, ``salt``, ``image``, ``lora_named_like_salt``."""
    left: bytes
    right: bytes
    """Key of the first block of either; equal keys mean that they share a prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What admission control decides with. Pages."""

    cap_ratio: float | None = None
    """Share of the pool that cached pages may pin while requests wait; None: the engine has no cap."""
    pinned: int | None = None
    """Reusable pages that cannot be evicted."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """Pages that each waiting request needs at once under the runtime formula."""
    returned: Mapping[str, int] = field(default_factory=dict)
    """How often each request was admitted and returned."""
    free: int | None = None
    """Pages that could be taken at once, cached ones that nobody holds among them."""
    reserved: int | None = None
    """Pages that running requests still need for what they have already."""
    watermark: int | None = None
    """Pages that an admission leaves free while something runs."""
    caps: Mapping[GroupId, int] = field(default_factory=dict)
    """Most pages of a group that admission counts for one request: groups that recycle pages."""

    @property
    def headroom(self) -> int | None:
        """Pages that can be promised to the next request; below 0 where more is spoken for than is free."""
        if self.free is None or self.reserved is None:
            return None
        return self.free - self.reserved - (self.watermark or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedBuffer:
    """A buffer whose address a captured graph holds."""

    name: str
    captured: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedBatch:
    """One batch, of a captured graph for example: rows up to ``live`` are requests, the rest is padding."""

    name: str
    live: int
    rows: tuple[tuple[PageId, ...], ...]
    """Page ids that each row of the block table holds."""
    captured: bool = True
    """A graph was captured for it; False: a table that any batch uses, ``name`` says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """State of static graphs."""

    buffers: tuple[CapturedBuffer, ...] = ()
    batches: tuple[CapturedBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """What the driver says of one device; None: it does not say."""

    device: str
    uncorrected_errors: int | None
    pending_remap: bool | None
    retired_pages: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything beyond the tables; each part None until somebody reads it."""

    hash_table: HashTable | None = None
    lookups: tuple[EngineLookup, ...] | None = None
    weights: Weights | None = None
    tensors: tuple[WorkerTensor, ...] | None = None
    ranks: tuple[int, ...] | None = None
    """Ranks of the workers that described their tensors, those that have none among them; None: nobody listed them."""
    contract: Contract | None = None
    transfers: tuple[Transfer, ...] | None = None
    binds: Binds | None = None
    plans: tuple[PlanRecord, ...] | None = None
    tiers: tuple[TierReport, ...] | None = None
    identities: tuple[IdentityProbe, ...] | None = None
    admission: Admission | None = None
    graphs: Graphs | None = None
    devices: tuple[DeviceHealth, ...] | None = None
    recovery: Mapping[State, str] | None = None
    """Recovery route that each state went through (reference engine)."""
    rewindable: Mapping[GroupId, bool] | None = None
    """Whether a sparse group can be rewound by a draft; None: the engine does not say."""
    drafts: bool | None = None
    """The engine drafts tokens, with a model or without one; None: groups that are a draft's tell."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a part is None, by field name: shown as the reason of the abstention."""
