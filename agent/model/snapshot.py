"""A snapshot: the frozen result of reading an engine's tables at one epoch.

Parts that were not read are None. Columns are read-only buffers so that this floor needs no numpy; analysis wraps them
without a copy (``agent.columns``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .decision import Decision
from .evidence import Evidence, Weights
from .groups import Geometry
from .states import PageId, Tokens

SCHEMA_VERSION = 1
"""Version of the JSON output and of snapshot files."""


class Consistency(StrEnum):
    """How far a capture can be trusted as one moment."""

    ATOMIC = "atomic"
    TORN = "torn"


class Level(StrEnum):
    """How much of the page table a reader follows."""

    CONTENT = "content"
    """Keys, positions, stamps: what prefixes, resume rules and metrics need."""
    REFERENCES = "references"
    """Reference counts and free list on top: pages screen, gate 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing that the agent can or cannot do on this engine."""

    name: str
    on: bool
    reason: str | None = None
    """Why it is off, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Which engine this is."""

    pid: int
    start_ticks: int
    """Start time of the process in clock ticks since boot (``/proc/PID/stat`` field 22): with the pid, an identity."""
    engine: str
    """``vllm``, ``sglang`` or ``reference``."""
    version: str
    model: str
    name: str = ""
    """Name the operator selects it by; the served model name where there is one."""
    agent_version: str = ""
    data_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    allow_changes: bool = False
    devices: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """How this snapshot was obtained."""

    consistency: Consistency
    level: Level | None
    """None: no page table was read."""
    epoch: int | None
    taken_ns: int
    """Wall clock of the capture."""
    age_ns: int | None = None
    """Age of the oldest part relative to ``taken_ns``; None where it was not measured."""
    duration_ns: int = 0
    pause_ns: int | None = None
    """Time that the engine's thread spent on it, at a safe point; None where it was not measured."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo:
    """Counters of the page pool, read at a safe point."""

    pages: int
    """All pages, the null page included."""
    null_page: PageId | None
    free: int | None
    """What the engine's own free counter says."""
    keys: int | None
    """Distinct keys in the engine's hash table."""
    page_bytes: int | None = None

    @property
    def usage_ratio(self) -> float | None:
        """Held pages over all pages without the null page; None where the free counter was not read."""
        usable = self.pages - (0 if self.null_page is None else 1)
        return None if self.free is None or usable <= 0 else 1.0 - self.free / usable


@dataclass(frozen=True, slots=True, kw_only=True)
class PageColumns:
    """The page table as columns, row i is page i. Sizes are for n pages; little-endian.

    A page without a key has ``tokens`` 0; its ``key``, ``group`` and ``stamp`` are then meaningless.
    """

    count: int
    key: memoryview
    """uint8, n * 16: first 16 bytes of the chained hash."""
    group: memoryview
    """uint8, n: the group whose key the page carries."""
    tokens: memoryview
    """uint32, n: tokens of the prefix that ends with this page (its position); 0 without a key."""
    stamp: memoryview
    """uint64, n: registration stamp ``step << 20 | call``; 0 where unknown (registered before the agent came)."""
    parent: memoryview | None = None
    """uint8, n * 8: first 8 bytes of the key of the block before it in its chain; zeros where unknown."""
    references: memoryview | None = None
    """int32, n: reference counts; None at content level."""
    free: memoryview | None = None
    """uint8, n: 1 where the page stands in the free list; None where the list was not walked."""
    extra_keys: Mapping[PageId, tuple[bytes, ...]] = field(default_factory=dict)
    """Secondary keys of a page (partial hits): 16 bytes of hash + 4 bytes big-endian group id + 4 bytes LE tokens.

    Tokens 0: position not known.
    """
    never_computed: frozenset[int] = frozenset()
    """Stamps of registrations whose pages no scheduler output ever covered (commit fence)."""
    tainted: frozenset[PageId] = frozenset()
    """Pages computed on top of a never-computed one."""
    committed_step: int = 0
    """Last schedule call whose output was processed: pages with a later stamp are registered, not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """One request that the engine knows, read at a safe point."""

    id: str
    status: str
    """The engine's own word, lower case: ``waiting``, ``running``, ``preempted``, ``waiting_for_remote_kvs`` ..."""
    tokens: Tokens
    """Prompt and outputs so far."""
    prompt_tokens: Tokens
    computed_tokens: Tokens
    in_flight_tokens: Tokens = 0
    preemptions: int = 0
    priority: int = 0
    tables: tuple[tuple[PageId, ...], ...] | None = None
    """Its page table for each group, the null page included; None where tables were not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Another tier that holds prefixes: host memory, disk, remote store."""

    name: str
    kind: str
    entries: int | None = None
    bytes: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that was read; a part that was not read is None."""

    engine: EngineInfo
    capture: Capture
    geometry: Geometry
    pool: PoolInfo | None = None
    pages: PageColumns | None = None
    requests: tuple[RequestInfo, ...] | None = None
    decisions: tuple[Decision, ...] | None = None
    counters: Mapping[str, float] | None = None
    """Counters of the probe by catalogue name with labels, for example ``reuse_lookup_tokens``."""
    tiers: tuple[Tier, ...] | None = None
    capabilities: tuple[Capability, ...] = ()
    holders: Mapping[PageId, int] | None = None
    """References to a page beyond request tables: pins, deferred frees, copy-on-write, transfers."""
    free_list: tuple[PageId, ...] | None = None
    """The engine's free list in eviction order, walked at a safe point; may repeat a page if it is broken."""
    evidence: Evidence | None = None
    """What the gates need beyond the tables (``agent.model.evidence``); None: nothing of it was read."""
    schema_version: int = SCHEMA_VERSION

    @property
    def weights(self) -> Weights | None:
        """What was seen of the weights; None: nothing was read."""
        return None if self.evidence is None else self.evidence.weights
