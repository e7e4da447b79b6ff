"""What the resume rules ask of a page table, and of the memory of what left it.

Invariant: asking changes nothing. ``agent.table`` implements ``Presence`` on a live table, the probe ``Ghost``.
"""

from typing import Protocol

from ..model.states import GroupId


class Presence(Protocol):
    """Which keys a cache holds at one moment."""

    def has(self, group: GroupId, key: bytes, /) -> bool:
        """Tell whether a page of this group is cached under this key.

        Args:
            group: Id of the group.
            key: First 16 bytes of the chained hash that ends at the page's boundary.

        Returns:
            True if at least one page carries the key; secondary keys (partial pages) count.
        """
        ...


class Ghost(Protocol):
    """A bounded memory of keys that were registered before the look-up in question.

    It is asked about keys that are not in the cache: one that was registered and is not there has been removed.
    """

    def seen(self, group: GroupId | None, key: bytes, /) -> bool | None:
        """Tell whether a group had registered a key before this look-up.

        Args:
            group: The group; None: any group.
            key: First 16 bytes of the chained hash.

        Returns:
            True: it had. False: it had not, and that is certain (the memory covers the whole life of the cache and has
            forgotten nothing). None: cannot tell.
        """
        ...

    def taken(self, group: GroupId | None, key: bytes, /) -> bool:
        """Tell whether a key was taken out on purpose before this look-up, and not registered since.

        Args:
            group: The group; None: any group.
            key: First 16 bytes of the chained hash.

        Returns:
            True: it is known to have been. False: it was not, or nobody can tell.
        """
        ...
