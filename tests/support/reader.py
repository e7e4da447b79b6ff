"""A reader of the feed as a process of its own: joins, says so, follows until its input ends, says what it saw.

Invariant: reads only. Run as ``python -m tests.support.reader PID [content|references]``; writes ``joined``, at the end
one JSON line.
"""

import json
import select
import sys

from agent.model.snapshot import Level
from agent.session import open_target
from tests.support.waiting import wait_for


def main(pid: int, level: Level) -> None:
    """Follow the engine of process ``pid``."""
    decisions = 0
    with open_target(pid, deadline_s=60.0) as session:
        session.follow(level, deadline_s=300.0)
        sys.stdout.write("joined\n")
        sys.stdout.flush()

        def ended() -> bool:
            nonlocal decisions
            decisions += len(session.poll())
            ready, _, _ = select.select([sys.stdin], [], [], 0)
            return bool(ready) and not sys.stdin.readline()

        wait_for(ended, "the test to close this reader's input", deadline_s=3600.0)
    sys.stdout.write(json.dumps({"decisions": decisions}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), Level(sys.argv[2] if len(sys.argv) > 2 else "references"))
