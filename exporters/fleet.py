"""All engines that an exporter reads: found, named, watched, forgotten.

Invariant: a label belongs to one engine at a time; an engine that ended is shown as down until one of its name comes
back or a quarter of an hour has passed. The main thread of ``kvctl export`` ticks it; scrapes only take readings.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from agent.discovery import Endpoint, EndpointState
from agent.model.groups import Geometry
from agent.model.snapshot import EngineInfo

from .catalogue import CATALOGUE, Reading, Sample
from .gpu import Devices
from .labels import clean_label
from .source import Analysis, Identity, Live, Rhythm, Sink, Source

FORGET_S: Final = 900.0
DEVICES_S: Final = 10.0

_Key = tuple[str, int, int]


class Fleet:
    """The engines of one exporter.

    Args:
        discover: Lists the sockets of this host.
        opener: Connects to one of them.
        version: Version of the exporter.
        sink: Receives the decisions of all engines.
        analyse: Makes further samples of a page table.
        rhythm: How often things are read.
        note: Receives sentences for the person who started the exporter.
        own_samples: Further samples of the exporter itself.
        devices: GPUs of this host.
    """

    def __init__(
        self,
        discover: Callable[[], Iterable[Endpoint]],
        opener: Callable[[Endpoint], Live],
        *,
        version: str,
        sink: Sink | None = None,
        analyse: Analysis | None = None,
        rhythm: Rhythm | None = None,
        note: Callable[[str], None] = lambda _text: None,
        own_samples: Callable[[], list[Sample]] = list,
        devices: Devices | None = None,
    ) -> None:
        self._discover = discover
        self._opener = opener
        self._version = version
        self._sink = sink
        self._analyse = analyse
        self._rhythm = rhythm
        self._note = note
        self._own_samples = own_samples
        self._devices = devices or Devices()
        self._device_samples: list[Sample] = []
        self._devices_at = 0.0
        self._sources: dict[_Key, Source] = {}
        self._names: dict[_Key, str] = {}
        self._gone: dict[str, tuple[float, Reading]] = {}
        """Label to when it went, and what is shown of it."""
        self._lock = threading.Lock()
        self._began_ns = time.time_ns()

    def tick(self) -> None:
        """Look for engines that came or went; called every few seconds."""
        now = time.monotonic()
        live = {_key(found): found for found in self._discover() if found.state is EndpointState.LIVE}
        for key in [key for key, source in self._sources.items() if key not in live or not source.alive]:
            self._retire(key, now)
        for key, endpoint in live.items():
            if key not in self._sources:
                source = self._new_source(key, endpoint)
                with self._lock:
                    self._sources[key] = source
                source.start()
        with self._lock:
            self._gone = {name: item for name, item in self._gone.items() if now - item[0] < FORGET_S}
        if now >= self._devices_at:
            self._devices_at = now + DEVICES_S
            self._device_samples = self._devices.samples()

    def readings(self) -> tuple[Reading, ...]:
        """Return the latest reading of every engine, and last that of the exporter itself. Any thread."""
        with self._lock:
            sources = list(self._sources.values())
            gone = {name: item[1] for name, item in self._gone.items()}
        found = [reading for source in sources if (reading := source.reading) is not None]
        names = {reading.engine for reading in found}
        return (*found, *(item for name, item in gone.items() if name not in names), self._own())

    @property
    def count(self) -> int:
        """Engines that are read."""
        return len(self._sources)

    def close(self) -> None:
        """Stop reading."""
        for source in self._sources.values():
            source.ask_to_stop()
        for source in self._sources.values():
            source.stop()
        self._devices.close()

    # ----------------------------------------------------------------- inside

    def _new_source(self, key: _Key, endpoint: Endpoint) -> Source:
        return Source(
            lambda: self._opener(endpoint),
            lambda info, geometry: self._identify(key, info, geometry),
            sink=self._sink,
            analyse=self._analyse,
            rhythm=self._rhythm,
            note=self._note,
        )

    def _retire(self, key: _Key, now: float) -> None:
        with self._lock:
            source = self._sources.pop(key)
            name = self._names.pop(key, None)
            last = source.reading
            if name is not None and last is not None:
                down = (Sample(metric=CATALOGUE["up"], value=0),)
                self._gone[name] = (now, _with_samples(last, down))
        source.ask_to_stop()
        if name is not None:
            self._note(f"engine {name} is gone")

    def _identify(self, key: _Key, info: EngineInfo, geometry: Geometry) -> Identity:
        """Name an engine. Any source's thread."""
        with self._lock:
            name = self._names.get(key)
            if name is None:
                taken = set(self._names.values())
                name = clean_label(info.name or info.model)
                if info.data_parallel_rank:
                    name = f"{name}/dp{info.data_parallel_rank}"
                if name in taken:
                    name = f"{name}@{info.pid}"
                if name in taken:
                    name = f"{name}.{key[2]}"
                self._names[key] = name
                self._gone.pop(name, None)
        return Identity(
            engine=name, model=clean_label(info.model), start_ns=started_ns(info), info=info, geometry=geometry
        )

    def _own(self) -> Reading:
        build = Sample(metric=CATALOGUE["build_info"], labels=(clean_label(self._version),), value=1)
        return Reading(
            exporter_start_ns=self._began_ns,
            taken_ns=time.time_ns(),
            samples=(build, *self._own_samples(), *self._device_samples),
        )


def _key(endpoint: Endpoint) -> _Key:
    return str(endpoint.path), endpoint.start_ticks, endpoint.part


def _with_samples(reading: Reading, samples: tuple[Sample, ...]) -> Reading:
    return Reading(
        engine=reading.engine,
        model=reading.model,
        start_ns=reading.start_ns,
        exporter_start_ns=reading.exporter_start_ns,
        taken_ns=time.time_ns(),
        samples=samples,
        attributes=reading.attributes,
    )


def started_ns(info: EngineInfo) -> int:
    """Return the wall clock at which an engine's process started: boot time and the ticks since then."""
    boot_s = 0
    for line in Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("btime "):
            boot_s = int(line.split()[1])
    ticks = info.start_ticks / os.sysconf("SC_CLK_TCK")
    return min(time.time_ns(), int((boot_s + ticks) * 1e9))
