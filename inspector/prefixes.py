"""The prefixes of a snapshot: what each is worth, state by state, and how they branch.

Invariant: a prefix is the end of a chain of keys that the table proves; a piece whose beginning is gone is a fragment
and is counted, not shown as a prefix. Used by the prefix views and by the dashboard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent.model.groups import Group
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, Requirement, ResumeKind, State, Status, Tokens

from .columns import I64
from .nodes import GONE, Nodes, build
from .placing import Placed, held, place
from .stranded import Reach, reach, stranded_pages
from .symbols import FIVE, worst

SHORT_KEY = 12
"""Hexadecimal digits of a key that tables show: 48 bits, unique among a million keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRow:
    """One cached prefix."""

    node: int
    key: bytes
    tokens: Tokens
    """Position of the last token that any group holds a page for."""
    logical: Tokens
    """Longest boundary on its chain that the engine could hit and at which any group holds a page."""
    usable: Tokens | None
    """Longest boundary at which every required group can resume; None where the rules do not cover this engine."""
    shared: Tokens
    """Tokens that it shares with the row above; 0 starts a new tree."""
    pages: int
    """Pages on its chain, over all groups; shared ones count here too."""
    stranded: int | None
    groups: Mapping[GroupId, Status]
    """Status of each group at the logical boundary."""
    states: Mapping[State, Status | None]
    """Status of each of the five states there; None: this engine has no such state."""

    @property
    def limiting(self) -> GroupId | None:
        """The first required group that keeps the prefix from being used as far as it is cached."""
        if self.usable is not None and self.usable >= self.logical:
            return None
        bad = [group for group, status in self.groups.items() if status not in {Status.READY, Status.UNKNOWN}]
        if (
            not bad and self.usable is not None
        ):  # it is short for certain, by a group of which a part has no known place
            bad = [group for group, status in self.groups.items() if status is Status.UNKNOWN]
        return bad[0] if bad else None


