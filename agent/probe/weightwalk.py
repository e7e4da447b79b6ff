"""Read the weights of all workers over as many safe points as it takes, and join what they say.

Invariant: a reading during which a change of weights was seen is void; a tensor that nobody could read makes it
partial: it can fail, it cannot pass. The digest depends on names, dtypes, shapes and bytes alone. Engine's thread.
"""

import hashlib
from typing import TYPE_CHECKING, Any, Final

from ..codec import to_plain
from ..errors import InconclusiveError
from .safepoint import AGAIN, Job, SafePoint

if TYPE_CHECKING:
    from ..engines.base import WeightsAdapter

DIGEST_BYTES: Final = 16
FIRST_DEADLINE_S: Final = 600.0
"""For a reading that nobody waits for; an engine that passes no safe point for so long has other worries."""
LORA: Final = "lora."
"""Names of tensors of adapters begin so; the id of the adapter follows."""
UNREADABLE_NAMED: Final = 200
"""Unreadable tensors of one worker that are named; all are counted."""


class WeightsWalk:
    """One reading.

    Args:
        adapter: Whose workers are asked.
        full: Read every byte instead of a sample.
    """

    def __init__(self, adapter: "WeightsAdapter", *, full: bool) -> None:
        self._adapter = adapter
        self._full = full
        self._cursors: dict[int, Any] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}
        self._unreadable: dict[int, dict[str, str]] = {}
        self._counts: dict[int, list[int]] = {}
        """Tensors and bytes of each rank."""
        self._points: int | None = None
        self._loras: set[tuple[int, ...]] = set()
        """Adapters in memory, as each slice of each rank saw them: a reading over two sets says nothing of adapters."""

    def advance(self) -> bool:
        """Read one slice on every worker; True when all are done.

        Raises:
            InconclusiveError: A worker cannot read its weights, or they changed meanwhile.
            RefusedError: The engine sleeps.
        """
        points = self._adapter.weights_points()
        if self._points is not None and points != self._points:
            raise InconclusiveError("the weights changed while they were read", next_step="ask again")
        self._points = points
        answers = self._adapter.weights_slice(full=self._full, cursors=self._cursors)
        for answer in answers:
            self._take(answer)
        return not any(self._cursors.values())

    def _take(self, answer: Any) -> None:
        error = answer.get("error") if isinstance(answer, dict) else "not an answer of kvctl"
        if error:
            raise InconclusiveError("a worker cannot read its weights", why=str(error)[:300])
        rank = int(answer["rank"])
        self._loras.add(tuple(answer.get("loras") or ()))
        pieces = self._pieces.setdefault(rank, {})
        for name, _piece, digest in answer["parts"]:
            pieces.setdefault(str(name), []).append(str(digest))
        self._unreadable.setdefault(rank, {}).update(answer["unreadable"])
        count = self._counts.setdefault(rank, [0, 0])
        count[0] = int(answer["tensors"])
        count[1] += int(answer["bytes"])
        self._cursors[rank] = answer["next"]

    def result(self) -> dict[str, Any]:
        """Return the digests, and tell the adapter, which compares them with the last ones."""
        ranks = [self._rank(rank) for rank in sorted(self._counts)]
        adapters = next(iter(self._loras)) if len(self._loras) == 1 else ()
        loras = {number: _digest(f"{one['rank']}={one['loras'].get(number)}" for one in ranks) for number in adapters}
        digest = _digest(f"{one['rank']}={one['digest']}" for one in ranks)
        complete = bool(ranks) and all(not one["unreadable_count"] and one["tensors"] for one in ranks)
        mode = "full" if self._full else "sample"
        self._adapter.weights_read(mode, digest, complete=complete, **({"loras": loras} if loras else {}))
        known = to_plain(self._adapter.evidence().weights)
        return {"mode": mode, "digest": digest, "complete": complete, "ranks": ranks, "weights": known}

    def _rank(self, rank: int) -> dict[str, Any]:
        lost = self._unreadable[rank]
        whole = {
            name: digests[0] if len(digests) == 1 else _digest(digests)
            for name, digests in self._pieces[rank].items()
            if name not in lost
        }
        parts: dict[str, list[str]] = {}
        for name in sorted(whole):
            parts.setdefault(part_of(name), []).append(f"{name}={whole[name]}")
        return {
            "rank": rank,
            # Adapters come and go without a change of what other requests are computed with.
            "digest": _digest(f"{name}={whole[name]}" for name in sorted(whole) if not name.startswith(LORA)),
            "parts": {name: _digest(lines) for name, lines in parts.items()},
            "loras": {
                int(name.removeprefix(LORA)): _digest(lines) for name, lines in parts.items() if name.startswith(LORA)
            },
            "tensors": self._counts[rank][0],
            "bytes": self._counts[rank][1],
            "unreadable": dict(sorted(lost.items())[:UNREADABLE_NAMED]),
            "unreadable_count": len(lost),
        }


class Readings:
    """Samples that the probe itself asks for: at the start, and after what may have changed the weights.

    What later readings are compared with has to be read again after every change. One reading at a time.

    Args:
        safe_point: Where they run.
        adapter: Whose workers are asked.
    """

    def __init__(self, safe_point: SafePoint, adapter: Any) -> None:
        self._safe_point = safe_point
        self._adapter = adapter
        self._job: Job | None = None
        self._asked = False

    def ask(self) -> None:
        """Have a sample read that begins after now. Engine's thread."""
        self._asked = True
        if self._job is None:
            self._submit()

    def _submit(self) -> None:
        self._asked = False
        walk = WeightsWalk(self._adapter, full=False)
        self._job = self._safe_point.submit(
            lambda: walk.result() if walk.advance() else AGAIN,
            label="weights",
            deadline_s=FIRST_DEADLINE_S,
            done=self._done,
        )

    def _done(self, _job: Job) -> None:
        self._job = None
        if self._asked:
            self._submit()


def part_of(name: str) -> str:
    """Return the layer that a tensor belongs to: everything up to the first number in its name, else two steps."""
    steps = name.split(".")
    for place, step in enumerate(steps):
        if step.isascii() and step.isdigit():
            return ".".join(steps[: place + 1])
    return ".".join(steps[:2])


def _digest(lines: Any) -> str:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for line in lines:
        state.update(line.encode() + b"\n")
    return state.hexdigest()
