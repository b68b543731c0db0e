"""The demo's model: DeepSeek-V3 in every name, dtype and block, a few thousand times smaller."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

BLOCK = 128
Kind = Literal["fp8", "scale", "weight", "norm", "bias"]

CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "kv_lora_rank": 128,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 256,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 12,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 2048,
}
_LAYERS, _DENSE_LAYERS, _EXPERTS, _HEADS, _VOCAB = 12, 3, 16, 8, 2048
_HIDDEN, _DENSE_WIDTH, _EXPERT_WIDTH, _Q_RANK, _KV_RANK = 512, 1024, 256, 256, 128
_NOPE, _ROPE, _VALUE = 128, 64, 128

# A shard begins at each of these. V3's own shards close in the middle of a layer too, so three cuts
# part q_a_proj from the kv_a_proj_with_mqa that it is fused with: those halves must wait.
FIRST_OF_SHARD = (
    "model.embed_tokens.weight",
    "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
    "model.layers.5.self_attn.q_a_proj.weight",
    "model.layers.6.self_attn.kv_a_proj_with_mqa.weight",
    "model.layers.8.self_attn.q_a_proj.weight",
    "model.layers.9.self_attn.kv_a_proj_with_mqa.weight",
    "model.layers.11.self_attn.q_a_proj.weight",
    f"model.layers.{_LAYERS}.embed_tokens.weight",
)


class Entry(NamedTuple):
    """One tensor to write; two entries with equal `value_of` hold equal bytes."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    value_of: str


def entries() -> Iterator[Entry]:
    """All tensors in module order, as V3's own files have them."""
    yield _plain("model.embed_tokens.weight", (_VOCAB, _HIDDEN))
    for layer in range(_LAYERS):
        yield from _layer(f"model.layers.{layer}", is_dense=layer < _DENSE_LAYERS)
    yield _norm("model.norm", _HIDDEN)
    yield _plain("lm_head.weight", (_VOCAB, _HIDDEN))
    yield from _draft_layer(f"model.layers.{_LAYERS}")


def _layer(at: str, *, is_dense: bool) -> Iterator[Entry]:
    yield from _attention(f"{at}.self_attn")
    yield from _mlp(f"{at}.mlp", _DENSE_WIDTH) if is_dense else _moe(f"{at}.mlp")
    yield _norm(f"{at}.input_layernorm", _HIDDEN)
    yield _norm(f"{at}.post_attention_layernorm", _HIDDEN)


def _draft_layer(at: str) -> Iterator[Entry]:
    # V3 stores the target's embedding and head a second time here
    yield _plain(f"{at}.embed_tokens.weight", (_VOCAB, _HIDDEN), "model.embed_tokens.weight")
    yield _norm(f"{at}.enorm", _HIDDEN)
    yield _norm(f"{at}.hnorm", _HIDDEN)
    yield _plain(f"{at}.eh_proj.weight", (_HIDDEN, 2 * _HIDDEN))
    yield from _layer(at, is_dense=False)
    yield _norm(f"{at}.shared_head.norm", _HIDDEN)
    yield _plain(f"{at}.shared_head.head.weight", (_VOCAB, _HIDDEN), "lm_head.weight")


def _attention(at: str) -> Iterator[Entry]:
    yield from _linear(f"{at}.q_a_proj", _Q_RANK, _HIDDEN)
    yield _norm(f"{at}.q_a_layernorm", _Q_RANK)
    yield from _linear(f"{at}.q_b_proj", _HEADS * (_NOPE + _ROPE), _Q_RANK)
    yield from _linear(f"{at}.kv_a_proj_with_mqa", _KV_RANK + _ROPE, _HIDDEN)
    yield _norm(f"{at}.kv_a_layernorm", _KV_RANK)
    yield from _linear(f"{at}.kv_b_proj", _HEADS * (_NOPE + _VALUE), _KV_RANK)
    yield from _linear(f"{at}.o_proj", _HIDDEN, _HEADS * _VALUE)


def _moe(at: str) -> Iterator[Entry]:
    for expert in range(_EXPERTS):
        yield from _mlp(f"{at}.experts.{expert}", _EXPERT_WIDTH)
    yield _plain(f"{at}.gate.weight", (_EXPERTS, _HIDDEN))
    bias = f"{at}.gate.e_score_correction_bias"
    yield Entry(bias, "bias", (_EXPERTS,), bias)
    yield from _mlp(f"{at}.shared_experts", _EXPERT_WIDTH)


def _mlp(at: str, width: int) -> Iterator[Entry]:
    yield from _linear(f"{at}.gate_proj", width, _HIDDEN)
    yield from _linear(f"{at}.up_proj", width, _HIDDEN)
    yield from _linear(f"{at}.down_proj", _HIDDEN, width)


def _linear(at: str, rows: int, columns: int) -> Iterator[Entry]:
    blocks = -(-rows // BLOCK), -(-columns // BLOCK)
    yield Entry(f"{at}.weight", "fp8", (rows, columns), f"{at}.weight")
    yield Entry(f"{at}.weight_scale_inv", "scale", blocks, f"{at}.weight_scale_inv")


def _plain(name: str, shape: tuple[int, ...], value_of: str | None = None) -> Entry:
    return Entry(name, "weight", shape, name if value_of is None else value_of)


def _norm(at: str, size: int) -> Entry:
    return Entry(f"{at}.weight", "norm", (size,), f"{at}.weight")
