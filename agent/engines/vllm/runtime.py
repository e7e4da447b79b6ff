"""What a vLLM worker says of how it runs: runner, attention backends, kernel blocks, and the specs of its layers.

Invariant: reads attributes only, never a tensor's bytes, so it is safe while the engine sleeps; a field holds nothing
that changes from one start to the next (no addresses, no number of pages). Runs in the worker, called by name through
the engine's collective call; does not raise.
"""

import os
from collections.abc import Iterator
from typing import Any, Final

ENVIRONMENT: Final = ("VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT")
"""Variables that change the arrangement of bytes in a page."""

SPEC_FIELDS: Final = (
    ("block_size", "block_size"),
    ("tokens_per_state", "tokens_per_entry"),
    ("compress_ratio", "tokens_per_entry"),
    ("sliding_window", "window"),
    ("attention_chunk_size", "chunk"),
    ("num_kv_heads", "kv_heads"),
    ("head_size", "head_size"),
    ("head_size_v", "head_size_v"),
    ("dtype", "dtype"),
    ("kv_quant_mode", "quantization"),
    ("cache_dtype_str", "cache_dtype"),
    ("page_size_bytes", "page_bytes"),
    ("alignment", "alignment"),
    ("model_version", "model_version"),
    ("cache_role", "role"),
    ("shapes", "shapes"),
    ("dtypes", "dtypes"),
    ("mamba_type", "recurrent_kind"),
    ("mamba_cache_mode", "recurrent_mode"),
)
"""Attribute of a spec, and the name of the field."""


def runtime(worker: Any) -> dict[str, Any]:
    """Describe one worker.

    Returns:
        ``{"rank", "fields": {name: text}, "loras": [ids], "error"}``. Layers of one group that are alike share one
        set of fields, named after the kind of spec.
    """
    rank = int(getattr(worker, "rank", 0))
    try:
        fields = dict(_fields(worker))
        loras = _loras(worker)
    except (AttributeError, TypeError, ValueError, RuntimeError, LookupError, AssertionError) as error:
        return {"rank": rank, "fields": {}, "loras": None, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"rank": rank, "fields": fields, "loras": loras, "error": None}


def _fields(worker: Any) -> Iterator[tuple[str, str]]:
    runner = worker.model_runner
    config = runner.kv_cache_config
    yield "runner", f"{type(runner).__module__}.{type(runner).__qualname__}"
    resolved = getattr(getattr(runner, "cache_config", None), "get_resolved_kv_cache_layout", None)
    arrangement = resolved() if callable(resolved) else getattr(runner.cache_config, "kv_cache_layout", None)
    if arrangement is not None:
        yield "layout", text(arrangement)
    if (replicas := getattr(config, "kv_tp_replicas", None)) is not None:
        yield "kv_tp_replicas", text(replicas)
    kernels = getattr(runner, "_kernel_block_sizes", None) or getattr(runner, "kernel_block_sizes", None) or ()
    for number, group in enumerate(config.kv_cache_groups):
        if number < len(kernels):
            yield f"group.{number}.kernel_block", text(kernels[number])
        yield from _group(number, group)
    for number, groups in enumerate(getattr(runner, "attn_groups", None) or ()):
        names = sorted({_backend(one.backend) for one in groups})
        yield f"group.{number}.backend", ", ".join(names)
    for name in ENVIRONMENT:
        yield f"environment.{name}", os.environ.get(name, "")


def _group(number: int, group: Any) -> Iterator[tuple[str, str]]:
    whole = group.kv_cache_spec
    own = getattr(whole, "kv_cache_specs", None)
    specs = {name: own.get(name, whole) if own else whole for name in group.layer_names}
    kinds: dict[str, list[str]] = {}
    described: dict[str, dict[str, str]] = {}
    for layer, spec in specs.items():
        fields = dict(_spec(spec))
        mark = repr(sorted(fields.items()))
        described[mark] = fields
        kinds.setdefault(mark, []).append(layer)
    for place, mark in enumerate(sorted(kinds, key=lambda mark: kinds[mark][0])):
        head = f"group.{number}.kind.{place}"
        yield f"{head}.layers", ", ".join(kinds[mark])
        for name, value in described[mark].items():
            yield f"{head}.{name}", value


def _spec(spec: Any) -> Iterator[tuple[str, str]]:
    yield "spec", type(spec).__name__
    for attribute, name in SPEC_FIELDS:
        value = getattr(spec, attribute, None)
        if value is not None:
            yield name, text(value)


def _backend(backend: Any) -> str:
    named = getattr(backend, "get_name", None)
    return str(named()) if callable(named) else str(getattr(backend, "__name__", backend))


def _loras(worker: Any) -> list[int] | None:
    """Ids of the adapters in memory; empty where the engine has none, None where it does not tell."""
    runner = worker.model_runner
    if getattr(runner, "lora_config", None) is None:
        return []
    if getattr(runner, "lora_manager", None) is None:
        return None
    return sorted(int(number) for number in worker.list_loras())


def text(value: Any) -> str:
    """Return a value as a field of a contract: the same text in every run."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text(item) for item in value) + "]"
    if isinstance(value, frozenset | set):
        return "[" + ", ".join(sorted(text(item) for item in value)) + "]"
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else str(value).removeprefix("torch.")
