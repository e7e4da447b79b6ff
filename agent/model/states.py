"""The five cache states, their statuses, and the ids that name things.

Source: the model of DeepSeek-V4's cache (report, section 3.5) widened to every hybrid-attention engine.
"""

from enum import StrEnum
from typing import NewType

PageId = NewType("PageId", int)
"""Index of a physical page in its pool, from 0."""

GroupId = NewType("GroupId", int)
"""Index of a group of layers that share one block table."""

Tokens = int
"""A count of tokens, or the token position that ends that many tokens."""

KEY_BYTES = 16
"""Bytes of a prefix key that kvctl keeps: the first half of the engine's 32-byte chained hash."""


class State(StrEnum):
    """What kind of cache state a layer leaves behind."""

    COMPRESSED = "compressed"
    """Full-history KV: compressed entries, MLA latents, ordinary full attention, a recurrent checkpoint."""
    TAIL = "tail"
    """Tokens not yet compressed: compressor state of the open group, partial pages."""
    SWA = "swa"
    """Sliding-window KV, and chunked-local attention."""
    INDEXER = "indexer"
    """Keys and statistics of a sparse indexer."""
    ON_DISK = "on_disk"
    """A prefix held in host memory, on local disk or in a remote store."""
    UNKNOWN = "unknown"
    """A kind of layer that this version of kvctl does not know: shown, never dropped, never judged."""


class Status(StrEnum):
    """How much of a state is there."""

    READY = "ready"
    PARTIAL = "partial"
    MISSING = "missing"
    IN_TRANSIT = "in_transit"
    STALE = "stale"
    UNKNOWN = "unknown"


class Requirement(StrEnum):
    """Whether resuming needs a group."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """Draft and multi-token-prediction layers: their loss lowers acceptance, not correctness."""
    TRANSIENT = "transient"
    """Rebuilt for each request (rings); shown, never required."""


class ResumeKind(StrEnum):
    """Which rule says where a group can resume (``agent.resume`` holds the rules)."""

    FULL = "full"
    """Every block of ``[0, t)``."""
    WINDOW = "window"
    """The blocks that intersect ``[max(0, t - window_past_tokens), t)``."""
    CHUNKED = "chunked"
    """``[floor(t / C) * C, t)``."""
    RECURRENT = "recurrent"
    """One checkpoint exactly at ``t``."""
    NONE = "none"
    """Not prefix-cacheable: needs nothing."""
    UNKNOWN = "unknown"
    """The engine has a manager that kvctl does not know: usable is then unknown as well."""
