"""Memory for snapshots that is used again once nobody looks at the old one.

Invariant: a buffer is written only while no view of it is alive. A copy of a million pages into memory that is mapped
already takes 3-5 ms; into fresh memory the kernel first clears 37 MB. Used by ``agent.table.table`` only.
"""

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPARE = 2
"""Buffers of one column that are kept."""


class Copies:
    """Read-only copies of one column."""

    def __init__(self) -> None:
        self._kept: list[tuple[NDArray[Any], weakref.ref[NDArray[Any]]]] = []

    def of(self, column: NDArray[Any]) -> memoryview:
        """Return a copy that never changes as long as anybody refers to it."""
        buffer = self._free(column)
        np.copyto(buffer, column)
        view = buffer.view()
        view.flags.writeable = False
        self._kept.append((buffer, weakref.ref(view)))
        del self._kept[:-SPARE]
        return view.data

    def _free(self, column: NDArray[Any]) -> NDArray[Any]:
        for index, (buffer, view) in enumerate(self._kept):
            if view() is None and buffer.shape == column.shape:
                del self._kept[index]
                return buffer
        return np.empty_like(column)
