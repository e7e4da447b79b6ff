"""Padding rows of a vLLM worker's persistent block tables: what stands in the rows beyond the running requests.

Invariant: only the host's copy is read, bounded in rows and ids, and nothing is changed. Runs in the worker, as part of
``layout``; what it raises there is caught there.

The runner keeps one block table a group for the largest batch and fills its first rows. Captured graphs and dummy
batches read further rows as well and write to the pages that these name, so they must name the null page only.
"""

from collections.abc import Iterator
from typing import Any

MAX_ROWS = 64
"""Rows with page ids that are listed, for each group."""
MAX_IDS = 16
"""Page ids that are listed of one row."""


def padding_rows(runner: Any) -> Iterator[dict[str, Any]]:
    """Describe the rows beyond the running requests, one answer a group.

    Args:
        runner: The worker's model runner.

    Yields:
        ``{"group", "live", "rows", "held": [[row, [ids]], ...]}``: rows in use, rows there are, and those beyond that
        name pages other than page 0.
    """
    batch = runner.input_batch
    live = int(batch.num_reqs)
    for group, table in enumerate(batch.block_table.block_tables):
        ids = table.block_table.np
        beyond = ids[live:]
        held = []
        for row in beyond.any(axis=1).nonzero()[0].tolist()[:MAX_ROWS]:
            named = beyond[row]
            held.append([live + row, [int(page) for page in named[named.nonzero()[0]][:MAX_IDS].tolist()]])
        yield {"group": group, "live": live, "rows": len(ids), "held": held}
