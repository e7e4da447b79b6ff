"""Whether an engine has ended when its connection is closed."""

import os
import subprocess
import sys
from pathlib import Path

from agent import paths
from agent.client import _ended
from agent.discovery import Endpoint, EndpointState


def endpoint(pid: int) -> Endpoint:
    """The socket of a process that runs."""
    ticks = paths.start_ticks(pid)
    assert ticks is not None
    state = EndpointState.LIVE
    return Endpoint(path=Path("/nowhere"), pid=pid, start_ticks=ticks, part=0, uid=os.geteuid(), state=state)


def test_a_process_that_dies_has_ended() -> None:
    """A process closes its socket before it is gone: it is given the moment that this takes; one that stays runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as dying:
        found = endpoint(dying.pid)
        assert not _ended(found)
        dying.kill()
        assert _ended(found)
    assert _ended(found)
    assert not _ended(endpoint(os.getpid()))
