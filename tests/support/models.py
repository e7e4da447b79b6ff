"""Tiny models of every cache family: a config and a local tokenizer, weights only where outputs are compared.

Invariant: downloads nothing, and the same name and seed give the same files. ``write_model`` needs the engine's
environment (tokenizers, transformers, torch); the configs themselves need nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tokenizer import BOS, EOS, PAD, write_tokenizer

Config = dict[str, Any]

VOCABULARY = 512
WINDOW = 64
"""Sliding window of the models that have one, in tokens (DeepSeek-V4: 128)."""

WEIGHT_STD = 0.2
"""Standard deviation of seeded weights: with 128 hidden units logits get a spread of about 2, far from a tie."""


def _base(**fields: Any) -> Config:
    config: Config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "initializer_range": WEIGHT_STD,
    }
    return config | fields


def _rope(theta: float = 10_000.0, **fields: Any) -> Config:
    return {"rope_type": "default", "rope_theta": theta} | fields


def _llama() -> Config:
    return _base(architectures=["LlamaForCausalLM"], model_type="llama", rope_parameters=_rope())


def _gemma3() -> Config:
    return _base(
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        num_hidden_layers=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        sliding_window=WINDOW,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=32,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        rope_parameters={"full_attention": _rope(1e6), "sliding_attention": _rope(1e4)},
    )


def _mistral() -> Config:
    return _base(
        architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=WINDOW, rope_parameters=_rope()
    )


def _gpt_oss() -> Config:
    return _base(
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        head_dim=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        experts_per_token=2,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        swiglu_limit=7.0,
        attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters=_rope(
            150_000.0,
            rope_type="yarn",
            factor=32.0,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
            original_max_position_embeddings=4096,
        ),
    )


def _llama4() -> Config:
    return _base(
        architectures=["Llama4ForCausalLM"],
        model_type="llama4_text",
        attention_chunk_size=256,
        no_rope_layers=[1, 1, 1, 0],
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
        interleave_moe_layer_step=0,
        moe_layers=[],
        num_local_experts=2,
        num_experts_per_tok=1,
        intermediate_size_mlp=256,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        router_aux_loss_coef=0.001,
        rope_parameters=_rope(500_000.0),
    )


def _qwen3next() -> Config:
    return _base(
        architectures=["Qwen3NextForCausalLM"],
        model_type="qwen3_next",
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        full_attention_interval=4,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
        partial_rotary_factor=0.25,
        rope_parameters=_rope(1e6, partial_rotary_factor=0.25),
    )


def _nemotron_h() -> Config:
    return _base(
        architectures=["NemotronHForCausalLM"],
        model_type="nemotron_h",
        hybrid_override_pattern="M*M-",
        mamba_num_heads=8,
        mamba_head_dim=32,
        mamba_hidden_act="silu",
        mamba_proj_bias=False,
        ssm_state_size=16,
        n_groups=1,
        conv_kernel=4,
        chunk_size=64,
        expand=2,
        mlp_hidden_act="relu2",
        mlp_bias=False,
        use_bias=False,
        use_conv_bias=True,
        time_step_limit=[0.0, 1e9],
        layer_norm_epsilon=1e-5,
        residual_in_fp32=False,
        tie_word_embeddings=False,
    )


def _deepseek_v4() -> Config:
    return _base(
        architectures=["DeepseekV4ForCausalLM"],
        model_type="deepseek_v4",
        hidden_size=512,
        intermediate_size=512,
        num_attention_heads=16,
        num_key_value_heads=1,
        head_dim=512,
        qk_rope_head_dim=64,
        q_lora_rank=256,
        o_lora_rank=128,
        o_groups=2,
        sliding_window=128,
        compress_ratios=[0, 4, 128, 4],
        compress_rope_theta=160_000.0,
        rope_theta=10_000.0,
        index_n_heads=16,
        index_head_dim=128,
        index_topk=512,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=6,
        moe_intermediate_size=64,
        num_hash_layers=1,
        swiglu_limit=10.0,
        norm_topk_prob=True,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        routed_scaling_factor=1.0,
        hc_mult=4,
        hc_sinkhorn_iters=4,
        hc_eps=1e-6,
        tie_word_embeddings=False,
        attention_dropout=0.0,
        expert_dtype="fp8",
        num_nextn_predict_layers=0,
        rope_scaling={
            "rope_type": "yarn",
            "type": "yarn",
            "factor": 4.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 2048,
        },
    )


CONFIGS: dict[str, Callable[[], Config]] = {
    "llama": _llama,
    "gemma3": _gemma3,
    "mistral": _mistral,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "qwen3next": _qwen3next,
    "nemotron_h": _nemotron_h,
    "deepseek_v4": _deepseek_v4,
}
"""Full attention; 2 windows to 1 full; window only; window and full; chunked; two recurrent; all five states."""


def write_model(folder: Path, name: str, *, seed: int | None = None, **overrides: Any) -> Path:
    """Write the model ``name`` into ``folder / name`` and return that folder.

    Args:
        folder: Where model folders are collected.
        name: A key of ``CONFIGS``.
        seed: Write weights drawn with this seed, for runs whose outputs are compared. Without it the folder has no
            weights and the engine must be started with ``load_format="dummy"``, which makes all logits nearly equal.
        overrides: Config fields to change.
    """
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name]() | overrides
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    (target / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    write_tokenizer(target, config["vocab_size"])
    if seed is not None:
        _write_weights(target, seed)
    return target


def _write_weights(target: Path, seed: int) -> None:
    """Let transformers lay out the tensors of the config, fill them from the seed, keep norms as they are."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(target)))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for name, tensor in sorted(model.state_dict().items()):
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        drawn = torch.randn(tensor.shape, generator=generator) * WEIGHT_STD
        values = drawn if tensor.dim() > 1 else _vector(name, tensor.float(), model.config.model_type)
        tensors[name] = values.to(torch.bfloat16).contiguous()
    save_file(tensors, str(target / "model.safetensors"), metadata={"format": "pt"})


def _vector(name: str, values: Any, model_type: str) -> Any:
    """Keep norms and biases; let Gemma's layers outweigh its embedding and look sharply, else it repeats itself."""
    if not model_type.startswith("gemma3"):
        return values
    if "q_norm" in name or "k_norm" in name:
        return values + 1.0
    return values + 3.0 if ".post_" in name else values
