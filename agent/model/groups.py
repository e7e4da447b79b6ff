"""Groups of layers that share one block table, and the geometry that all groups of an engine agree on."""

from dataclasses import dataclass

from .states import GroupId, Requirement, ResumeKind, State, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a group as the engine describes it."""

    name: str
    """The engine's own layer name, for example ``model.layers.2.attn.indexer.k_cache``."""
    state: State
    page_bytes: int | None = None
    """Bytes this layer takes in one page, padding included; None where it was not read."""
    spec: str | None = None
    """Name of the engine's spec class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group: what it holds, how a page of it looks, and by which rule it resumes."""

    id: GroupId
    name: str
    """Short, stable and unique in the engine: state and geometry, for example ``swa64/w128#0``."""
    states: tuple[State, ...]
    """States held by its pages, main one first. DeepSeek-V4's main group: compressed and indexer."""
    kind: ResumeKind
    block_size: Tokens
    """Tokens covered by one page."""
    tokens_per_entry: int = 1
    """Compression ratio m: tokens behind one stored entry."""
    window_past_tokens: Tokens | None = None
    """Tokens *before* the next one that it attends to: W - 1. Only for ``WINDOW``."""
    chunk_tokens: Tokens | None = None
    """Chunk C of chunked-local attention. Only for ``CHUNKED``."""
    draft: bool = False
    """A speculative group: the engine asks for a margin beyond t and drops it again."""
    fine_grained: bool = False
    """Its blocks may be hit at hash-unit boundaries inside a block (needs ``Geometry.partial_hits``)."""
    requirement: Requirement = Requirement.REQUIRED
    layers: tuple[Layer, ...] = ()
    page_bytes: int | None = None
    """Bytes of one page over all its layers; None where it was not read."""
    spec: str | None = None
    """Name of the engine's spec class, for people who know the engine."""
    replay_tokens: Tokens = 0
    """Tokens that the engine computes again after every hit because this group's state is not kept (DeepSeek-V4.1)."""
    lookup_class: int = 0
    """Groups with the same number are looked up together by the engine (equal spec): they hit jointly."""

    @property
    def state(self) -> State:
        """The main state."""
        return self.states[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What all groups of one engine agree on."""

    groups: tuple[Group, ...]
    """Ordered by id; ``groups[i].id == i``."""
    hash_unit: Tokens
    """Tokens between two chained hashes of a request."""
    alignment: Tokens
    """Hits are multiples of this: LCM of the group blocks, the hash unit with partial hits, the block of one group."""
    partial_hits: bool = False
    caching: bool = True
    """False when the engine runs without prefix caching: every look-up is cold by design."""
    retention_interval: Tokens | None = None
    """vLLM's sparse retention: None is dense, 0 keeps only replay boundaries, p > 0 one tail every p tokens."""
    max_model_tokens: Tokens | None = None
    margin_beyond_limit: bool = True
    """The margin of a speculative group may be proved by keys beyond the limit of a look-up; vLLM before 0.32 stops
    there. Engines with one group always stop."""
