"""Random look-ups on vLLM's real cache manager against the resume rules, and a table of how hard they were.

Invariant: the engine's answer and ours come from the same moment of the same pool. Needs vLLM; only ``tests/engine``
imports this.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

from agent.engines.vllm.groups import geometry_of
from agent.engines.vllm.pool import VllmPool
from agent.model.decision import Hit
from agent.model.groups import Geometry
from agent.model.snapshot import Level
from agent.model.states import KEY_BYTES, State
from agent.probe.feed import Feed
from agent.resume import Presence, evaluate, expected_engine_hit, explain_difference, possible
from agent.table import RingReader
from tests.support import vllm_groups as groups
from tests.support.vllm_worlds import Key, KeySet, Traffic, World, keys_of, plant, plant_keys, random_evictions

LOOKUPS_PER_STATE = 8
KINDS = ("full", "window", "tail", "chunked", "recurrent")


def choose_setup(random: Random) -> groups.Setup:
    """Pick a real model's groups, or make some up; a third each way of keeping windows."""
    draw, keep = random.random(), random.choice
    if draw < 0.18:
        return groups.deepseek_v4(keep([None, 0, 512]))
    if draw < 0.26 and groups.HAS_BOUNDED_REPLAY:
        return groups.deepseek_v4_1(keep([None, 0, 512]))
    if draw < 0.30:
        return groups.gemma3(keep([None, 0, 256]))
    if draw < 0.34:
        return groups.gpt_oss(keep([None, 0, 256]), longest=800)
    if draw < 0.46:
        return groups.llama4(longest=1200)
    if draw < 0.51:
        return groups.mamba_hybrid(keep([None, 0, 256]), longest=1000)
    if draw < 0.56:
        return groups.mamba_hybrid(keep([None, 0, 256]), unit=16, longest=1000)
    return groups.random_setup(random)


@dataclass(slots=True)
class Tally:
    """What the look-ups of a run were like."""

    lookups: int = 0
    through_feed: int = 0
    public: int = 0
    """Answers of the public ``get_computed_blocks`` of a request being admitted."""
    shapes: Counter[str] = field(default_factory=Counter)
    limiting: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    deviations: Counter[str] = field(default_factory=Counter)

    def note(self, geometry: Geometry, hit: Hit) -> None:
        """Count one look-up."""
        assert hit.usable is not None
        self.lookups += 1
        self.shapes["0 < usable < logical"] += 0 < hit.usable < hit.logical
        self.shapes["usable 0 < logical"] += hit.usable == 0 < hit.logical
        self.shapes["usable = logical > 0"] += 0 < hit.usable == hit.logical
        self.shapes["nothing cached"] += hit.logical == 0
        own = [tokens for tokens in hit.per_group if tokens is not None]
        self.shapes["below every group's own hit"] += hit.usable < min(own, default=0)
        if hit.limiting_group is not None:
            group = geometry.groups[hit.limiting_group]
            self.limiting["tail" if group.state is State.TAIL else str(group.kind)] += 1

    def share(self, counter: Counter[str], name: str) -> float:
        """Share of all look-ups, 0 .. 1."""
        return counter[name] / max(1, self.lookups)

    def lines(self) -> list[str]:
        """Render the table."""
        rows = [f"look-ups {self.lookups:,}, {self.through_feed:,} through the feed, {self.public:,} at an admission"]
        for title, counter in (("", self.shapes), ("limiting: ", self.limiting), ("groups of ", self.families)):
            rows += [f"  {title}{name:32s} {count:8,d} {count / max(1, self.lookups):7.1%}"
                     for name, count in sorted(counter.items(), key=lambda item: -item[1])]  # fmt: skip
        named = ", ".join(f"{name} {count}" for name, count in sorted(self.deviations.items())) or "none"
        return [*rows, f"  engine departs from the rules, by name: {named}"]


class DisagreementError(AssertionError):
    """The engine's answer is not what the rules and the named deviations give."""


