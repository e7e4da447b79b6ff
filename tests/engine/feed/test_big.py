"""One million pages, DeepSeek-V4's groups, 32k prompts, and no room in /dev/shm."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.engines.vllm.pool import VllmPool
from agent.feedformat import HEADER_BYTES
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.probe.ring import Ring
from agent.probe.scan import FLOOR_PAGES
from tests.support.cache_core import Core, make_core
from tests.support.feed_host import FeedHost

pytestmark = pytest.mark.engine

PAGES = 1 << 20
PROMPT = 32_768
CHUNK = 8192
DECODING = 4
ADMIT_EVERY = 16
READER_PEAK_BYTES = 1 << 30
ROOT = Path(__file__).resolve().parents[3]


class LongPrompts:
    """A few requests with 32k prompts that half share their text."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rng = random.Random(3)
        self._text = [self._rng.randint(1, 900) for _ in range(PROMPT // 2)]
        self._live: list[Any] = []
        self._step = 0

    def schedule(self) -> list[str]:
        """One step: chunks of prompts, decoding, every now and then a new request."""
        core, manager = self._core, self._core.manager
        manager.new_step_starts()
        self._step += 1
        scheduled = []
        for request in self._live:
            if request.num_computed_tokens >= request.num_tokens:
                request.append_output_token_ids(self._rng.randint(1, 900))
            count = min(request.num_tokens - request.num_computed_tokens, CHUNK)
            assert manager.allocate_slots(request, count) is not None
            request.num_computed_tokens += count
            scheduled.append(request.request_id)
        if self._step % ADMIT_EVERY == 1:
            own = [self._rng.randint(1, 900) for _ in range(PROMPT // 2)]
            request = core.request(str(self._step), self._text + own)
            blocks, hit, boundary = manager.get_computed_blocks(request)
            request.shared_prefix_boundary = boundary
            assert manager.allocate_slots(request, CHUNK, hit, blocks) is not None
            request.num_computed_tokens = hit + CHUNK
            self._live.append(request)
            scheduled.append(request.request_id)
        while len(self._live) > DECODING:
            manager.free(self._live.pop(0))
        return scheduled


def test_a_million_pages_under_load() -> None:
    """A reader that joins a loaded engine has the exact table after one scan, in less than 1 GB."""
    core = make_core("deepseek_v4", PAGES, retention=None)
    feed = Feed(VllmPool(core.pool, core.managers))
    feed.install()
    assert feed.reason is None
    load = LongPrompts(core)
    host = FeedHost(feed)
    reader = host.start(Level.CONTENT)
    step = asked = 0
    while not asked or feed.status()["bootstrap_pages_left"]:
        step += 1
        host.serve()
        if not asked and feed.status()["bootstrap_pages_left"]:
            asked = step
        feed.before_schedule(step)
        feed.after_schedule(step, load.schedule())
        feed.shadow()
        feed.before_update(step)
        feed.after_update(step)
        assert step - (asked or step) <= PAGES // FLOOR_PAGES + 1, "a bootstrap must not starve"
    host.wait_complete(reader)
    (seen,) = host.finish()
    assert seen["complete"]
    assert seen["failed"] == seen["mismatches"] == seen["garbled"] == 0
    assert seen["index_equal"]
    assert seen["peak_bytes"] <= READER_PEAK_BYTES


def test_the_ring_takes_nothing_from_dev_shm() -> None:
    """The ring lives in another file system than /dev/shm, so that one cannot run out for the other."""
    ring = Ring(1 << 20, pages=16, key_bytes=36)
    assert os.fstat(ring.fd).st_dev != Path("/dev/shm").stat().st_dev  # noqa: S108 - not written to
    assert os.fstat(ring.fd).st_size == HEADER_BYTES + ring.capacity
    ring.close()


FULL_SHM = """
import os
from pathlib import Path
from agent.model.snapshot import Level
from agent.probe.feed import Feed
from agent.table import RingReader
from tests.support.fake_pool import FakePool
try:
    with Path("/dev/shm/filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print("full:", error.strerror)
pool = FakePool(5000)
feed = Feed(pool, ring_bytes=16 << 20)
feed.install()
feed.join(Level.CONTENT)
reader = RingReader(feed.ring_fd, on_bootstrap=feed.request_bootstrap)
reader.restart()
while feed.idle():
    reader.poll()
reader.poll()
pool.register(pool.request("one", 5), 0, 5)
feed.audit()
reader.poll()
print("exact:", reader.complete, reader.audits, reader.failed_audits)
"""


def test_the_feed_works_with_a_full_dev_shm() -> None:
    """In a mount namespace whose /dev/shm is tiny and full, a ring of 16 MiB serves an exact table.

    Needs root or unprivileged user namespaces for that mount; where neither is allowed this test fails and says so.
    """
    unshare = shutil.which("unshare")
    assert unshare is not None, "this test needs unshare (util-linux)"
    script = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$0" -c "$1"'
    rooted = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    done = subprocess.run(
        [unshare, *rooted, "--mount", "sh", "-c", script, sys.executable, FULL_SHM],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"needs root or user namespaces to mount a private /dev/shm: {done.stderr}"
    assert done.stdout.splitlines() == ["full: No space left on device", "exact: True 1 0"]
