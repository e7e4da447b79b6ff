"""Which engines of this host an exporter reads.

Invariant: an engine is asked for its name once; what cannot be reached is asked again at the next look. Called by
``kvctl export``, whose main thread alone may wait for an engine.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from agent import paths
from agent.discovery import Endpoint, EndpointState, discover, endpoint_at
from agent.errors import KvctlError, TargetError

from .source import Live

Discover = Callable[[], list[Endpoint]]


def choose(
    opener: Callable[[Endpoint], Live],
    *,
    pid: int | None = None,
    name: str | None = None,
    socket: Path | None = None,
    everything: Callable[[], Iterable[Endpoint]] = discover,
) -> Discover:
    """Return a function that lists the engines that are meant: of one process, name or socket, or all of this host."""
    if socket is not None:
        return lambda: _at(socket)
    if pid is not None:
        return lambda: [found for found in everything() if pid in {found.pid, *paths.ancestors(found.pid)}]
    if name is not None:
        return _ByName(opener, name, everything)
    return lambda: list(everything())


def _at(socket: Path) -> list[Endpoint]:
    try:
        return [endpoint_at(socket)]
    except TargetError:
        return []


class _ByName:
    """Engines that serve a name, those that come later among them."""

    def __init__(
        self, opener: Callable[[Endpoint], Live], name: str, everything: Callable[[], Iterable[Endpoint]]
    ) -> None:
        self._opener = opener
        self._name = name
        self._everything = everything
        self._known: dict[tuple[Path, int], bool] = {}

    def __call__(self) -> list[Endpoint]:
        live = [found for found in self._everything() if found.state is EndpointState.LIVE]
        self._known = {key: known for key, known in self._known.items() if key in {_key(found) for found in live}}
        return [found for found in live if self._fits(found)]

    def _fits(self, endpoint: Endpoint) -> bool:
        key = _key(endpoint)
        if key not in self._known:
            try:
                session = self._opener(endpoint)
            except KvctlError:
                return False
            self._known[key] = self._name in {session.info.name, session.info.model}
            session.close()
        return self._known[key]


def _key(endpoint: Endpoint) -> tuple[Path, int]:
    return endpoint.path, endpoint.start_ticks
