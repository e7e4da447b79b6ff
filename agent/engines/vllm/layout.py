"""What a vLLM worker's cache tensors look like: addresses, strides, layout, and what their specs say.

Invariant: only metadata is read, never a byte of a tensor, so it is safe while the engine sleeps; what a version of
vLLM does not tell stays None. Runs in the worker, called by name through the engine's collective call; does not raise.

The scheduler's copy of a mixed group's spec shows one layer only; the worker's copy, read here, is the truth.
"""

from collections.abc import Iterator
from math import lcm
from typing import Any, Final

from .rows import padding_rows

MAX_TENSORS = 4096
"""Rows of one answer: a bound, not an expectation."""

SEEN = frozenset({"cpu"})
"""Kinds of device on which this was seen to be right; on others it says so, and the gates abstain."""

_BULK_COPY_BYTES = 16
"""Alignment of a global address for bulk copies (CUDA programming guide, tensor memory access)."""


_CAUGHT: Final = (AttributeError, TypeError, ValueError, RuntimeError, LookupError, AssertionError, ImportError)


def layout(worker: Any) -> dict[str, Any]:
    """Describe every cache tensor of one worker, and the padding rows of its block tables.

    Returns:
        ``{"rank", "tensors": [...], "error": None, "padding": [...]}``; a row has the fields of
        ``agent.model.evidence.WorkerTensor``. Where something could not be read, ``error`` says what, and there are no
        rows; in the place of ``padding`` stands the reason then.
    """
    rank = int(getattr(worker, "rank", 0))
    device = str(getattr(getattr(worker, "device", None), "type", None) or "unknown")
    if device not in SEEN:
        error = f"tensors of device {device} were never checked by this version of kvctl"
        return {"rank": rank, "tensors": [], "error": error}
    try:
        rows = list(_rows(worker.model_runner, rank))[:MAX_TENSORS]
    except _CAUGHT as error:
        return {"rank": rank, "tensors": [], "error": _said(error)}
    try:
        padding: list[dict[str, Any]] | str = list(padding_rows(worker.model_runner))
    except _CAUGHT as error:
        padding = f"this runner keeps its block tables in another way: {_said(error)}"
    return {"rank": rank, "tensors": rows, "error": None, "padding": padding}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _rows(runner: Any, rank: int) -> Iterator[dict[str, Any]]:
    config = runner.kv_cache_config
    bound = runner.compilation_config.static_forward_context
    owners = {name: number for number, group in enumerate(config.kv_cache_groups) for name in group.layer_names}
    kernels = list(getattr(runner, "_kernel_block_sizes", None) or ())
    resolved = getattr(getattr(runner, "cache_config", None), "get_resolved_kv_cache_layout", None)
    arrangement = resolved() if callable(resolved) else None
    for place in config.kv_cache_tensors:
        for name in place.layers:
            group = owners[name]
            whole = config.kv_cache_groups[group].kv_cache_spec
            spec = getattr(whole, "kv_cache_specs", {}).get(name, whole)
            held = bound[name].kv_cache
            parts = list(held) if isinstance(held, list | tuple) else [held]
            kernel = kernels[group] if group < len(kernels) else None
            for number, tensor in enumerate(parts):
                row = _measured(tensor, config.num_blocks)
                row |= _expected(spec, config, place, number, len(parts), kernel, tensor, arrangement)
                row |= _rules(spec, kernel, tensor, len(parts), arrangement)
                yield row | {"rank": rank, "layer": name, "group": group}


def _measured(tensor: Any, pages: int) -> dict[str, Any]:
    """What the tensor itself says. Kernel blocks subdivide a page into equal pieces."""
    size = int(tensor.element_size())
    pieces = max(1, int(tensor.shape[0]) // max(1, pages))
    storage = tensor.untyped_storage()
    content = size
    for extent in tensor.shape[1:]:
        content *= int(extent)
    return {
        "dtype": _dtype(tensor.dtype),
        "shape": [int(extent) for extent in tensor.shape],
        "strides": [int(stride) for stride in tensor.stride()],
        "address": int(tensor.data_ptr()),
        "page_bytes": content * pieces,
        "block_stride": int(tensor.stride(0)) * size * pieces,
        "pages": int(tensor.shape[0]) // pieces,
        "allocation": [int(storage.data_ptr()), int(storage.nbytes())],
    }


def _expected(
    spec: Any, config: Any, place: Any, number: int, parts: int, kernel: int | None, tensor: Any, arrangement: Any
) -> dict[str, Any]:
    """What the plan says: dtype, shape and strides of this layer in the common allocation."""
    if parts > 1 or not hasattr(spec, "dtype"):
        # Recurrent state: one tensor a part, each with a shape of its own, one after the other in the page.
        shapes, dtypes = getattr(spec, "shapes", ()), getattr(spec, "dtypes", ())
        if number >= len(shapes):
            return {}
        return {
            "spec_dtype": _dtype(dtypes[number]),
            "spec_shape": [config.num_blocks, *(int(extent) for extent in shapes[number])],
        }
    expected: dict[str, Any] = {"spec_dtype": _dtype(spec.dtype)}
    planned = _planned(spec, config, place, kernel, int(tensor.element_size()), arrangement)
    if planned is not None:
        expected["spec_shape"], expected["spec_strides"] = planned
    padded = getattr(spec, "page_size_bytes", None)
    if padded is not None:
        expected["page_bytes"] = int(padded)
    return expected


def _planned(
    spec: Any, config: Any, place: Any, kernel: int | None, item: int, arrangement: Any
) -> tuple[list[int], list[int]] | None:
    """Shape and strides in elements, by vLLM's own arithmetic; None in versions without it."""
    import vllm.v1.kv_cache_interface as interface  # noqa: PLC0415 - vLLM is imported inside functions only

    shape_of = getattr(interface, "compute_layer_kv_cache_shape_bytes", None)
    strides_of = getattr(interface, "compute_layout_strides", None)
    if shape_of is None or strides_of is None or arrangement is None:
        return None
    shape = [int(extent) for extent in shape_of(spec, config.num_blocks, kernel)]
    pieces = max(1, shape[0] // max(1, config.num_blocks))
    fixed = (place.layer_stride, place.block_stride // pieces, None, None, None)
    strides = strides_of(spec, config.num_blocks, len(place.layers), arrangement, kernel, fixed_strides=fixed)
    return [*shape[:-1], shape[-1] // item], [int(stride) // item for stride in strides[1:-1]] + [int(strides[-1])]


def _rules(spec: Any, kernel: int | None, tensor: Any, parts: int, arrangement: Any) -> dict[str, Any]:
    """What the kernels ask for, as far as vLLM says so."""
    unit = getattr(spec, "alignment", None)
    between = getattr(spec, "get_block_stride_alignment", None)
    stride = lcm(int(between()) if callable(between) else 1, int(unit or 1))
    kind = getattr(spec, "cache_dtype_str", None) or _dtype(tensor.dtype)
    name = getattr(arrangement, "name", arrangement)
    device = getattr(getattr(tensor, "device", None), "type", None)
    return {
        "address_alignment": _BULK_COPY_BYTES if device == "cuda" else None,
        "required_alignment": stride if stride > 1 else None,
        "page_unit": int(unit) if unit and parts == 1 else None,
        "kernel_block": None if kernel is None else int(kernel),
        "layout": None if name is None else f"{name}/{kind}",
    }


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
