"""Which cache state a vLLM layer holds, told from its name and spec.

Invariant: a class name or an attribute that is unknown gives ``unknown``, never a guess. Runs in the engine, on the
engine thread, once; standard library only.

Two traps (vLLM 0.32): ``cache_role`` says indexer for DeepSeek-V3.2 and MiniMax-M3 only, so DeepSeek-V4's indexer is
known by its layer name; and a layer of DeepSeek-V4's compressors carries the spec of a sliding window.
"""

from typing import Any

from ...model.groups import Layer
from ...model.states import State, Tokens

_INDEXER_PART = "indexer"
_STATE_CACHE = "state_cache"
_DRAFT_PARTS = frozenset({"mtp", "draft", "draft_model", "drafter", "eagle", "eagle3", "spec_model"})

_COMPRESSOR_RATIOS: dict[Tokens, int] = {8: 4, 128: 128}
"""Window of a compressor state -> its ratio: ratio 4 overlaps, so it keeps two groups (DeepSeek-V4 report, 3.5.1)."""


def class_names(spec: Any) -> frozenset[str]:
    """Names of the classes of a spec and of its bases."""
    return frozenset(each.__name__ for each in type(spec).__mro__)


def is_indexer(name: str, spec: Any) -> bool:
    """Tell whether a layer belongs to a sparse indexer: its keys, or the state of its own compressor."""
    role = getattr(spec, "cache_role", None)
    return _INDEXER_PART in name.split(".") or str(getattr(role, "value", role)) == "indexer"


def is_compressor_state(name: str, spec: Any) -> bool:
    """Tell whether a layer is the open group of a compressor: by its name, or by its spec where the name is a stand-in.

    The spec is a window of latent width in float32 without a cache dtype, which no attention cache has.
    """
    if name.rsplit(".", 1)[-1] == _STATE_CACHE:
        return True
    if "SlidingWindowMLASpec" not in class_names(spec) or "." in name:
        return False
    return getattr(spec, "cache_dtype_str", None) is None and str(getattr(spec, "dtype", "")) == "torch.float32"


def is_draft(name: str) -> bool:
    """Tell whether a layer belongs to a draft model or a multi-token-prediction head, as far as its name says."""
    return not _DRAFT_PARTS.isdisjoint(name.lower().split("."))


def layer_state(name: str, spec: Any) -> State:
    """Tell which state a layer holds."""
    names = class_names(spec)
    if is_compressor_state(name, spec) or "CircularBufferSpec" in names:
        return State.TAIL
    if "SlidingWindowSpec" in names or "ChunkedLocalAttentionSpec" in names:
        return State.SWA
    if is_indexer(name, spec):
        return State.INDEXER
    known = {"FullAttentionSpec", "MambaSpec", "CrossAttentionSpec", "HiSparseHotSpec", "HiSparseResidentSpec"}
    return State.UNKNOWN if known.isdisjoint(names) else State.COMPRESSED


def states_of(layers: list[tuple[str, Any]]) -> tuple[State, ...]:
    """States of a group, main one first.

    Keys of an indexer stand behind the entries that they select for; the state of an indexer's compressor stands behind
    the tail that it belongs to.
    """
    found = [layer_state(name, spec) for name, spec in layers]
    if any(is_indexer(name, spec) for name, spec in layers) or any(_brings_indexer(*each) for each in layers):
        found.append(State.INDEXER)
    order = [State.COMPRESSED, State.SWA, State.TAIL, State.INDEXER, State.UNKNOWN]
    return tuple(state for state in order if state in found) or (State.UNKNOWN,)


def _brings_indexer(name: str, spec: Any) -> bool:
    """DeepSeek-V4's entries of ratio 4 are always selected by an indexer in the same group.

    Asked only where layer names are stand-ins: a real name says so itself.
    """
    version = getattr(spec, "model_version", None)
    return "." not in name and version == "deepseek_v4" and spec_ratio(spec) == 4


def describe(name: str, spec: Any, *, own_spec: bool) -> Layer:
    """Describe one layer.

    Args:
        name: The engine's layer name.
        spec: Its spec, or the one that stands for its whole group.
        own_spec: ``spec`` is this layer's own: only then do its bytes mean anything.
    """
    return Layer(
        name=name,
        state=layer_state(name, spec),
        page_bytes=page_bytes(spec) if own_spec else None,
        spec=type(spec).__name__ if own_spec else None,
    )


def page_bytes(spec: Any) -> int | None:
    """Bytes of one page of one layer, padding included; None where the spec does not say."""
    try:
        value = spec.page_size_bytes
    except (AttributeError, NotImplementedError, AssertionError, TypeError, ValueError):
        return None
    return value if isinstance(value, int) else None


def spec_ratio(spec: Any) -> Any:
    """Tokens behind one stored entry as the spec says, else 1; older vLLM has another name for it."""
    return getattr(spec, "tokens_per_state", None) or getattr(spec, "compress_ratio", 1)


def tokens_per_entry(state: State, specs: list[Any]) -> int:
    """Tokens behind one stored entry: the smallest ratio of the group, 1 where nothing is compressed."""
    if state is State.TAIL:
        windows = {getattr(spec, "sliding_window", 0) for spec in specs}
        return _COMPRESSOR_RATIOS.get(windows.pop(), 1) if len(windows) == 1 else 1
    ratios = [value for spec in specs if isinstance(value := spec_ratio(spec), int) and value > 0]
    return min(ratios, default=1)
