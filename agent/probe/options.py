"""The probe's own options: what may be changed while the engine runs, within which bounds.

Invariant: an option outside its bounds is refused, never clamped silently. Read and set over the socket.
"""

from collections.abc import Mapping
from typing import Any, Final

from ..errors import UsageError

BOUNDS: Final[Mapping[str, tuple[int, int, int, str]]] = {
    "chain_bytes_per_step": (256 << 10, 0, 16 << 20, "bytes of request keys that may ride with decisions in one step"),
    "decisions_kept": (4096, 16, 1 << 20, "decisions kept in the probe"),
    "ghost_keys": (1 << 17, 0, 1 << 20, "keys that the ghost set remembers"),
    "free_list_slice": (32_768, 256, 1 << 22, "pages of the free list walked at one safe point"),
}
"""Default, least, largest, meaning."""


DEFAULT_RING_MB: Final = 16


def ring_bytes(environ: Mapping[str, str]) -> int:
    """Return the size of the feed's ring: ``KVCTL_RING_MB`` mebibytes, or :data:`DEFAULT_RING_MB` of them."""
    wanted = environ.get("KVCTL_RING_MB", "")
    return (int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) else DEFAULT_RING_MB) << 20


class Options:
    """Current values, by name as attributes are too easy to misspell over a socket."""

    def __init__(self) -> None:
        self._values = {name: bound[0] for name, bound in BOUNDS.items()}

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def set(self, changes: Mapping[str, Any]) -> dict[str, int]:
        """Change some options, all or none; return those that changed.

        Raises:
            UsageError: Unknown, not an integer, or out of bounds.
        """
        for name, value in changes.items():
            if name not in BOUNDS:
                raise UsageError(f"there is no option {name!r}", next_step=f"options are {', '.join(sorted(BOUNDS))}")
            _, least, largest, _ = BOUNDS[name]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
                raise UsageError(
                    f"option {name} takes an integer from {least} to {largest}", why=f"it was given {value!r}"
                )
        changed = {name: int(value) for name, value in changes.items() if self._values[name] != value}
        self._values.update(changed)
        return changed

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return every option with value, default, bounds and meaning."""
        return {
            name: {
                "value": self._values[name],
                "default": bound[0],
                "least": bound[1],
                "largest": bound[2],
                "what": bound[3],
            }
            for name, bound in BOUNDS.items()
        }
