"""A load that keeps the small pool of a real server full: shared prefixes, long answers, clients that go away.

Invariant: what it did is read from the server (its metrics and its log), not from what the clients believe; leaving the
context ends every client. Used by the live tests of the gates.
"""

import contextlib
import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.model.snapshot import Snapshot
from tests.support.prompts import prompt, sibling
from tests.support.server import Server

BLOCK = 32
PAGES = 64
CLIENTS = 8
STEMS = 12
ANSWER = 64
"""Tokens of an answer: two more pages, which a full pool has only if somebody is preempted."""

ARGUMENTS = (
    *("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(PAGES), "--max-model-len", "704"),
    *("--kv-cache-metrics", "--kv-cache-metrics-sample", "1.0", "--enable-log-requests"),
)
"""Of the server: a pool for four of the clients, every eviction in its metrics, every abort in its log."""

ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "INFO"}
"""Of the server: it logs aborts at this level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a server says that it has done since it started."""

    at: float
    """Seconds of the monotonic clock."""
    evictions: int
    preemptions: int
    aborts: int
    completed: int


def counts(server: Server) -> Counts:
    """Read a server's own counters."""
    http = server.http
    return Counts(
        at=time.monotonic(),
        evictions=int(http.metric("vllm:kv_block_lifetime_seconds_count")),
        preemptions=int(http.metric("vllm:num_preemptions_total")),
        completed=int(http.metric("vllm:request_success_total")),
        aborts=server.log.read_text(encoding="utf-8", errors="replace").count(" aborted."),
    )


@dataclass(slots=True)
class Conditions:
    """Under what conditions a server was checked, as it counts them itself."""

    server: Server
    begin: Counts = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        self.begin = counts(self.server)

    def so_far(self) -> dict[str, float]:
        """Return seconds, evictions a second, preemptions, aborts and completed requests since the beginning."""
        now, begin = counts(self.server), self.begin
        seconds = now.at - begin.at
        return {
            "seconds": seconds,
            "evictions_per_second": (now.evictions - begin.evictions) / seconds,
            "preemptions": now.preemptions - begin.preemptions,
            "aborts": now.aborts - begin.aborts,
            "completed": now.completed - begin.completed,
        }


def fullness(snapshot: Snapshot) -> float:
    """Return the share of the pool's pages that are held or cached; the null page is none of them."""
    pages = snapshot.pages
    assert pages is not None
    assert pages.references is not None
    held = memoryview(pages.references).cast("B").cast("i")
    cached = memoryview(pages.tokens).cast("B").cast("I")
    null = None if snapshot.pool is None else snapshot.pool.null_page
    counted = [page for page in range(pages.count) if page != null]
    return sum(held[page] > 0 or cached[page] > 0 for page in counted) / len(counted)


def _abort(server: Server, ids: list[int]) -> None:
    """Begin a completion and go away after its first line."""
    body = {"model": "m", "prompt": ids, "max_tokens": ANSWER, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 - loopback
        server.http.base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
        answer.readline()


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Keep a server full until the context is left."""
    stop = threading.Event()

    def client(number: int) -> None:
        dice = random.Random(number)
        turn = 0
        while not stop.is_set():
            turn += 1
            stem = prompt(f"stem {dice.randrange(STEMS)}", 320)
            ids = sibling(stem, dice.randrange(64, 320), f"{number}/{turn}", dice.randrange(1, 160))
            # A request that the server drops on its way out is no failure of the load.
            with contextlib.suppress(OSError):
                if turn % 4 == 0:
                    _abort(server, ids)
                else:
                    server.http.complete(ids, tokens=ANSWER)

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
