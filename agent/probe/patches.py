"""Attributes that the probe replaced in its host, and their exact restoration.

Invariant: after :meth:`Patches.remove` every attribute is the very object that was there before, also where it was
inherited or an instance had none of its own. Used by the engine adapters and the feed.

Somebody else may have wrapped our stand-in meanwhile. Then the attribute is left alone, because theirs would be lost;
our stand-in below it is a plain passage as soon as the guard is off.
"""

from typing import Any

_ABSENT = object()


class Patches:
    """A stack of replaced attributes."""

    def __init__(self) -> None:
        self._stack: list[tuple[Any, str, Any, Any]] = []
        self.left_alone: list[str] = []
        """Attributes that another party wrapped after us and that were therefore not restored."""

    def set(self, owner: Any, name: str, stand_in: Any) -> None:
        """Replace ``owner.name``; ``owner`` is a class, a module or an instance."""
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name)
        setattr(owner, name, stand_in)
        self._stack.append((owner, name, own, stand_in))

    def remove(self) -> None:
        """Restore everything, the latest replacement first."""
        while self._stack:
            owner, name, own, stand_in = self._stack.pop()
            now = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name)
            if now is not stand_in:
                self.left_alone.append(f"{getattr(owner, '__qualname__', type(owner).__qualname__)}.{name}")
            elif own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    def __len__(self) -> int:
        return len(self._stack)