class Prefixes:
    """The prefixes of one snapshot, computed once.

    Args:
        snapshot: A snapshot with a page table.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Build the graph of keys."""
        self.snapshot = snapshot
        nodes = build(snapshot)
        if nodes is None:
            raise ValueError("the snapshot has no page table")
        self.nodes: Nodes = nodes

    @cached_property
    def reach(self) -> Reach | None:
        """How far each node can be used; None where the rules do not cover this geometry."""
        return reach(self.nodes)

    @cached_property
    def stranded(self) -> tuple[int | None, ...]:
        """Stranded pages of each group; None where it cannot be told."""
        return tuple(None if doubtful is None or doubtful else sure for sure, doubtful in self.stranded_bounds)

    @cached_property
    def stranded_bounds(self) -> tuple[tuple[int, int | None], ...]:
        """For each group pages that are certainly stranded, and those of which nobody can tell; None: of none."""
        if self.reach is None:
            return ((0, None),) * len(self.snapshot.geometry.groups)
        return tuple(stranded_pages(self.nodes, self.reach))

    @property
    def unlinked(self) -> int:
        """Pages whose place in a chain nobody knows: they were cached before a reader joined."""
        return int((self.nodes.unlinked & (self.nodes.pages > 0)).sum())

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Ends of prefixes, longest first; fragments left out."""
        alignment = self.snapshot.geometry.alignment
        return tuple(int(tip) for tip in self.nodes.tips if self.nodes.reaches_boundary(int(tip), alignment))

    @property
    def fragments(self) -> int:
        """Ends of chains whose beginning is not in the table or that are shorter than one hit."""
        return len(self.nodes.tips) - len(self.ends)

    @property
    def fragment_groups(self) -> tuple[GroupId, ...]:
        """Groups of which fragments end in a page."""
        ends = set(self.ends)
        tips = [int(tip) for tip in self.nodes.tips if int(tip) not in ends]
        there = self.nodes.pages[:, tips].sum(axis=1) > 0
        return tuple(group.id for group in self.snapshot.geometry.groups if there[group.id])

    @cached_property
    def _tables(self) -> tuple[I64, ...]:
        return held(self.snapshot, self.nodes)

    def placed(self, chain: Mapping[Tokens, int]) -> Placed:
        """Return a chain with what a decision or a request's table places on it."""
        return place(self.snapshot, self.nodes, chain, self._tables)

    def rows(self, limit: int | None = None) -> list[PrefixRow]:
        """Return the longest prefixes in the order of their tree: those that share a beginning stand together."""
        placed = [self.placed(self.nodes.ancestors(node)) for node in self.ends[:limit]]
        known = {max(item.chain.items()): item.known for item in placed}
        order = _by_tree([item.chain for item in placed])
        rows: list[PrefixRow] = []
        before: Mapping[Tokens, int] = {}
        for chain in order:
            common = set(chain.items()) & set(before.items())
            shared = max((at for at, _ in common), default=0)
            rows.append(self.row(chain, shared=shared, known=known[max(chain.items())]))
            before = chain
        return rows

    def row(self, chain: Mapping[Tokens, int], *, shared: Tokens = 0, known: Tokens = 0) -> PrefixRow:
        """Return what the prefix with this chain (node by token position) is worth.

        Args:
            chain: Its nodes.
            shared: Tokens that it shares with the row above.
            known: Up to here every key is known: what is not in ``chain`` is not cached.
        """
        end = max(chain)
        node = chain[end]
        logical = self._logical(chain)
        groups = {group.id: self.status(group, chain, logical, known) for group in self.snapshot.geometry.groups}
        found = self.reach
        usable = None if found is None else found.usable(chain)
        if usable is not None and self._unplaced(chain, usable, known):
            usable = None
        pages = self.nodes.pages
        held = [(at, int(pages[:, up].sum())) for at, up in chain.items()]
        stranded = None
        if found is not None and not any(found.doubtful[up] for up in chain.values()):
            stranded = sum(number for at, number in held if not found.covered[chain[at]])
        return PrefixRow(
            node=node,
            key=self.nodes.key[node].tobytes(),
            tokens=end,
            logical=logical,
            usable=usable,
            shared=shared,
            pages=sum(number for _, number in held),
            stranded=stranded,
            groups=groups,
            states=self._states(groups),
        )

    def status(self, group: Group, chain: Mapping[Tokens, int], boundary: Tokens, known: Tokens = 0) -> Status:
        """Return how much of what ``group`` needs at ``boundary`` is there."""
        if group.kind is ResumeKind.UNKNOWN:
            return Status.UNKNOWN
        needed = needed_ends(group, boundary)
        present = [chain[at] for at in needed if at in chain and self.nodes.pages[group.id, chain[at]] > 0]
        ready = [node for node in present if self.nodes.usable_pages[group.id, node] > 0]
        if len(ready) == len(needed):
            return Status.READY
        missing = self.missing_ends(group, chain, needed, known)
        if len(ready) == len(present) and not missing:
            return Status.UNKNOWN
        if any(self.nodes.moving_pages[group.id, node] > 0 for node in present):
            return Status.IN_TRANSIT
        if len(ready) < len(present):
            return Status.STALE
        # What nobody can place may be there: that is not called missing.
        return Status.MISSING if not present and len(missing) == len(needed) else Status.PARTIAL

    def missing_ends(
        self, group: Group, chain: Mapping[Tokens, int], needed: Sequence[Tokens], known: Tokens = 0
    ) -> list[Tokens]:
        """Return the ends of needed blocks that are certainly not cached: not those that nobody can place."""
        pages, parent = self.nodes.pages[group.id], self.nodes.parent[group.id]
        missing = []
        for at in needed:
            if at in chain:
                if pages[chain[at]] == 0:
                    missing.append(at)
            elif at <= known or ((child := chain.get(at + group.block_size)) is not None and parent[child] == GONE):
                missing.append(at)
        return missing

    def _unplaced(self, chain: Mapping[Tokens, int], usable: Tokens, known: Tokens) -> bool:
        """Return whether pages that nobody can place may make this prefix usable beyond ``usable``."""
        geometry = self.snapshot.geometry
        unit = geometry.alignment
        first = max(usable, known) // unit * unit + unit
        places = [at for at in range(first, max(chain), unit) if at not in chain]
        return any(
            all(
                at not in self.missing_ends(group, chain, [at], known)
                for group in geometry.groups
                if group.requirement is Requirement.REQUIRED
            )
            for at in places
        )

    def _logical(self, chain: Mapping[Tokens, int]) -> Tokens:
        alignment = self.snapshot.geometry.alignment
        return max((at for at in chain if at % alignment == 0), default=0)

    def _states(self, groups: Mapping[GroupId, Status]) -> dict[State, Status | None]:
        geometry = self.snapshot.geometry
        found: dict[State, Status | None] = {}
        for state in FIVE:
            of_state = [
                groups[group.id]
                for group in geometry.groups
                if state in group.states and group.requirement is Requirement.REQUIRED
            ]
            found[state] = worst(of_state)
        if self.snapshot.tiers is None:
            found[State.ON_DISK] = Status.UNKNOWN
        return found


def needed_ends(group: Group, boundary: Tokens) -> list[Tokens]:
    """Return the token positions at which the blocks end that ``group`` needs to resume at ``boundary``.

    The rules of ``model.md`` without draft margin; :mod:`agent.resume` decides, this only names the blocks.
    """
    block = group.block_size
    match group.kind:
        case ResumeKind.WINDOW:
            first = max(0, boundary - (group.window_past_tokens or 0))
        case ResumeKind.CHUNKED:
            first = boundary // (group.chunk_tokens or block) * (group.chunk_tokens or block)
        case ResumeKind.RECURRENT:
            first = max(0, boundary - 1)
        case ResumeKind.NONE:
            first = boundary
        case _:
            first = 0
    return list(range(first // block * block + block, boundary + 1, block)) if first < boundary else []


def _by_tree(chains: list[dict[Tokens, int]]) -> list[dict[Tokens, int]]:
    """Put chains that share a beginning next to each other, the longest first."""
    order: list[dict[Tokens, int]] = []
    rest = sorted(chains, key=lambda chain: -max(chain))
    while rest:
        first = rest.pop(0)
        order.append(first)
        items = set(first.items())
        family = [chain for chain in rest if items & set(chain.items())]
        rest = [chain for chain in rest if not items & set(chain.items())]
        order.extend(sorted(family, key=lambda chain: -max((at for at, _ in items & set(chain.items())))))
    return order
