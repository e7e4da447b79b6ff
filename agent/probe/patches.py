"""Attributes that the probe replaced in its host, and their exact restoration.

Invariant: after :meth:`Patches.remove` every attribute is the very object that was there before, also where it was
inherited or an instance had none of its own. Used by the engine adapters and the feed.

Somebody else may have wrapped our stand-in meanwhile. Then the attribute is left alone, because theirs would be lost;
our stand-in below it is a plain passage as soon as the guard is off.
"""

from types import MethodType, ModuleType
from typing import Any

_ABSENT = object()


def _own(owner: Any, name: str) -> Any:
    """Return what ``owner`` itself holds under ``name``, without asking an instance for its ``__dict__``.

    Asking makes CPython keep the attributes in a real dict from then on, and every access to them slower for the rest
    of the process: 8 % of a scheduling step when it was done to a cache manager (``benchmarks/feed_cost.py``).
    """
    if isinstance(owner, type | ModuleType):
        return vars(owner).get(name, _ABSENT)
    now = getattr(owner, name, _ABSENT)
    for cls in type(owner).__mro__:
        if name in vars(cls):
            inherited = vars(cls)[name]
            expected = inherited.__get__(owner, type(owner)) if hasattr(type(inherited), "__get__") else inherited
            same = now is expected or (isinstance(now, MethodType) and now == expected)
            return _ABSENT if same and _deletable(inherited) else now
    return now


def _deletable(inherited: Any) -> bool:
    """A slot is a descriptor of its class that holds the instance's own value: it is set back, never deleted."""
    return not hasattr(type(inherited), "__set__")


class Patches:
    """A stack of replaced attributes."""

    def __init__(self) -> None:
        self._stack: list[tuple[Any, str, Any, Any]] = []
        self.left_alone: list[str] = []
        """Attributes that another party wrapped after us and that were therefore not restored."""

    def set(self, owner: Any, name: str, stand_in: Any) -> None:
        """Replace ``owner.name``; ``owner`` is a class, a module or an instance."""
        own = _own(owner, name)
        setattr(owner, name, stand_in)
        self._stack.append((owner, name, own, stand_in))

    def remove(self) -> None:
        """Restore everything, the latest replacement first."""
        while self._stack:
            owner, name, own, stand_in = self._stack.pop()
            if _own(owner, name) is not stand_in:
                self.left_alone.append(f"{getattr(owner, '__qualname__', type(owner).__qualname__)}.{name}")
            elif own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    def __len__(self) -> int:
        return len(self._stack)
