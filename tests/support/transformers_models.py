"""Small random models of transformers' own DeepSeek classes, saved as several shards."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 151,  # not a multiple of 64, so the vocabulary is padded
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,
    "attn_implementation": "eager",
}
V3_SIZES = {
    **SIZES,
    "q_lora_rank": 40,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
}
V2_LITE_SIZES = {
    **SIZES,
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "topk_method": "greedy",
    "norm_topk_prob": False,
}
MAX_SHARD = "100KB"


def save_v3(folder: Path) -> Any:
    """Writes a DeepSeek-V3 of random weights into the folder and returns the model."""
    return _save(DeepseekV3ForCausalLM(DeepseekV3Config(**V3_SIZES)), folder)


def save_v2_lite(folder: Path) -> Any:
    """The same for DeepSeek-V2 without query compression."""
    return _save(DeepseekV2ForCausalLM(DeepseekV2Config(**V2_LITE_SIZES)), folder)


def _save(model: Any, folder: Path) -> Any:
    model = model.float().eval()
    with torch.no_grad():
        _randomise_what_starts_constant(model)
    model.save_pretrained(folder, max_shard_size=MAX_SHARD)
    return model


def _randomise_what_starts_constant(model: Any) -> None:
    """Norms of one and a router bias of zero would hide a swap of two of them."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in name:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
        if "e_score_correction_bias" in name:
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
