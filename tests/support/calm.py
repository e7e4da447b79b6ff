"""Makes vLLM's processes wait for each other asleep instead of spinning; loaded as a vLLM plugin into test servers.

Invariant: self-contained, because a copy of this file runs in server processes; changes how they wait, never what they
do. Used by ``tests.support.server``.

Engine core and worker wait in loops of ``sched_yield``. On two processors they take both, and on Linux 6.18 whoever
starts beside them has waited 40-50 s for its first second of processor time (0.5 s of work, 49 s in the run queue, with
nothing else on the machine): a command that times out then says nothing about kvctl.
"""

import os
import time

NAP_S = 20e-6
"""About what a step of the tiny models can wait for without being longer for it."""


def install() -> None:
    """Let every yield be a short sleep; the entry point of the copy that runs in server processes."""
    os.sched_yield = lambda: time.sleep(NAP_S)
