"""The tiny checkpoints behind the golden records: a function of the name, byte for byte."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from support.deepseek_tensors import ITEM_BYTES, Spec, checkpoint_specs
from support.safetensors_files import write_checkpoint

NUM_SHARDS = 3

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
FP8 = {
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    }
}
VARIANTS: dict[str, dict[str, Any]] = {
    "v3-bf16": {**BASE, **V3},
    "v3-fp8-block": {**BASE, **V3, **FP8},
    "v2lite-bf16": {k: v for k, v in {**BASE, **V2_LITE}.items() if "nextn" not in k},
    "v32-bf16": {**BASE, **V32},
    "v32-fp8-block": {**BASE, **V32, **FP8},
}


def write_golden_checkpoint(variant: str, folder: Path) -> Path:
    """Three shards, an index and config.json, equal to the reference's input bytes."""
    config = VARIANTS[variant]
    return write_checkpoint(folder, config, _shards(checkpoint_specs(config)), tensor_bytes)


def tensor_bytes(spec: Spec) -> bytes:
    """Bits seeded by the tensor's name, bent so that every value is finite and of ordinary size."""
    seed = int(hashlib.sha256(f"0:{spec.name}".encode()).hexdigest(), 16)
    raw = np.random.Generator(np.random.PCG64(seed)).bytes(spec.num_bytes)
    return _BEND[spec.dtype](raw, spec.is_scale)


def _bend_bf16(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, "<u2").astype(np.uint32)
    exponent = (118 + ((bits >> 7) & 7)) << 7
    return (_sign(bits, 0x8000, is_scale) | exponent | (bits & 0x7F)).astype("<u2").tobytes()


def _bend_f32(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, "<u4").astype(np.uint64)
    exponent = (118 + ((bits >> 23) & 3)) << 23
    sign = _sign(bits, 0x80000000, is_scale)
    return (sign | exponent | (bits & 0x7FFFFF)).astype("<u4").tobytes()


def _bend_e4m3(raw: bytes, is_scale: bool) -> bytes:
    bits = np.frombuffer(raw, np.uint8)
    finite = np.where((bits & 0x7F) == 0x7F, bits - 1, bits)
    return (finite & (0x7F if is_scale else 0xFF)).astype(np.uint8).tobytes()


def _sign(bits: np.ndarray, mask: int, is_scale: bool) -> np.ndarray:
    return bits & (0 if is_scale else mask)


_BEND = {"BF16": _bend_bf16, "F32": _bend_f32, "F8_E4M3": _bend_e4m3}


def _shards(specs: list[Spec]) -> dict[str, list[Spec]]:
    shards: dict[str, list[Spec]] = {
        f"model-{number:05d}-of-{NUM_SHARDS:05d}.safetensors": []
        for number in range(1, NUM_SHARDS + 1)
    }
    files = list(shards)
    for spec in sorted(specs, key=lambda spec: (-ITEM_BYTES[spec.dtype], spec.name)):
        digest = hashlib.sha256(spec.name.encode()).digest()
        shards[files[digest[0] % NUM_SHARDS]].append(spec)
    return shards
