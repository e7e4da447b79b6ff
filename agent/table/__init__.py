"""The reader's side of the feed: ring -> page table -> columns of a snapshot.

Invariant: runs outside the engine and needs numpy; whatever the ring contains, a reader never hangs, never crashes and
never shows a table as complete that is not. Used by the session, the exporter and the dashboard.
"""

from .presence import Presence
from .reader import RingReader
from .table import Table

__all__ = ["Presence", "RingReader", "Table"]
