"""Plans and their execution: take a prefix out of the cache, exactly as planned or not at all.

Invariant: check and act are one job at one safe point; a plan made for another engine instance, or one of whose pages
moved, is refused untouched. Eviction goes by key and takes every page under it. Engine's thread.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import paths
from ..errors import RefusedError, UsageError

if TYPE_CHECKING:
    from .lifecycle import Probe

PAGES_SHOWN = 50

UNNAMED = "unknown"
SELECTORS = ("hash", "request", "tokens", "page", "group", "state", "stale", "all", UNNAMED)
"""Kinds of selector that pages are counted by; a plan that names none is counted as the last."""


class Changes:
    """Plan and apply.

    Args:
        probe: Whose engine it is.
    """

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._invalidated = dict.fromkeys(SELECTORS, 0)
        self.refused_plans = 0

    def took(self, selector: str, pages: int) -> None:
        """Count pages that were taken out, by the kind of selector that named them."""
        self._invalidated[selector if selector in self._invalidated else UNNAMED] += pages

    def read(self) -> dict[str, float]:
        """Return the counters by catalogue name. Any thread."""
        return {f'invalidated_pages{{selector="{name}"}}': pages for name, pages in self._invalidated.items()}

    def plan(self, pages: Sequence[int], keys: Iterable[tuple[int, bytes]]) -> dict[str, Any]:
        """Name what a change would take: every key of the pages, and every page of those keys, with their stamps."""
        adapter = self._probe.adapter
        wanted = {*keys, *adapter.keys_of(pages)}
        found = adapter.pages_of(wanted)
        # A page may carry a second key (partial hits) that goes with it: the plan has to name that one, too.
        while more := adapter.keys_of({page for held in found.values() for page in held}) - wanted:
            wanted |= more
            found = {**found, **adapter.pages_of(more)}
        entries = [
            {
                "group": group,
                "key": key.hex(),
                "pages": held,
                "stamps": adapter.stamps(held),
            }
            for (group, key), held in sorted(found.items())
            if held
        ]
        return {
            "engine": [os.getpid(), paths.start_ticks(os.getpid()) or 0],
            "epoch": self._probe.cut(),
            "entries": entries,
            "missing": [[group, key.hex()] for group, key in sorted(wanted) if not found.get((group, key))],
        }

    def apply(self, plan: Mapping[str, Any], *, uid: int, pid: int, quarantine: bool) -> dict[str, Any]:
        """Evict exactly what the plan names.

        Raises:
            RefusedError: The plan is for another engine, or pages moved since; ``why`` names them. Nothing is changed.
        """
        entries, groups = self._checked(plan), self._groups(plan)
        moved = self._moved(entries)
        planned = sum(len(entry["pages"]) for entry in entries)
        log = self._probe.audit_log
        if moved:
            self.refused_plans += 1
            log.write(uid, pid, "invalidate", {"planned": planned, "result": "refused", "moved": moved[:PAGES_SHOWN]})
            raise RefusedError(
                f"the plan is outdated: {len(moved)} pages moved since it was made",
                why="pages " + ", ".join(map(str, moved[:PAGES_SHOWN])),
                next_step="make a new plan; kvctl explain KV521 says why",
            )
        log.write(uid, pid, "invalidate", {"planned": planned, "result": "begun"})
        keys = [(int(entry["group"]), bytes.fromhex(entry["key"])) for entry in entries]
        removed = self._probe.adapter.evict(keys, quarantine=quarantine, groups=groups)
        total = sum(removed.values())
        self.took(str(plan.get("selector")), total)
        try:
            log.write(uid, pid, "invalidate", {"planned": planned, "removed": total, "result": "done"})
        except (RefusedError, OSError) as error:
            # It is done, and "begun" is in the log: an error now would say that nothing was changed.
            self._probe.guard.last_error = f"audit log: {error}"[:500]
        return {
            "removed": total,
            "by_group": {str(group): count for group, count in removed.items()},
            "epoch": self._probe.cut(),
            "quarantined": quarantine,
            "stamp": 0 if self._probe.feed is None else self._probe.feed.stamps.mark,
        }

    def done(self, plan: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Remember what a plan took, so that whoever misses it can be told why. Probe's thread."""
        keys = [(int(entry["group"]), bytes.fromhex(entry["key"])) for entry in plan["entries"]]
        self._probe.ghost.take_out(keys, result.pop("stamp"))
        return result

    @staticmethod
    def _checked(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        engine, entries = plan.get("engine"), plan.get("entries")
        if engine != [os.getpid(), paths.start_ticks(os.getpid()) or 0]:
            raise RefusedError("the plan was made for another engine", next_step="make a new plan")
        shaped = isinstance(entries, list) and all(
            isinstance(entry, dict)
            and isinstance(entry.get("key"), str)
            and isinstance(entry.get("group"), int)
            and isinstance(entry.get("pages"), list)
            and isinstance(entry.get("stamps"), list)
            and len(entry["pages"]) == len(entry["stamps"])
            for entry in entries
        )
        if not shaped or entries is None:
            raise UsageError("the plan cannot be read")
        return list(entries)

    @staticmethod
    def _groups(plan: Mapping[str, Any]) -> frozenset[int] | None:
        """Return the groups that a plan takes as a whole and alone; None for a plan about prefixes."""
        groups = plan.get("groups")
        if groups is None:
            return None
        taken = {entry["group"] for entry in plan["entries"]}
        if not isinstance(groups, list) or not all(type(group) is int for group in groups) or taken - set(groups):
            raise UsageError("the plan cannot be read", why="it takes pages of groups that it does not name")
        return frozenset(groups)

    def _moved(self, entries: list[dict[str, Any]]) -> list[int]:
        """Return pages that are not exactly as planned: gone, come, or registered anew."""
        adapter = self._probe.adapter
        keys = [(int(entry["group"]), bytes.fromhex(entry["key"])) for entry in entries]
        now = adapter.pages_of(keys)
        moved: set[int] = set()
        for entry, key in zip(entries, keys, strict=True):
            planned = dict(zip(entry["pages"], entry["stamps"], strict=True))
            held = now.get(key, [])
            found = dict(zip(held, adapter.stamps(held), strict=True))
            moved.update(page for page in planned.keys() | found.keys() if planned.get(page) != found.get(page))
        return sorted(moved)
