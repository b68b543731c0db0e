"""The tensors that a DeepSeek checkpoint of a config holds, written from the published layout."""

from collections.abc import Iterator

from support.linear_specs import (
    BLOCK,
    ITEM_BYTES,
    Config,
    Spec,
    linear,
    plain,
    quantisation,
    scalar,
)

__all__ = [
    "BLOCK",
    "ITEM_BYTES",
    "Config",
    "Spec",
    "cache_scales",
    "checkpoint_specs",
    "draft_only_specs",
]


def checkpoint_specs(config: Config) -> list[Spec]:
    """All tensors of the config, the draft layer included when the config announces one."""
    specs = [*_top(config)]
    for layer in range(config["num_hidden_layers"]):
        specs += _decoder_layer(config, layer, is_moe=layer >= config["first_k_dense_replace"])
    for layer in _draft_layers(config):
        specs += _draft_layer(config, layer)
    return specs


def draft_only_specs(config: Config) -> list[Spec]:
    """A checkpoint of nothing but the draft layer, as layer 0, and the target's outer tensors."""
    return [*_top(config), *_draft_layer(config, 0)]


def _draft_layer(config: Config, layer: int) -> Iterator[Spec]:
    yield from _draft_extras(config, layer)
    yield from _decoder_layer(config, layer, is_moe=True)


def _draft_layers(config: Config) -> range:
    first = config["num_hidden_layers"]
    return range(first, first + (config.get("num_nextn_predict_layers") or 0))


def _top(config: Config) -> Iterator[Spec]:
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    yield plain(config, "model.embed_tokens", vocab, hidden)
    yield plain(config, "model.norm", hidden)
    yield plain(config, "lm_head", vocab, hidden)


def _draft_extras(config: Config, layer: int) -> Iterator[Spec]:
    prefix, vocab, hidden = f"model.layers.{layer}.", config["vocab_size"], config["hidden_size"]
    yield plain(config, prefix + "embed_tokens", vocab, hidden)
    yield plain(config, prefix + "enorm", hidden)
    yield plain(config, prefix + "hnorm", hidden)
    yield plain(config, prefix + "eh_proj", hidden, 2 * hidden)
    yield plain(config, prefix + "shared_head.norm", hidden)
    yield plain(config, prefix + "shared_head.head", vocab, hidden)


def _decoder_layer(config: Config, layer: int, *, is_moe: bool) -> Iterator[Spec]:
    prefix = f"model.layers.{layer}."
    yield from _attention(config, prefix + "self_attn.")
    yield plain(config, prefix + "input_layernorm", config["hidden_size"])
    yield plain(config, prefix + "post_attention_layernorm", config["hidden_size"])
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
    yield from linear(config, prefix + "kv_a_proj_with_mqa", rank + rope, hidden)
    yield plain(config, prefix + "kv_a_layernorm", rank)
    yield from linear(config, prefix + "kv_b_proj", heads * (nope + value), rank)
    yield from linear(config, prefix + "o_proj", hidden, heads * value)
    if config.get("index_topk") is not None:
        yield from _indexer(config, prefix + "indexer.")
    if quantisation(config).get("kv_cache_quant_algo") is not None:
        yield from cache_scales(prefix)


def cache_scales(prefix: str) -> Iterator[Spec]:
    """Named after projections that this attention does not have, as exporters do."""
    yield scalar(prefix + "k_proj.k_scale")
    yield scalar(prefix + "v_proj.v_scale")


def _queries(config: Config, prefix: str, rows: int) -> Iterator[Spec]:
    rank, hidden = config["q_lora_rank"], config["hidden_size"]
    if rank is None:
        yield from linear(config, prefix + "q_proj", rows, hidden)
        return
    yield from linear(config, prefix + "q_a_proj", rank, hidden)
    yield plain(config, prefix + "q_a_layernorm", rank)
    yield from linear(config, prefix + "q_b_proj", rows, rank)


def _indexer(config: Config, prefix: str) -> Iterator[Spec]:
    heads, width, hidden = config["index_n_heads"], config["index_head_dim"], config["hidden_size"]
    yield from linear(config, prefix + "wq_b", heads * width, config["q_lora_rank"])
    yield from linear(config, prefix + "wk", width, hidden)
    yield plain(config, prefix + "weights_proj", heads, hidden)
    yield Spec(prefix + "k_norm.weight", "F32", (width,))
    yield Spec(prefix + "k_norm.bias", "F32", (width,))


def _moe(config: Config, prefix: str) -> Iterator[Spec]:
    experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
    yield plain(config, prefix + "gate", experts, config["hidden_size"])
    if config["topk_method"] == "noaux_tc":
        yield Spec(prefix + "gate.e_score_correction_bias", "F32", (experts,))
    for expert in range(experts):
        yield from _mlp(config, f"{prefix}experts.{expert}.", width)
        if quantisation(config).get("quant_method") == "w4afp8":
            yield from _activation_scales(f"{prefix}experts.{expert}.")
    yield from _mlp(config, prefix + "shared_experts.", width * config["n_shared_experts"])


def _activation_scales(prefix: str) -> Iterator[Spec]:
    """Under the names of another family, as the exporter writes them."""
    for projection in ("w1", "w2", "w3"):
        yield scalar(f"{prefix}{projection}.input_scale", "BF16")


def _mlp(config: Config, prefix: str, width: int) -> Iterator[Spec]:
    hidden = config["hidden_size"]
    yield from linear(config, prefix + "gate_proj", width, hidden)
    yield from linear(config, prefix + "up_proj", width, hidden)
    yield from linear(config, prefix + "down_proj", hidden, width)