@dataclass(slots=True)
class Run:
    """One run of trials from one seed."""

    seed: int
    tally: Tally = field(default_factory=Tally)

    def state(self, number: int) -> None:
        """Build one cache state and look up in it; the state depends on the seed and its number only."""
        random = Random(f"{self.seed}/{number}")
        world = World(choose_setup(random), random)
        geometry = geometry_of(world.manager)
        where = f"seed {self.seed}, state {number}"
        if number % 4 == 0:
            with closing(FeedTable(world)) as table:
                self._fill(world, geometry, where)
                self._look_up(world, geometry, table.presence(), where)
                self.tally.through_feed += LOOKUPS_PER_STATE
        else:
            self._fill(world, geometry, where)
            self._look_up(world, geometry, KeySet(keys_of(world.manager)), where)

    def _fill(self, world: World, geometry: Geometry, where: str) -> None:
        random = world.random
        if random.random() < 0.4:
            traffic = Traffic(world)
            for _ in range(random.randint(2, 6)):
                request = traffic.draw()
                chain = [digest[:KEY_BYTES] for digest in request.block_hashes]
                held, limit = KeySet(keys_of(world.manager)), request.num_tokens - 1
                answer = traffic.run(request)
                self._compare(world, geometry, held, chain, limit, answer, where)
                self.tally.public += 1
        else:
            plant(world, random.randint(1, 3))
        random_evictions(world, random.choice([0, 1, 2, 4, 8]))

    def _look_up(self, world: World, geometry: Geometry, presence: Presence, where: str) -> None:
        name = world.setup.name + (" + draft" if world.setup.drafts else "")
        for _ in range(LOOKUPS_PER_STATE):
            digests, limit = world.lookup()
            answer = world.manager.coordinator.find_longest_cache_hit(digests, limit)[1]
            chain = [digest[:KEY_BYTES] for digest in digests]
            hit = self._compare(world, geometry, presence, chain, limit, answer, where)
            self.tally.note(geometry, hit)
            self.tally.families[name] += 1

    def _compare(
        self,
        world: World,
        geometry: Geometry,
        presence: Presence,
        chain: Sequence[bytes],
        limit: int,
        answer: int,
        where: str,
    ) -> Hit:
        hit = evaluate(geometry, chain, presence, limit=limit)
        if hit.usable != answer:
            names = explain_difference(geometry, chain, presence, limit=limit, answer=answer)
            self.tally.deviations["+".join(sorted(names or ["UNNAMED"]))] += 1
        if not possible(geometry):
            agree = hit.usable == answer
        else:
            agree = expected_engine_hit(geometry, chain, presence, limit=limit) == answer
        if not agree:
            raise DisagreementError(_report(world, geometry, presence, chain, limit, where))
        return hit


class KnownPool(VllmPool):
    """A pool whose source was found complete before: reading it anew for each of thousands of pools takes too long."""

    def refuse(self) -> str | None:
        """Refuse nothing."""
        return None


@dataclass(slots=True)
class FeedTable:
    """The table of a joined reader, in this process: hooks, ring and reader are the real ones."""

    world: World
    feed: Feed = field(init=False)
    reader: RingReader = field(init=False)

    def __post_init__(self) -> None:
        coordinator = self.world.manager.coordinator
        port = KnownPool(self.world.manager.block_pool, coordinator.single_type_managers)
        self.feed = Feed(port, ring_bytes=1 << 20)
        self.feed.install()
        self.feed.join(Level.CONTENT)
        assert self.feed.ring_fd is not None
        self.reader = RingReader(self.feed.ring_fd, on_bootstrap=self.feed.request_bootstrap)
        self.reader.restart()

    def presence(self) -> Presence:
        """Cut, read up to the end of the ring, and return the keys: a safe point."""
        while self.feed.idle() or self.reader.behind or not self.reader.complete:
            self.reader.poll()
        found: Presence = self.reader.table.presence()
        return found

    def close(self) -> None:
        """Take the hooks out again."""
        self.reader.close()
        self.feed.uninstall()


def _report(world: World, geometry: Geometry, presence: Any, chain: Sequence[bytes], limit: int, where: str) -> str:
    """Reduce a disagreement to the fewest pages that show it, on a fresh manager."""
    unit = geometry.hash_unit
    held = [(int(g.id), i) for g in geometry.groups for i, key in enumerate(chain) if presence.has(g.id, key)]
    digests = [key + bytes(16) for key in chain]

    def answers(pages: list[tuple[int, int]]) -> tuple[int, int]:
        manager = world.setup.manager()
        for group in {group for group, _ in pages}:
            plant_keys(manager, group, [((i + 1) * unit, digests[i]) for owner, i in pages if owner == group])
        found: frozenset[Key] = keys_of(manager)
        ours = expected_engine_hit(geometry, chain, KeySet(found), limit=limit)
        return manager.coordinator.find_longest_cache_hit(list(digests), limit)[1], ours

    for page in list(held):
        fewer = [other for other in held if other != page]
        engine, ours = answers(fewer)
        if engine != ours:
            held = fewer
    engine, ours = answers(held)
    described = "\n".join(f"    {group}" for group in geometry.groups)
    pages = [(group, (i + 1) * unit) for group, i in held]
    return (
        f"{where}: engine {engine}, rules with all named deviations {ours}, usable "
        f"{evaluate(geometry, chain, presence, limit=limit).usable}; limit {limit}, {len(chain)} keys a {unit} tokens\n"
        f"  {world.setup}\n{described}\n  fewest pages, as (group, boundary): {pages}\n"
        f"  again: KVCTL_SEED={where.split()[1].rstrip(',')} python -m pytest tests/engine/property"
    )
