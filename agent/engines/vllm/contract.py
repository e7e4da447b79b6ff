"""The engine core's part of the operator contract: what is fixed when the engine starts and shapes a page's bytes.

Invariant: attributes only, each as text that is the same in every run with the same configuration; what a version of
vLLM does not have is left out, what it has and cannot be read is named. Engine's thread.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from .runtime import text

CACHE: Final = (
    "cache_dtype",
    "block_size",
    "prefix_match_unit",
    "prefix_cache_retention_interval",
    "kv_cache_dtype_skip_layers",
    "mamba_block_size",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_cache_mode",
    "mamba_page_size_padded",
    "kv_sharing_fast_prefill",
    "swa_bounded_replay",
    "calculate_kv_scales",
)
PARALLEL: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
)
NOT_THE_MODEL: Final = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})
"""Fields of a model's config that say where it came from, not what it is."""

CAUGHT: Final = (AttributeError, TypeError, ValueError, LookupError, RuntimeError, ImportError, AssertionError)


def contract(core: Any, version: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the contract fields of an engine core.

    Returns:
        Fields by name, and what could not be read with the reason.
    """
    fields: dict[str, str] = {"engine": "vllm", "version": version}
    missing: dict[str, str] = {}
    parts: dict[str, Callable[[Any], Iterator[tuple[str, str]]]] = {
        "cache": _cache,
        "parallel": _parallel,
        "hash": _hash,
        "model": _model,
        "speculative": _speculative,
    }
    for name, part in parts.items():
        try:
            fields.update({f"{name}.{field}": value for field, value in part(core)})
        except CAUGHT as error:
            missing[name] = f"{type(error).__name__}: {error}"[:300]
    return fields, missing


def weights(core: Any) -> dict[str, str]:
    """Read what the engine core knows of its weights without looking at them."""
    model = core.vllm_config.model_config
    fields = {
        "model": str(model.model),
        "revision": text(getattr(model, "revision", None) or ""),
        "quantization": text(getattr(model, "quantization", None) or "none"),
    }
    version = getattr(core, "get_weight_version", None)
    if callable(version):
        fields["engine_version"] = str(version())
    return fields


def _cache(core: Any) -> Iterator[tuple[str, str]]:
    config = core.vllm_config.cache_config
    for name in CACHE:
        if hasattr(config, name):
            yield name, text(getattr(config, name))


def _parallel(core: Any) -> Iterator[tuple[str, str]]:
    config = core.vllm_config.parallel_config
    for name in PARALLEL:
        if hasattr(config, name):
            yield name, text(getattr(config, name))


def _hash(core: Any) -> Iterator[tuple[str, str]]:
    import vllm.v1.core.kv_cache_utils as utils  # noqa: PLC0415 - vLLM is imported inside functions only

    algorithm = str(core.vllm_config.cache_config.prefix_caching_hash_algo)
    yield "algorithm", algorithm
    if not getattr(core.vllm_config.cache_config, "enable_prefix_caching", True):
        yield "seed", "no prefix caching"
    elif algorithm.startswith("xxhash") and os.environ.get("PYTHONHASHSEED") is None:
        yield "seed", "random in each process"
    else:
        # The seed may be a secret of the operator's: its digest tells seeds apart and no more.
        yield "seed", hashlib.blake2b(bytes(utils.NONE_HASH), digest_size=8).hexdigest()


def _model(core: Any) -> Iterator[tuple[str, str]]:
    config = core.vllm_config.model_config
    yield "dtype", text(getattr(config, "dtype", ""))
    plain = config.hf_config.to_dict()
    kept = {name: value for name, value in plain.items() if name not in NOT_THE_MODEL}
    body = json.dumps(kept, sort_keys=True, default=str)
    yield "config", hashlib.blake2b(body.encode(), digest_size=8).hexdigest()
    yield "architecture", text(plain.get("architectures") or "")


def _speculative(core: Any) -> Iterator[tuple[str, str]]:
    config = getattr(core.vllm_config, "speculative_config", None)
    yield "width", "0" if config is None else text(getattr(config, "num_speculative_tokens", ""))
    if config is not None:
        yield "method", text(getattr(config, "method", "") or "")
        yield "model", text(getattr(config, "model", "") or "")
