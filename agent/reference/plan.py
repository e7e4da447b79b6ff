"""Choosing how to resume: for each boundary what is missing, which routes would bring it, and what that costs.

Invariant: a pure function of what the checks found; nothing is bound here. The cheapest exact way to the first token
wins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..model.decision import Fidelity
from ..model.states import Status
from .config import WINDOWED, EngineConfig, LayerKind, ModelConfig, Recovery
from .geometry import GroupName
from .lookup import Block, Held, StateCheck, check_compressed, check_indexer, check_tail, check_window

_TRANSFER_COST = 0.25
"""Cost of moving one page, in tokens through one layer."""

Missing = dict[GroupName, frozenset[int]]
AskFor = Callable[[Sequence[Block]], StateCheck]
"""The fifth check, for these blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to resume."""

    boundary: int
    """Tokens that need not be computed after the plan was carried out."""
    missing: Missing = field(default_factory=dict)
    """Blocks to recover by recomputing."""
    load: tuple[Block, ...] = ()
    """Blocks to bring from another tier first."""
    routes: tuple[Recovery, ...] = ()
    """Routes in the order in which they are carried out."""
    degraded: bool = False
    """Recompute the layers up to the highest one with a missing group."""
    extra_window: tuple[int, ...] = ()
    """Window blocks to bind beyond those that resuming needs: they make recomputing the tail short."""
    cost: float = 0.0
    """Tokens times layers, until the first token."""
    fidelity: Fidelity = Fidelity.EXACT
    waiting: bool = False
    """A tier has what is missing, unacknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The rules of choice.

    Args:
        model: Shapes.
        engine: Which routes are allowed.
        alignment: Unit of hits.
    """

    model: ModelConfig
    engine: EngineConfig
    alignment: int

    def _layers_of(self, name: GroupName) -> list[int]:
        kinds = {
            GroupName.COMPRESSED: {LayerKind.CSA, LayerKind.HCA},
            GroupName.FULL: {LayerKind.FULL},
            GroupName.INDEXER: {LayerKind.CSA},
            GroupName.WINDOW: set(WINDOWED),
            GroupName.CSA_TAIL: {LayerKind.CSA},
            GroupName.HCA_TAIL: {LayerKind.HCA},
            GroupName.CHECKPOINT: {LayerKind.RECURRENT},
        }[name]
        return [i for i, kind in enumerate(self.model.layers) if kind in kinds]

    def _replayable(self, top: int) -> bool:
        """A replay that does not start at 0 lacks the state of a recurrent layer below."""
        return LayerKind.RECURRENT not in self.model.layers[:top]

    def _tail(self, held: Held, blocks: Sequence[Block], window_ok: bool) -> tuple[float, tuple[int, ...]] | None:
        """Return the cost of recomputing a tail, and the extra window blocks that make it short."""
        top = max(layer for name, _ in blocks for layer in self._layers_of(name))
        if Recovery.TAIL not in self.engine.routes or not self._replayable(top):
            return None
        first = min(block * held.specs[name].block for name, block in blocks)
        last = max((block + 1) * held.specs[name].block for name, block in blocks)
        window = held.specs[GroupName.WINDOW]
        low = max(0, first - self.model.window + 1)
        before = range(low // window.block, -(-first // window.block))
        row = held.pages[GroupName.WINDOW]
        if window_ok and all(row[block] is not None for block in before):
            return (last - first) * (top + 1), tuple(before)
        below = sum(kind in WINDOWED for kind in self.model.layers[:top])
        return (last - max(0, first - below * (self.model.window - 1))) * (top + 1), ()

    def _window(self, held: Held, blocks: Sequence[Block], boundary: int) -> float | None:
        layers = self._layers_of(GroupName.WINDOW)
        if Recovery.WINDOW not in self.engine.routes or not self._replayable(layers[-1]):
            return None
        first = min(block for _, block in blocks) * held.specs[GroupName.WINDOW].block
        back = 0 if self.engine.bounded_replay else (len(layers) - 1) * (self.model.window - 1)
        return (boundary - max(0, first - back)) * (layers[-1] + 1)

    def _degrade(self, boundary: int, missing: Sequence[Block]) -> Plan | None:
        if not self.engine.degrade:
            return None
        grouped = _grouped(missing)
        top = max(layer for name in grouped for layer in self._layers_of(name))
        return Plan(
            boundary=boundary,
            missing=grouped,
            routes=(Recovery.MAP,),
            degraded=True,
            cost=boundary * (top + 1),
            fidelity=Fidelity.RECOMPUTE,
        )

    def _at(self, held: Held, boundary: int, ask: AskFor | None) -> Plan | None:
        """Return the cheapest way to resume at one boundary, without the cost of the rest of the prompt."""
        full, tail = check_compressed(held, boundary), check_tail(held, boundary)
        window, indexer = check_window(held, boundary), check_indexer(held, boundary)
        missing = full.missing + tail.missing + window.missing + indexer.missing
        if not missing:
            return Plan(boundary=boundary, routes=(Recovery.MAP,))
        load: list[Block] = []
        left: dict[str, tuple[Block, ...]] = {}
        waiting = False
        for label, check in (("full", full), ("tail", tail), ("window", window), ("indexer", indexer)):
            if check.missing and ask is not None:
                said = ask(check.missing)
                waiting |= said.status is Status.IN_TRANSIT
                if said.status is Status.READY:
                    load += check.missing
                    continue
            left[label] = check.missing
        mended = None if left.get("full") else self._mend(held, boundary, left)
        worse = (
            self._degrade(boundary, [block for blocks in left.values() for block in blocks])
            if any(left.values())
            else None
        )
        options = [plan for plan in (mended, worse) if plan is not None]
        if not options:
            return Plan(boundary=0, waiting=True) if waiting else None
        best = min(options, key=lambda plan: plan.cost)
        if not load:
            return best
        return Plan(
            boundary=boundary,
            missing=best.missing,
            load=tuple(load),
            routes=(Recovery.TRANSFER, *best.routes),
            degraded=best.degraded,
            extra_window=best.extra_window,
            cost=best.cost + _TRANSFER_COST * len(load),
            fidelity=best.fidelity,
        )

    def _mend(self, held: Held, boundary: int, left: Mapping[str, tuple[Block, ...]]) -> Plan | None:
        """Return the plan that recovers tail, window and indexer each by its own route."""
        cost, routes, fidelity = 0.0, [Recovery.MAP], Fidelity.EXACT
        extra: tuple[int, ...] = ()
        indexer, window, tail = left.get("indexer", ()), left.get("window", ()), left.get("tail", ())
        if indexer:
            if Recovery.INDEXER not in self.engine.routes:
                return None
            last = (max(block for _, block in indexer) + 1) * held.specs[GroupName.INDEXER].block
            cost += last * (self._layers_of(GroupName.INDEXER)[-1] + 1)
            routes.append(Recovery.INDEXER)
            fidelity = Fidelity.REPLAY_EXACT
        if window:
            price = self._window(held, window, boundary)
            if price is None:
                return None
            cost += price
            routes.append(Recovery.WINDOW)
            fidelity = Fidelity.REPLAY_APPROXIMATE if self.engine.bounded_replay else Fidelity.REPLAY_EXACT
        if tail:
            answer = self._tail(held, tail, window_ok=not window)
            if answer is None:
                return None
            cost += answer[0]
            extra = answer[1]
            routes.append(Recovery.TAIL)
            if fidelity is Fidelity.EXACT:
                fidelity = Fidelity.REPLAY_EXACT
        return Plan(
            boundary=boundary,
            missing=_grouped(indexer + window + tail),
            routes=tuple(routes),
            extra_window=extra,
            cost=cost,
            fidelity=fidelity,
        )

    def usable(self, held: Held) -> int:
        """Return the largest boundary at which everything is there."""
        for boundary in range(held.limit // self.alignment * self.alignment, 0, -self.alignment):
            checks = (check_compressed, check_tail, check_window, check_indexer)
            if not any(check(held, boundary).missing for check in checks):
                return boundary
        return 0

    def choose(self, held: Held, total: int, deepest: int, ask: AskFor | None) -> Plan:
        """Return the cheapest plan for a request of ``total`` tokens.

        Args:
            held: What the device has.
            total: Tokens of the request.
            deepest: Largest boundary at which any tier or the device has anything.
            ask: The fifth check; None where no other tier may be used.
        """
        layers = len(self.model.layers)
        best, best_cost, waiting = Plan(boundary=0), float(total * layers), False
        if not self.engine.routes:
            return best
        top = min(held.limit, deepest + self.alignment - 1) // self.alignment * self.alignment
        for boundary in range(top, 0, -self.alignment):
            if (total - boundary) * layers >= best_cost:
                break  # a shorter prefix cannot be cheaper: the rest of the prompt alone costs as much
            plan = self._at(held, boundary, ask)
            if plan is None or not plan.boundary:
                waiting |= plan is not None
                continue
            cost = plan.cost + (total - boundary) * layers
            if cost < best_cost:
                best, best_cost = plan, cost
        return Plan(boundary=0, waiting=True) if waiting and not best.boundary else best


def _grouped(blocks: Sequence[Block]) -> Missing:
    grouped: dict[GroupName, set[int]] = {}
    for name, block in blocks:
        grouped.setdefault(name, set()).add(block)
    return {name: frozenset(numbers) for name, numbers in grouped.items()}
