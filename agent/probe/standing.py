"""What works on this engine: the adapter's findings, what failed at the start, and what the operator allows.

Invariant: every capability that is off has a reason in one sentence. Any thread.
"""

from ..errors import RefusedError, TargetError, UnsupportedError
from ..model.snapshot import Capability
from .guard import Guard

WHAT_WORKS = "kvctl inspect and kvctl doctor say what works here; everything else goes on"
"""What an operator can do about a capability that is off."""


class Standing:
    """Capabilities of one probe.

    Args:
        guard: Whether the probe is on.
        allow_changes: The engine was started so that the probe may change things.
    """

    def __init__(self, guard: Guard, *, allow_changes: bool) -> None:
        self._guard = guard
        self.allow_changes = allow_changes
        self.found: tuple[Capability, ...] = ()
        """What the adapter found."""
        self.off: dict[str, str] = {}
        """What failed since, with the reason."""

    def list(self) -> tuple[Capability, ...]:
        """Return all capabilities, by name."""
        listed = {found.name: found for found in self.found}
        for name, reason in list(self.off.items()):
            listed[name] = Capability(name=name, on=False, reason=reason)
        changes = None if self.allow_changes else "the engine was started read-only (kvctl run --allow-changes)"
        listed["changes"] = Capability(name="changes", on=self.allow_changes, reason=changes)
        listed["probe"] = Capability(name="probe", on=self._guard.on, reason=self._guard.reason)
        return tuple(sorted(listed.values(), key=lambda found: found.name))

    def has(self, name: str) -> bool:
        """Return whether a capability is on."""
        return name not in self.off and any(found.name == name and found.on for found in self.found)

    def require_on(self) -> None:
        """Refuse politely when the probe was switched off, by somebody or by its breaker.

        Raises:
            TargetError: It was; the reason is in ``why``.
        """
        if not self._guard.on:
            raise TargetError(
                "the probe of this engine is off",
                why=self._guard.reason,
                next_step="restart the engine to have it back; kvctl doctor shows its state",
            )

    def require(self, name: str) -> None:
        """Refuse politely what does not work here.

        Raises:
            UnsupportedError: The capability is off; its reason is in ``why``.
            TargetError: The probe was switched off.
        """
        self.require_on()
        found = next((found for found in self.list() if found.name == name), None)
        if found is None or not found.on:
            why = "this adapter does not offer it" if found is None else found.reason
            raise UnsupportedError(f"`{name}` does not work on this engine", why=why, next_step=WHAT_WORKS)

    def require_changes(self, operation: str) -> None:
        """Refuse to change anything unless the engine was started so.

        Raises:
            RefusedError: It is read-only.
        """
        if not self.allow_changes:
            raise RefusedError(
                f"this engine is read-only: `{operation}` is not permitted",
                why="it was started without KVCTL_ALLOW_CHANGES=1",
                next_step="start it with `kvctl run --allow-changes -- ...`",
            )
