"""Write a tiny LoRA adapter for the Llama-like model: random bytes of a seed, in the layout that vLLM loads.

Needs torch and safetensors; only tests beside vLLM use it.
"""

import json
from pathlib import Path


def write_adapter(folder: Path, *, seed: int, model: Path, rank: int = 8) -> Path:
    """Write an adapter of the attention projections, over the one that is there.

    Args:
        folder: Where to.
        seed: Of its bytes.
        model: Folder of the model, whose sizes it needs.
        rank: Width of the adapter.
    """
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    width, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or width // heads
    dice = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in (("q_proj", heads * head), ("k_proj", kv_heads * head), ("v_proj", kv_heads * head)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(rank, width, generator=dice) / 2
            tensors[f"{path}.lora_B.weight"] = torch.randn(out, rank, generator=dice) / 2
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "base_model_name_or_path": "m",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "k_proj", "v_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.0,
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder
