"""What workers answered, as evidence.

Invariant: one worker that could not answer makes the evidence missing, with its reason; half a picture is none. Called
where a live engine's answers are collected.
"""

from collections.abc import Sequence
from typing import Any

from ..codec import from_plain
from ..errors import ProtocolError
from ..model.evidence import WorkerTensor


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
