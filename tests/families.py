"""Real random two-layer models of every supported architecture."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

# Grouped-query wherever the architecture has it; windows of 5, shorter than the prompts of the tests.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 5},
    "olmo": {"num_key_value_heads": 2},
    "olmo2": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "gemma2": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 5,
        "attn_logit_softcapping": 1.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3_text": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}

COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
COMMON["max_position_embeddings"] = 64


def random_model(family: str, vocabulary: int = 50, seed: int = 0, **more: Any) -> PreTrainedModel:
    """Weights large enough that attention is far from uniform and every path matters."""
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    common = {} if family == "gpt2" else COMMON
    config = AutoConfig.for_model(
        family, **(common | FAMILIES.get(family, {}) | special | {"vocab_size": vocabulary} | more)
    )
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    model.eval()
    return model
