"""Checkpoints of real headers over files with holes: they read as zeros and take no disk."""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

WIDTHS = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
Entry = tuple[str, str, tuple[int, ...]]


def write_sparse(
    folder: Path, config: Mapping[str, Any], shards: Mapping[str, Iterable[Entry]]
) -> Path:
    """A directory with config, index and shards from (name, dtype, shape) entries."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map, total = {}, 0
    for file, entries in shards.items():
        header, end = {}, 0
        for name, dtype, shape in entries:
            begin, end = end, end + prod(shape) * WIDTHS[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = folder / file
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + end)
        total += end
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def v3_config(**fields: Any) -> dict[str, Any]:
    """A bf16 DeepSeek-V3 config of the given sizes."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "n_shared_experts": 1,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "num_attention_heads": 4,
        **fields,
    }


def v3_entries(config: Mapping[str, Any], layer: int) -> list[Entry]:
    """The bf16 tensors of one layer as a V3 checkpoint names them."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope, v = (config[f] for f in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q, kv = config["q_lora_rank"], config["kv_lora_rank"]
    at, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
    matrices = [
        (at + "q_a_proj", (q, hidden)),
        (at + "q_b_proj", (heads * (nope + rope), q)),
        (at + "kv_a_proj_with_mqa", (kv + rope, hidden)),
        (at + "kv_b_proj", (heads * (nope + v), kv)),
        (at + "o_proj", (hidden, heads * v)),
    ]
    vectors = [(at + "q_a_layernorm", q), (at + "kv_a_layernorm", kv)]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        vectors.append((f"model.layers.{layer}.{norm}", hidden))
    if layer < config["first_k_dense_replace"]:
        matrices += _gated(mlp, config["intermediate_size"], hidden)
    else:
        width = config["moe_intermediate_size"]
        matrices += [(mlp + "gate", (config["n_routed_experts"], hidden))]
        matrices += _gated(mlp + "shared_experts.", width, hidden)
        for expert in range(config["n_routed_experts"]):
            matrices += _gated(f"{mlp}experts.{expert}.", width, hidden)
    entries: list[Entry] = [(name + ".weight", "BF16", shape) for name, shape in matrices]
    entries += [(name + ".weight", "BF16", (size,)) for name, size in vectors]
    if layer >= config["first_k_dense_replace"]:
        bias = mlp + "gate.e_score_correction_bias"
        entries.append((bias, "F32", (config["n_routed_experts"],)))
    return entries


def _gated(prefix: str, width: int, hidden: int) -> list[tuple[str, tuple[int, int]]]:
    return [
        (prefix + "gate_proj", (width, hidden)),
        (prefix + "up_proj", (width, hidden)),
        (prefix + "down_proj", (hidden, width)),
    ]


def top_entries(config: Mapping[str, Any]) -> list[Entry]:
    table = (config["vocab_size"], config["hidden_size"])
    return [
        ("model.embed_tokens.weight", "BF16", table),
        ("model.norm.weight", "BF16", table[1:]),
        ("lm_head.weight", "BF16", table),
    ]


def write_v3(folder: Path, **fields: Any) -> Path:
    """One shard per layer and one for what stands outside the layers."""
    config = v3_config(**fields)
    shards: dict[str, Iterable[Entry]] = {"model-top.safetensors": top_entries(config)}
    for layer in range(config["num_hidden_layers"]):
        shards[f"model-{layer:05d}.safetensors"] = v3_entries(config, layer)
    return write_sparse(folder, config, shards)
