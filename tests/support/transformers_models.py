"""Small random models of transformers' own classes, saved as several shards, plain or quantised."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
)

from support.quantised_models import quantise

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
KIMI_SIZES = {**V3_SIZES, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
GLM_SIZES = {
    **V3_SIZES,
    "index_n_heads": 3,
    "index_head_dim": 20,
    "index_topk": 6,
    # the second layer takes the first one's choice of tokens and has no indexer
    "indexer_types": ["full", "shared", "full"],
}
# every cut at tp 4 falls between blocks of 128; hidden and kv_a end inside one
BLOCK_SIZES = {
    "hidden_size": 200,
    "intermediate_size": 1024,
    "moe_intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 128,
    "kv_lora_rank": 72,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}
MAX_SHARD = "100KB"


def save_v3(folder: Path) -> Any:
    """Writes a DeepSeek-V3 of random weights into the folder and returns the model."""
    return _save(DeepseekV3ForCausalLM(DeepseekV3Config(**V3_SIZES)), folder)


def save_v2_lite(folder: Path) -> Any:
    """The same for DeepSeek-V2 without query compression."""
    return _save(DeepseekV2ForCausalLM(DeepseekV2Config(**V2_LITE_SIZES)), folder)


def save_kimi(folder: Path) -> Any:
    """A Kimi-K2: DeepSeek-V3's architecture with one group of experts, under its own type."""
    model = _save(DeepseekV3ForCausalLM(DeepseekV3Config(**KIMI_SIZES)), folder)
    change_config(folder, {"model_type": "kimi_k2"})
    return model


def save_glm(folder: Path) -> Any:
    """A GLM-5: DeepSeek-V3 with an indexer that chooses few tokens."""
    return _save(GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**GLM_SIZES)), folder)


def save_v3_blocks(folder: Path) -> Any:
    """A DeepSeek-V3 in fp8 blocks; the model has the values that the blocks stand for."""
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**V3_SIZES | BLOCK_SIZES))
    return _save_blocks(model, folder, {})


def save_v31_blocks(folder: Path) -> Any:
    """The same with scales that are powers of two, as V3.1 has them."""
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**V3_SIZES | BLOCK_SIZES))
    return _save_blocks(model, folder, {"scale_fmt": "ue8m0"})


def save_v3_head_blocks(folder: Path) -> Any:
    """Blocks that end where a head's parts end; kv_b_proj's values are not rounded."""
    heads = {"qk_nope_head_dim": 128, "v_head_dim": 256, "kv_lora_rank": 256}
    sizes = V3_SIZES | BLOCK_SIZES | heads
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes))
    return _save_blocks(model, folder, {}, absorbed=torch.float32)


def save_glm_blocks(folder: Path) -> Any:
    """A GLM-5 in fp8 blocks, the indexer's key too."""
    sizes = GLM_SIZES | BLOCK_SIZES | {"index_head_dim": 96}
    return _save_blocks(GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**sizes)), folder, {})


def _save(model: Any, folder: Path) -> Any:
    model = model.float().eval()
    with torch.no_grad():
        _randomise_what_starts_constant(model)
    model.save_pretrained(folder, max_shard_size=MAX_SHARD)
    return model


def _save_blocks(
    model: Any, folder: Path, fields: Mapping[str, str], absorbed: torch.dtype = torch.bfloat16
) -> Any:
    plain = folder.with_name(folder.name + ", plain")
    values = folder.with_name(folder.name + ", values")
    _save(model, plain)
    quantise(plain, folder, values, fields, absorbed)
    return type(model).from_pretrained(values, attn_implementation="eager").float().eval()


def change_config(folder: Path, fields: Mapping[str, Any]) -> None:
    """Set fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _randomise_what_starts_constant(model: Any) -> None:
    """Norms of one and a router bias of zero would hide a swap of two of them."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "norm" in name:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
        if "e_score_correction_bias" in name:
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
