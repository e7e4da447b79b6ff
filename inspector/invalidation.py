"""Plan and carry out an invalidation: the exact pages with their generations first, then all of them or none.

Invariant: what is taken is what was shown. A plan about prefixes is one critical section in the engine; a plan about
a whole group, state or cache is carried out in parts, each of them one critical section, so that the engine never
stands still for long. Used by ``kvctl invalidate`` and the dashboard.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from agent import jsonfile
from agent.errors import FileError, RefusedError
from agent.model.snapshot import Snapshot

from .columns import columns_of
from .format import plural
from .selection import Selection
from .selector import SelectorKind

PART_PAGES = 4096
"""Pages of one part of a bulk invalidation: about ten milliseconds of the engine's thread."""

BULK = frozenset({SelectorKind.ALL, SelectorKind.STALE, SelectorKind.GROUP, SelectorKind.STATE})
"""Selectors whose plan may be carried out in parts."""

WHOLE_GROUPS = frozenset({SelectorKind.GROUP, SelectorKind.STATE})
"""Selectors that take groups as a whole and nothing of the others."""

PLAN_VERSION = 1


class Caller(Protocol):
    """What is needed of a session."""

    def call(self, op: str, /, *, deadline_s: float = ..., **args: Any) -> dict[str, Any]:
        """Run an operation of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Exactly what an invalidation would take."""

    selector: str
    engine: tuple[int, int]
    """Pid and start ticks of the engine that it was made for."""
    epoch: int
    entries: tuple[Mapping[str, Any], ...]
    """One for each key: ``group``, ``key`` (hex), ``pages`` and their ``stamps``."""
    bulk: bool = False
    groups: tuple[int, ...] | None = None
    """Groups that it takes as a whole and alone: running requests keep what they have in all others."""
    notes: tuple[str, ...] = ()

    @property
    def pages(self) -> tuple[int, ...]:
        """Every page that it takes, rising."""
        return tuple(sorted({int(page) for entry in self.entries for page in entry["pages"]}))

    @property
    def by_group(self) -> Mapping[int, tuple[int, int]]:
        """Keys and pages of each group."""
        keys = Counter(int(entry["group"]) for entry in self.entries)
        pages: Counter[int] = Counter()
        for entry in self.entries:
            pages[int(entry["group"])] += len(entry["pages"])
        return {group: (keys[group], pages[group]) for group in sorted(keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was taken."""

    pages: int
    by_group: Mapping[int, int]
    parts: int
    skipped: int = 0
    """Pages of a bulk plan that moved before their part came: they hold something else now and were left alone."""


def make_plan(caller: Caller, snapshot: Snapshot, selection: Selection, *, deadline_s: float) -> Plan:
    """Ask the engine for keys, pages and generations of a selection.

    A page that moved between the page table and the plan is left out: it holds something else by now.
    """
    assert snapshot.pages is not None  # noqa: S101 - a selection was made from it
    stamps = columns_of(snapshot.pages).stamp
    entries: list[dict[str, Any]] = []
    moved = 0
    epoch = 0
    engine = (snapshot.engine.pid, snapshot.engine.start_ticks)
    for start in range(0, len(selection.pages), PART_PAGES):
        part = list(selection.pages[start : start + PART_PAGES])
        answer = caller.call("invalidate_plan", pages=part, deadline_s=deadline_s)
        epoch = int(answer["epoch"])
        engine = (int(answer["engine"][0]), int(answer["engine"][1]))
        wanted = set(part)
        for entry in answer["entries"]:
            named = [(page, stamp) for page, stamp in zip(entry["pages"], entry["stamps"], strict=True)]
            if all(int(stamps[page]) == stamp for page, stamp in named if page in wanted):
                entries.append(entry)
            else:
                moved += len(named)
    unique = {(int(entry["group"]), str(entry["key"])): entry for entry in entries}
    notes = list(selection.notes)
    if moved:
        notes.append(f"{plural(moved, 'page')} moved while the plan was made and are not in it")
    return Plan(
        selector=str(selection.selector),
        engine=engine,
        epoch=epoch,
        entries=tuple(unique.values()),
        bulk=selection.selector.kind in BULK,
        groups=_groups(unique.values()) if selection.selector.kind in WHOLE_GROUPS else None,
        notes=tuple(notes),
    )


def apply_plan(caller: Caller, plan: Plan, *, quarantine: bool, deadline_s: float) -> Applied:
    """Carry out a plan.

    Args:
        caller: A session with the engine that the plan was made for.
        plan: What to take.
        quarantine: Keep running requests from bringing it back before it was computed anew.
        deadline_s: For each part.

    Raises:
        RefusedError: The engine is read-only, or another one, or pages moved since the plan was made.
    """
    if not plan.bulk:
        done = _apply(caller, plan, plan.entries, quarantine=quarantine, deadline_s=deadline_s)
        return Applied(pages=int(done["removed"]), by_group=_counts(done), parts=1)
    total, skipped, parts = 0, 0, 0
    groups: Counter[int] = Counter()
    for entries in _parts(plan.entries):
        left = entries
        while left:
            try:
                done = _apply(caller, plan, left, quarantine=quarantine, deadline_s=deadline_s)
            except RefusedError as error:
                fresh = _unmoved(caller, left, deadline_s=deadline_s)
                if len(fresh) == len(left):
                    raise
                skipped += sum(len(entry["pages"]) for entry in left) - sum(len(entry["pages"]) for entry in fresh)
                left = fresh
                if not left and not total and "outdated" not in error.what:
                    raise
                continue
            total += int(done["removed"])
            groups.update(_counts(done))
            parts += 1
            break
    return Applied(pages=total, by_group=dict(groups), parts=parts, skipped=skipped)


def _apply(
    caller: Caller, plan: Plan, entries: Sequence[Mapping[str, Any]], *, quarantine: bool, deadline_s: float
) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "engine": list(plan.engine),
        "epoch": plan.epoch,
        "entries": [dict(entry) for entry in entries],
        "groups": None if plan.groups is None else list(plan.groups),
        "selector": plan.selector.partition(":")[0],
    }
    return caller.call("invalidate_apply", plan=sent, quarantine=quarantine, deadline_s=deadline_s)


def _groups(entries: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(sorted({int(entry["group"]) for entry in entries}))


def _counts(done: Mapping[str, Any]) -> dict[int, int]:
    return {int(group): int(count) for group, count in done.get("by_group", {}).items()}


def _parts(entries: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    parts: list[list[Mapping[str, Any]]] = [[]]
    size = 0
    for entry in entries:
        if size + len(entry["pages"]) > PART_PAGES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += len(entry["pages"])
    return [part for part in parts if part]


def _unmoved(caller: Caller, entries: Sequence[Mapping[str, Any]], *, deadline_s: float) -> list[Mapping[str, Any]]:
    """Return the entries that are still exactly as planned."""
    keys = [[int(entry["group"]), str(entry["key"])] for entry in entries]
    now = caller.call("invalidate_plan", keys=keys, deadline_s=deadline_s)
    held = {(int(entry["group"]), str(entry["key"])): entry for entry in now["entries"]}

    def same(entry: Mapping[str, Any]) -> bool:
        found = held.get((int(entry["group"]), str(entry["key"])))
        planned = sorted(zip(entry["pages"], entry["stamps"], strict=True))
        return found is not None and sorted(zip(found["pages"], found["stamps"], strict=True)) == planned

    return [entry for entry in entries if same(entry)]


def holders_of(snapshot: Snapshot, pages: Sequence[int]) -> tuple[str, ...]:
    """Return the requests that hold one of these pages; they go on undisturbed, only the keys go."""
    wanted = np.asarray(pages, np.int64)
    found = []
    for request in snapshot.requests or ():
        held = np.fromiter((page for table in request.tables or () for page in table), np.int64)
        if len(held) and np.isin(held, wanted).any():
            found.append(request.id)
    return tuple(found)


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan to a file that only its owner can read: its keys confirm guessed prompts."""
    body = {
        "kvctl_plan": PLAN_VERSION,
        "selector": plan.selector,
        "engine": list(plan.engine),
        "epoch": plan.epoch,
        "bulk": plan.bulk,
        "groups": None if plan.groups is None else list(plan.groups),
        "entries": [dict(entry) for entry in plan.entries],
    }
    jsonfile.write(body, path, private=True)


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        FileError: It is missing, or no plan, or of a newer version.
    """
    body = jsonfile.read(path, "plan", version=PLAN_VERSION, make="kvctl invalidate SELECTOR --save-plan FILE")
    try:
        entries = tuple(
            {
                "group": int(entry["group"]),
                "key": bytes.fromhex(entry["key"]).hex(),
                "pages": [int(page) for page in entry["pages"]],
                "stamps": [int(stamp) for stamp in entry["stamps"]],
            }
            for entry in body["entries"]
        )
        return Plan(
            selector=str(body["selector"]),
            engine=(int(body["engine"][0]), int(body["engine"][1])),
            epoch=int(body["epoch"]),
            bulk=bool(body["bulk"]),
            groups=None if body.get("groups") is None else tuple(int(group) for group in body["groups"]),
            entries=entries,
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FileError(f"{path} is a damaged plan", why="a field is missing or has another type") from error
