"""One request: its tokens, its page tables, and how far it is computed.

Invariant: ``tables`` and ``generations`` have the same shape; a page id in a table is one reference held. Used by the
engine and the look-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from .geometry import GroupName
from .keys import Chain, Identity


class RequestStatus(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    PREFETCHING = "waiting_for_remote_kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Request:
    """One request of the engine."""

    id: str
    prompt: tuple[int, ...]
    max_new: int
    """Tokens to generate; at least one."""
    identity: Identity = field(default_factory=Identity)
    skip_cache: bool = False
    """Do not read the cache for this request."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and outputs so far."""
    chain: Chain
    computed: int = 0
    """Tokens whose states are in the pages of the tables."""
    tables: dict[GroupName, list[int]] = field(default_factory=dict)
    generations: dict[GroupName, list[int]] = field(default_factory=dict)
    """Generation of each page of the tables when it was bound."""
    filled: dict[GroupName, int] = field(default_factory=dict)
    """Blocks of each group that are complete and were offered to the cache."""
    status: RequestStatus = RequestStatus.WAITING
    preemptions: int = 0
    lookups: int = 0
    approximate: bool = False
    """Its states come from a bounded replay: they are never offered to the cache."""
    tier_attempts: int = 0
    promised: int = 0
    """Tokens that it will be able to reuse when the load that it waits for is acknowledged."""
    fetched: int = 0
    """Tokens that it could reuse after its loads that were acknowledged; 0: none, or all of them failed."""
    transfer: int | None = None
    """Transfer that it waits for."""
    arrived_step: int = 0
    first_token_step: int | None = None

    @property
    def outputs(self) -> list[int]:
        """Generated tokens so far."""
        return self.tokens[len(self.prompt) :]

    @property
    def done(self) -> bool:
        """Whether everything was generated."""
        return len(self.tokens) >= len(self.prompt) + self.max_new

    @property
    def limit(self) -> int:
        """Largest boundary that may be reused: at least one token must be computed."""
        return len(self.tokens) - 1

    def bound(self) -> Iterator[tuple[int, int]]:
        """Yield (page, generation at bind) of every page of the tables."""
        for name, table in self.tables.items():
            for page, generation in zip(table, self.generations[name], strict=True):
                if page:
                    yield page, generation

    def keys(self) -> Chain:
        """Return the chain of keys, up to date with the tokens."""
        self.chain.extend(self.tokens)
        return self.chain
