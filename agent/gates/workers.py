"""What workers answered, as evidence.

Invariant: one worker that could not answer makes the evidence missing, with its reason; half a picture is none. Called
where a live engine's answers are collected.
"""

from collections.abc import Sequence
from typing import Any

from ..codec import from_plain
from ..errors import ProtocolError
from ..model.evidence import CapturedBatch, Graphs, WorkerTensor
from ..model.states import PageId


def worker_tensors(answers: Sequence[Any]) -> tuple[tuple[WorkerTensor, ...] | None, str | None]:
    """Read the answers of ``kvctl_layout``, one a worker.

    Returns:
        The tensors, or None and the reason.
    """
    if not answers:
        return None, "no worker answered"
    tensors: list[WorkerTensor] = []
    for answer in answers:
        error = answer.get("error") if isinstance(answer, dict) else "not an answer of kvctl"
        if error:
            return None, f"a worker could not describe its tensors: {error}"
        try:
            tensors += [from_plain(WorkerTensor, row) for row in answer["tensors"]]
        except (ProtocolError, KeyError) as wrong:
            return None, f"a worker's answer could not be read: {wrong}"
    return tuple(tensors), None


def worker_ranks(answers: Sequence[Any]) -> tuple[int, ...] | None:
    """Ranks of the workers that answered; None where one of them does not say which it is."""
    ranks = [answer.get("rank") if isinstance(answer, dict) else None for answer in answers]
    return tuple(rank for rank in ranks if isinstance(rank, int)) if all(isinstance(r, int) for r in ranks) else None


def worker_padding(answers: Sequence[Any]) -> tuple[Graphs | None, str | None]:
    """Read the padding rows that ``kvctl_layout`` lists beside the tensors: one batch a rank and group.

    Returns:
        Batches whose rows beyond the live ones name what they hold, or None and the reason.
    """
    batches: list[CapturedBatch] = []
    for answer in answers:
        padding = answer.get("padding") if isinstance(answer, dict) else None
        if not isinstance(padding, list):
            return None, padding if isinstance(padding, str) else "this agent does not read the runner's block tables"
        try:
            batches += [_batch(int(answer["rank"]), table) for table in padding]
        except (KeyError, TypeError, ValueError, IndexError) as wrong:
            return None, f"a worker's padding rows could not be read: {wrong!r}"
    return Graphs(batches=tuple(batches)), None


def _batch(rank: int, table: Any) -> CapturedBatch:
    rows: list[tuple[PageId, ...]] = [()] * int(table["rows"])
    for row, ids in table["held"]:
        rows[int(row)] = tuple(PageId(int(page)) for page in ids)
    name = f"block table of group {int(table['group'])} on rank {rank}"
    return CapturedBatch(name=name, live=int(table["live"]), rows=tuple(rows), captured=False)
