"""The tensors that a DeepSeek checkpoint of a config holds, written from the published layout."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

BLOCK = 128
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}
Config = dict[str, Any]


class Spec(NamedTuple):
    """One tensor; `is_scale` marks those that are positive in every checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_scale: bool = False

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def checkpoint_specs(config: Config) -> list[Spec]:
    """All tensors of the config, the draft layer included when the config announces one."""
    specs = [*_top(config)]
    for layer in range(config["num_hidden_layers"]):
        specs += _decoder_layer(config, layer, is_moe=layer >= config["first_k_dense_replace"])
    for layer in _draft_layers(config):
        specs += [*_draft_extras(config, layer), *_decoder_layer(config, layer, is_moe=True)]
    return specs


def _draft_layers(config: Config) -> range:
    first = config["num_hidden_layers"]
    return range(first, first + (config.get("num_nextn_predict_layers") or 0))


def _top(config: Config) -> Iterator[Spec]:
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    yield _plain(config, "model.embed_tokens", vocab, hidden)
    yield _plain(config, "model.norm", hidden)
    yield _plain(config, "lm_head", vocab, hidden)


def _draft_extras(config: Config, layer: int) -> Iterator[Spec]:
    prefix, vocab, hidden = f"model.layers.{layer}.", config["vocab_size"], config["hidden_size"]
    yield _plain(config, prefix + "embed_tokens", vocab, hidden)
    yield _plain(config, prefix + "enorm", hidden)
    yield _plain(config, prefix + "hnorm", hidden)
    yield _plain(config, prefix + "eh_proj", hidden, 2 * hidden)
    yield _plain(config, prefix + "shared_head.norm", hidden)
    yield _plain(config, prefix + "shared_head.head", vocab, hidden)


def _decoder_layer(config: Config, layer: int, *, is_moe: bool) -> Iterator[Spec]:
    prefix = f"model.layers.{layer}."
    yield from _attention(config, prefix + "self_attn.")
    yield _plain(config, prefix + "input_layernorm", config["hidden_size"])
    yield _plain(config, prefix + "post_attention_layernorm", config["hidden_size"])
    if is_moe:
        yield from _moe(config, prefix + "mlp.")
    else:
        yield from _mlp(config, prefix + "mlp.", config["intermediate_size"])


def _attention(config: Config, prefix: str) -> Iterator[Spec]:
    hidden, heads, rank = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["kv_lora_rank"],
    )
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    yield from _queries(config, prefix, heads * (nope + rope))
    yield from _linear(config, prefix + "kv_a_proj_with_mqa", rank + rope, hidden)
    yield _plain(config, prefix + "kv_a_layernorm", rank)
    yield from _linear(config, prefix + "kv_b_proj", heads * (nope + value), rank)
    yield from _linear(config, prefix + "o_proj", hidden, heads * value)
    if config.get("index_topk") is not None:
        yield from _indexer(config, prefix + "indexer.")


def _queries(config: Config, prefix: str, rows: int) -> Iterator[Spec]:
    rank, hidden = config["q_lora_rank"], config["hidden_size"]
    if rank is None:
        yield from _linear(config, prefix + "q_proj", rows, hidden)
        return
    yield from _linear(config, prefix + "q_a_proj", rank, hidden)
    yield _plain(config, prefix + "q_a_layernorm", rank)
    yield from _linear(config, prefix + "q_b_proj", rows, rank)


def _indexer(config: Config, prefix: str) -> Iterator[Spec]:
    heads, width, hidden = config["index_n_heads"], config["index_head_dim"], config["hidden_size"]
    yield from _linear(config, prefix + "wq_b", heads * width, config["q_lora_rank"])
    yield from _linear(config, prefix + "wk", width, hidden)
    yield _plain(config, prefix + "weights_proj", heads, hidden)
    yield Spec(prefix + "k_norm.weight", "F32", (width,))
    yield Spec(prefix + "k_norm.bias", "F32", (width,))


def _moe(config: Config, prefix: str) -> Iterator[Spec]:
    experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
    yield _plain(config, prefix + "gate", experts, config["hidden_size"])
    if config["topk_method"] == "noaux_tc":
        yield Spec(prefix + "gate.e_score_correction_bias", "F32", (experts,))
    for expert in range(experts):
        yield from _mlp(config, f"{prefix}experts.{expert}.", width)
    yield from _mlp(config, prefix + "shared_experts.", width * config["n_shared_experts"])


def _mlp(config: Config, prefix: str, width: int) -> Iterator[Spec]:
    hidden = config["hidden_size"]
    yield from _linear(config, prefix + "gate_proj", width, hidden)
    yield from _linear(config, prefix + "up_proj", width, hidden)
    yield from _linear(config, prefix + "down_proj", hidden, width)


def _linear(config: Config, name: str, rows: int, columns: int) -> Iterator[Spec]:
    if config.get("quantization_config") is None:
        yield _plain(config, name, rows, columns)
        return
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    yield Spec(name + ".weight", "F8_E4M3", (rows, columns))
    yield Spec(name + ".weight_scale_inv", "F32", grid, is_scale=True)


def _plain(config: Config, name: str, *shape: int) -> Spec:
    tag = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[config["torch_dtype"]]
    return Spec(name + ".weight", tag, shape)
