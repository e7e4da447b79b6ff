"""The reference engine as a process of its own: traffic, the agent, faults on command.

Invariant: it ends when its standard input ends or a signal ends it, at whatever moment that comes, and takes every file
with it: nobody has to outlive it to clean up. Started by ``kvctl demo`` as ``python -P -m agent.reference.serve``;
speaks lines on standard input and output.
"""

import argparse
import json
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from .faults import EXPECTED

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class Orders:
    """What comes from outside: names of faults, and the order to end, by the end of standard input or by a signal.

    Args:
        scratch: Folder that goes at the end.
    """

    def __init__(self, scratch: Path | None) -> None:
        self.commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Names of faults to act out; None: end."""
        self._scratch = scratch
        self._serving = False
        self._lock = threading.RLock()  # a signal may come while this very thread has it

    def listen(self) -> None:
        """Begin to listen. Main thread."""
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signalled)
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def serve(self) -> None:
        """Say that from now on whoever serves ends in good order when told to; until now there was nothing to end."""
        with self._lock:
            self._serving = True

    def make(self) -> None:
        """Make the folder, unless the end has come: what ends this process removes it and lets nobody make it again."""
        with self._lock:
            if self._scratch is not None:
                self._scratch.mkdir(mode=0o700)

    def clean(self) -> None:
        """Remove the folder."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _read(self) -> None:
        known = {fault.value for fault in EXPECTED}
        # Not sys.stdin: its lock would be held by this thread for ever when a signal ends the process.
        rest = b""
        while data := os.read(0, 4096):
            *lines, rest = (rest + data).split(b"\n")
            for word in (line.decode("utf-8", "replace").strip() for line in lines):
                if word in known:
                    self.commands.put(word)
        self._end(0)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._end(128 + number)

    def _end(self, code: int) -> None:
        with self._lock:
            if not self._serving:
                self.clean()
                os._exit(code)
        self.commands.put(None)


def _log(line: str) -> None:
    with suppress(OSError):
        os.write(2, (line + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to end; prints one JSON line when ready."""
    parser = argparse.ArgumentParser(prog="reference engine", description="Serve mixed traffic with the agent in it.")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=None, help="folder to make for the disk tier, and to remove")
    parser.add_argument("--restart-every", type=float, default=0.0, metavar="S", help="lose device and host memory")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    orders = Orders(options.scratch)
    with ExitStack() as undo:
        orders.listen()
        undo.callback(orders.clean)
        orders.make()
        _serve(options, orders, undo)
    return 0


def _serve(options: argparse.Namespace, orders: Orders, undo: ExitStack) -> None:
    # Loading torch takes seconds, in which whoever started this may have gone already.
    import torch  # noqa: PLC0415 - see above

    from ..engines.reference.adapter import ReferenceAdapter  # noqa: PLC0415 - see above
    from ..probe.lifecycle import Probe  # noqa: PLC0415 - see above
    from .config import ModelConfig  # noqa: PLC0415 - see above
    from .engine import Engine  # noqa: PLC0415 - see above
    from .loop import Loop, demo_config  # noqa: PLC0415 - see above
    from .workload import Workload  # noqa: PLC0415 - see above

    orders.serve()
    torch.set_num_threads(1)
    model = ModelConfig(dtype="float32")
    disk = None if options.scratch is None else str(options.scratch / "disk")
    config = replace(demo_config(disk), device=options.device)
    engine = Engine(model, config, threaded_transfers=True)
    undo.callback(engine.close)
    probe = Probe(ReferenceAdapter(engine), log=_log)
    undo.callback(probe.stop)
    started = probe.start()
    workload = Workload(vocabulary=model.vocabulary, longest=config.max_tokens - 24, seed=options.seed)
    loop = Loop(engine, workload, rate=options.rate, commands=orders.commands, restart_s=options.restart_every)
    deaf = None if probe.server is not None else probe.standing.off.get("socket", "unknown")
    with suppress(OSError):  # nobody is there to read it: the loop ends at once
        os.write(1, json.dumps({"ready": started, "deaf": deaf}).encode() + b"\n")
    loop.run()


if __name__ == "__main__":
    sys.exit(main())
