"""Named methods for vLLM's workers, where the tensors live.

Invariant: a method is registered only when it does what its name says; until then it is absent, so that the engine's
collective call refuses it by name instead of returning something made up.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .layout import layout
from .runtime import runtime
from .weightsum import weights_digest

METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "kvctl_layout": layout,
    "kvctl_runtime": runtime,
    "kvctl_weights_digest": weights_digest,
}
"""Method of the worker by name."""
