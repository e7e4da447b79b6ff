"""Count clean checks: every gate over a live engine in process after every step, while all happens to its cache.

Invariant: stops at the first finding of a code that is an error once on record (warnings about lost reuse are true in
such a load, and counted); a check counts for a code only where the gate looked at something.
Run as ``python -m tests.support.clean_run MODEL --checks N``; prints one JSON line: configuration, conditions of the
run, and the checks of each code. The sums of such runs are the record in ``agent/gates/record.py``. SIGTERM ends a run
early; what was checked until then counts.

The load: more requests than the pool can hold, so that it is full, pages are evicted and requests are preempted all the
time; shared prefixes cut anywhere; a request is aborted every forty steps; requests that skip reading.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from typing import Any

from agent.gates.catalogue import CATALOGUE
from agent.gates.runner import run
from agent.model.finding import Severity
from agent.model.snapshot import Level, Snapshot
from agent.session import Session
from tests.engine.live.engines import Engine, engine_in_process
from tests.support import engine_env
from tests.support.models import write_model

PAGES = {"llama": 60, "gemma3": 130, "gpt_oss": 140, "mistral": 80}
KEPT = 10
"""Requests that are kept waiting or running."""


class Load:
    """Random requests, more than the pool holds.

    Args:
        engine: The engine.
        rng: Source of all choices.
    """

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine = engine
        self.aborted = 0
        self.added = 0
        self._rng = rng
        self._texts = [[rng.randint(1, 250) for _ in range(700)] for _ in range(5)]

    def step(self) -> None:
        """Fill up, sometimes abort one, and step the engine."""
        rng, core = self._rng, self.engine.core
        while len(core.scheduler.requests) < KEPT:
            self._add()
        if rng.random() < 1 / 40:
            name = rng.choice(list(core.scheduler.requests))
            self.engine.llm.abort_request([name], internal=True)
            self.aborted += 1
        self.engine.step()
        self.engine.results.clear()

    def _add(self) -> None:
        rng = self._rng
        self.added += 1
        ids = rng.choice(self._texts)[: rng.randint(20, 640)] + [rng.randint(1, 250) for _ in range(rng.randint(1, 90))]
        options: dict[str, Any] = {"prompt_logprobs": 0} if rng.random() < 0.03 else {}
        self.engine.add(f"r{self.added}", ids, rng.randint(4, 160), **options)


class Checks:
    """Checks so far, by code."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        """Findings of other codes."""
        self.done = 0
        self.full = 0
        """Checks of a pool of which more than 95 % was held or cached."""
        self._previous: Snapshot | None = None

    def check(self, session: Session) -> None:
        """Run every gate once.

        Raises:
            SystemExit: There was a finding; its sentence is printed.
        """
        session.poll()
        snapshot = session.snapshot(free_list=True, lookups=4)
        results = run(snapshot, previous=self._previous)
        self._previous = snapshot
        findings = [finding for result in results for finding in result.findings]
        wrong = [f"{one.code}: {one.sentence}" for one in findings if CATALOGUE[one.code].severity is Severity.ERROR]
        if wrong:
            raise SystemExit(f"after {self.done} clean checks: {wrong}")
        self.losses.update(one.code for one in findings)
        for result in results:
            looked = (code for code, objects in result.looked.items() if objects)
            self.counts.update(code for code in looked if CATALOGUE[code].severity is Severity.ERROR)
        self.done += 1
        self.full += fullness(snapshot) > 0.95


def fullness(snapshot: Snapshot) -> float:
    """Return the part of the pool that is held or cached."""
    pages = snapshot.pages
    if pages is None or pages.references is None:
        raise SystemExit("the page table has no references")
    counts, tokens = pages.references, pages.tokens
    return sum(bool(counts[page] or tokens[page]) for page in range(1, pages.count)) / (pages.count - 1)


def main() -> None:
    """Run one model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=PAGES)
    parser.add_argument("--checks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    engine_env.prepare_in_process()
    with engine_env.short_folder("kvctl-") as folder:
        model = write_model(folder, options.model, seed=1)
        with engine_in_process(model, pages=PAGES[options.model]) as engine, engine.session() as session:
            session.follow(Level.REFERENCES)
            load, checks, begin = Load(engine, random.Random(options.seed)), Checks(), time.monotonic()
            stopped: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
            while checks.done < options.checks and not stopped:
                load.step()
                checks.check(session)
            counters = session.call("counters")["counters"]
            details = dict(session.overview().engine.details)
    line = {
        "model": options.model,
        "configuration": details,
        "checks": checks.done,
        "full": checks.full,
        "requests": load.added,
        "aborted": load.aborted,
        "resumed": counters['reuse_decisions{phase="resumed"}'],
        "seconds": round(time.monotonic() - begin),
        "losses": dict(sorted(checks.losses.items())),
        "codes": dict(sorted(checks.counts.items())),
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
