"""The config.json of every golden checkpoint, key by key in its order."""

from typing import Any

BASE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "routed_scaling_factor": 2.5,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
V3 = {"architectures": ["DeepseekV3ForCausalLM"]}
V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "topk_method": "greedy",
    "scoring_func": "softmax",
}
V32 = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 64,
    "indexer_rope_interleave": True,
}


def _quantised(method: str, **fields: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, **fields}}


FP8 = _quantised("fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128])
FP8_TENSOR = _quantised("fp8", activation_scheme="static")
AWQ = {
    "torch_dtype": "float16",
    **_quantised(
        "awq", bits=4, group_size=64, zero_point=True, version="gemm", modules_to_not_convert=[]
    ),
}
AWQ_MARLIN = {
    **AWQ,
    "quantization_config": {**AWQ["quantization_config"], "sglang_quantization": "awq_marlin"},
}
W4AFP8 = _quantised(
    "w4afp8",
    activation_scheme="static",
    linear_activation_scheme="dynamic",
    moe_activation_scheme="static",
)
NVFP4 = _quantised(
    "modelopt_fp4",
    quant_algo="NVFP4",
    group_size=16,
    kv_cache_quant_algo="FP8",
    exclude_modules=["lm_head", "*self_attn*", "*embed_tokens*", "*.gate", "model.layers.3*"],
)
INT8_BLOCK = _quantised("blockwise_int8", activation_scheme="dynamic", weight_block_size=[128, 128])
DRAFT_ONLY = {"num_hidden_layers": 1, "first_k_dense_replace": 0}

VARIANTS: dict[str, dict[str, Any]] = {
    "v3-bf16": {**BASE, **V3},
    "v3-fp8-block": {**BASE, **V3, **FP8},
    "v2lite-bf16": {k: v for k, v in {**BASE, **V2_LITE}.items() if "nextn" not in k},
    "v32-bf16": {**BASE, **V32},
    "v32-fp8-block": {**BASE, **V32, **FP8},
    "v3-fp8-block-oddq": {**BASE, **V3, "q_lora_rank": 192, **FP8},
    "v3-fp8-block-mtponly": {**BASE, **V3, **DRAFT_ONLY, **FP8},
    "v3-fp8-channel": {**BASE, **V3, **_quantised("w8a8_fp8")},
    "v3-fp8-tensor": {**BASE, **V3, **FP8_TENSOR},
    "v3-int8-channel": {**BASE, **V3, **_quantised("w8a8_int8")},
    "v3-int8-block": {**BASE, **V3, **INT8_BLOCK},
    "v3-awq": {**BASE, **V3, **AWQ},
    "v3-awq-marlin": {**BASE, **V3, **AWQ_MARLIN},
    "v3-w4afp8": {**BASE, **V3, **W4AFP8},
    "v3-nvfp4": {**BASE, **V3, **NVFP4},
    "v3-bf16-extras": {**BASE, **V3},
}
