"""What the probe asks of an engine adapter; vLLM, SGLang and the reference engine implement it.

Invariant: types only. Everything except :meth:`Adapter.wake` is called on the engine's thread between steps (or under
the turn lock of an idle in-process engine); reads change nothing; an adapter refuses what it cannot do with
``UnsupportedError`` and lists it in :meth:`Adapter.capabilities` beforehand.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..model.evidence import Evidence
from ..model.groups import Geometry
from ..model.snapshot import Capability, EngineInfo, PoolInfo, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request as the adapter copied it: cheap to take, converted later on the probe's thread."""

    id: str
    status: str
    tokens: int
    prompt_tokens: int
    computed_tokens: int
    in_flight_tokens: int
    preemptions: int
    priority: int
    tables: tuple[list[Any], ...] | None
    """Copies of the engine's page lists, one a group; page objects never change their id."""


class Hooks(Protocol):
    """What an adapter's hooks call; implemented by ``agent.probe.lifecycle.Probe``. Engine's thread."""

    def begin_schedule(self) -> None:
        """A schedule call begins."""
        ...

    def end_schedule(self, output: object, scheduled: Iterable[str]) -> None:
        """A schedule call returned ``output``, which computes tokens of the requests ``scheduled``."""
        ...

    def dispatched(self) -> None:
        """The batch is on its way to the device: work here costs nothing on the critical path."""
        ...

    def begin_update(self, output: object, /) -> None:
        """The results of ``output`` are about to be processed."""
        ...

    def end_update(self, output: object) -> None:
        """The results of ``output`` were processed."""
        ...

    def between_steps(self, *, idle: bool) -> None:
        """Nothing of the engine runs: jobs may."""
        ...


class Adapter(Protocol):
    """One engine in this process."""

    engine: str
    """``vllm``, ``sglang`` or ``reference``."""

    def info(self) -> EngineInfo:
        """Describe the engine; called once."""
        ...

    def geometry(self) -> Geometry:
        """Describe the cache groups; called once."""
        ...

    def capabilities(self) -> tuple[Capability, ...]:
        """Say what works here, found by looking at the functions themselves, not at a version."""
        ...

    def pool_port(self) -> Any:
        """Return the ``agent.probe.port.PoolPort`` of the engine's pool."""
        ...

    def install(self, probe: Any) -> None:
        """Put in the hooks that the capabilities allow."""
        ...

    def uninstall(self) -> None:
        """Take out every hook and restore exactly what was there."""
        ...

    def wake(self) -> bool:
        """Make an idle engine pass a safe point soon. Any thread. False: the engine has no thread while it idles."""
        ...

    def idle(self) -> bool:
        """Return whether the engine has nothing to do."""
        ...

    def pool(self) -> PoolInfo:
        """Read the pool's counters."""
        ...

    def requests(self, *, tables: bool) -> list[RequestRow]:
        """Copy what the engine knows of its requests."""
        ...

    def page_ids(self, pages: Sequence[Any]) -> list[int]:
        """Return the ids of page objects. Any thread."""
        ...

    def holders(self) -> dict[int, int]:
        """Return references to pages beyond request tables: pins, deferred frees, copy-on-write, transfers."""
        ...

    def free_pages(self, after: Any | None, limit: int) -> tuple[list[int], Any | None]:
        """Walk at most ``limit`` pages of the free list from the page object ``after``; None: from the start.

        Returns:
            Page ids, and where to go on (None: the end).
        """
        ...

    def tiers(self) -> tuple[Tier, ...]:
        """Describe other tiers of the cache."""
        ...

    def evidence(self) -> Evidence:
        """Return what the adapter knows beyond the tables (capability ``evidence``)."""
        ...

    def chain(self, request: str) -> list[bytes]:
        """Return the full chained hashes of a request, one a hash unit."""
        ...

    def engine_hit(self, hashes: Sequence[bytes], limit: int) -> int:
        """Return what the engine's own finder answers for these hashes, without any effect."""
        ...

    def pages_of(self, keys: Iterable[tuple[int, bytes]]) -> Mapping[tuple[int, bytes], list[int]]:
        """Return the pages that the engine's hash table names for (group, 16-byte key)."""
        ...

    def keys_of(self, pages: Iterable[int]) -> set[tuple[int, bytes]]:
        """Return (group, 16-byte key) of every key that these pages carry."""
        ...

    def stamps(self, pages: Iterable[int]) -> list[int]:
        """Return the registration stamps of pages, the generation that a plan is checked against; 0 where unknown."""
        ...

    def evict(
        self, keys: Iterable[tuple[int, bytes]], *, quarantine: bool, groups: Collection[int] | None = None
    ) -> dict[int, int]:
        """Remove every page of these keys from the cache.

        Args:
            keys: Group and 16-byte key.
            quarantine: Keep the keys out until they are computed anew: a running request must not bring them back.
            groups: The groups that the quarantine is about, where whole groups are taken alone; None: all.

        Returns:
            How many pages each group lost.
        """
        ...

    def worker_call(self, method: str, *args: Any) -> list[Any]:
        """Run a method that the plugin registered on the workers, bounded inside them; one answer a worker."""
        ...


class HashingAdapter(Protocol):
    """An adapter with the capability ``hash_tokens``."""

    def hashing(self, tokens: Sequence[int], *, salt: str | None, lora: str | None, path: str | None) -> Any:
        """Begin to hash token ids: an object with ``advance() -> bool`` (at the end) and ``keys() -> list[bytes]``."""
        ...


class FingerprintAdapter(Protocol):
    """An adapter with the capability ``fingerprint``, or one of which only the workers do not answer."""

    def fingerprint(self) -> dict[str, Any]:
        """Return ``contract`` and ``weights`` (fields by name), ``workers`` (answers or None), ``missing`` (why)."""
        ...


class WeightsAdapter(Protocol):
    """An adapter with the capability ``weights_digest``."""

    def weights_slice(self, *, full: bool, cursors: Mapping[int, Any]) -> list[Any]:
        """Have the workers read a bounded slice of their weights, each from its cursor on; refused while they sleep."""
        ...

    def evidence(self) -> Evidence:
        """Return what is known beyond the tables, changes of the weights among it."""
        ...

    def weights_points(self) -> int:
        """Return the number of changes of weights seen so far."""
        ...

    def weights_read(self, mode: str, digest: str, *, complete: bool, loras: Mapping[int, str] | None = None) -> None:
        """Take note of what was read: all weights but adapters, and each adapter by its id."""
        ...


class TableAdapter(Protocol):
    """An adapter with the capability ``hash_table``."""

    def hash_table(self) -> list[tuple[bytes, Any]]:
        """Copy the engine's hash table: key with its group in the last byte, page objects.

        The second part is one page object, or a list of them where several pages share the key.
        """
        ...
