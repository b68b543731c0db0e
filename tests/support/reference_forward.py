"""A DeepSeek forward pass in plain torch on loaded parameters, written the slow, obvious way.

Every rank computes with its own parameters only; where an engine would all-reduce, the ranks'
parts are added up here, and where it would gather, they are joined. So a wrong slice on any rank
changes the logits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

Weights = Mapping[str, Tensor]  # parameters and derived tensors of one rank, by full name
ATTENTION_NORM_EPS = 1e-6  # fixed in the published code, unlike rms_norm_eps


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks of a pipeline stage share the experts by id; the rest cut inside an expert."""

    ep_size: int = 1


def logits(
    ranks: Sequence[Weights], config: Mapping[str, Any], tokens: Tensor, layout: Layout
) -> Tensor:
    """Next-token scores for one sequence of token ids: [length, vocab]."""
    embedded = _join(ranks, "model.embed_tokens.weight")
    hidden = embedded[tokens]
    for layer in range(config["num_hidden_layers"]):
        hidden = _decoder_layer(ranks, config, layout, layer, hidden)
    final = _owners(ranks, "model.norm.weight")[0]["model.norm.weight"]
    head = _join(ranks, "lm_head.weight")[: config["vocab_size"]]
    return linear(_rms_norm(hidden, final, config["rms_norm_eps"]), head)


def _decoder_layer(
    ranks: Sequence[Weights], config: Mapping[str, Any], layout: Layout, layer: int, hidden: Tensor
) -> Tensor:
    prefix = f"model.layers.{layer}."
    stage = [
        _below(rank, prefix) for rank in _owners(ranks, prefix + "post_attention_layernorm.weight")
    ]
    hidden = hidden + _on_every_rank(
        stage, lambda seat, own: _attention(own, config, _before(own, "input", config, hidden))
    )
    return hidden + _on_every_rank(
        stage,
        lambda seat, own: _feed_forward(
            own,
            config,
            _before(own, "post_attention", config, hidden),
            seat * layout.ep_size // len(stage),
        ),
    )


def _attention(own: Weights, config: Mapping[str, Any], hidden: Tensor) -> Tensor:
    """Absorbed form: scores and values are taken in the space of the compressed cache."""
    nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    queries, compressed, rotary_key = _projections(own, config, hidden)
    cache = _rms_norm(compressed, own["self_attn.kv_a_layernorm.weight"], ATTENTION_NORM_EPS)
    absorbed = queries[..., :nope].transpose(0, 1) @ own["self_attn.w_kc"]
    assert absorbed.shape[-1] == rank
    rotary_query = _rotate(queries[..., nope:].transpose(0, 1), config)
    scores = absorbed @ cache.T + rotary_query @ _rotate(rotary_key, config).T
    weights = _causal_softmax(scores * (nope + config["qk_rope_head_dim"]) ** -0.5)
    values = (weights @ cache) @ own["self_attn.w_vc"]
    return linear(values.transpose(0, 1).flatten(1), own["self_attn.o_proj.weight"])


def _projections(
    own: Weights, config: Mapping[str, Any], hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [length, heads, nope + rope], the compressed cache and the shared rotary key."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config["q_lora_rank"] is None:
        queries = linear(hidden, own["self_attn.q_proj.weight"])
        key_part = linear(hidden, own["self_attn.kv_a_proj_with_mqa.weight"])
    else:
        fused = linear(hidden, own["self_attn.fused_qkv_a_proj_with_mqa.weight"])
        compressed, key_part = fused.split([config["q_lora_rank"], rank + rope], dim=-1)
        normed = _rms_norm(compressed, own["self_attn.q_a_layernorm.weight"], ATTENTION_NORM_EPS)
        queries = linear(normed, own["self_attn.q_b_proj.weight"])
    heads = queries.unflatten(-1, (-1, config["qk_nope_head_dim"] + rope))
    return heads, *key_part.split([rank, rope], dim=-1)


def _rotate(x: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Interleaved rotary embedding: dims (0, 1), (2, 3), … turn as pairs, by the position."""
    length, width = x.shape[-2:]
    theta = _rope_theta(config)
    frequencies = theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin())
    return torch.stack(turned, dim=-1).flatten(-2)


def _rope_theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters")
    return config["rope_theta"] if rope is None else rope["rope_theta"]


def _feed_forward(own: Weights, config: Mapping[str, Any], hidden: Tensor, ep_rank: int) -> Tensor:
    if "mlp.gate.weight" not in own:
        return _mlp(hidden, own["mlp.gate_up_proj.weight"], own["mlp.down_proj.weight"])
    shared = _mlp(
        hidden,
        own["mlp.shared_experts.gate_up_proj.weight"],
        own["mlp.shared_experts.down_proj.weight"],
    )
    weights = _ROUTERS[config["model_type"]](own, config, hidden)
    return shared + _local_experts(own, hidden, weights, ep_rank)


def _local_experts(own: Weights, hidden: Tensor, weights: Tensor, ep_rank: int) -> Tensor:
    """The part of the experts that this rank holds; `weights` is [length, experts], mostly zero."""
    w13, w2 = own["mlp.experts.w13_weight"], own["mlp.experts.w2_weight"]
    total = torch.zeros_like(hidden)
    for slot in range(w13.shape[0]):
        expert = ep_rank * w13.shape[0] + slot
        total += weights[:, expert, None] * _mlp(hidden, w13[slot], w2[slot])
    return total


def _mlp(hidden: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = linear(hidden, gate_up).chunk(2, dim=-1)
    return linear(silu(gate) * up, down)


def _route_v3(own: Weights, config: Mapping[str, Any], hidden: Tensor) -> Tensor:
    """Sigmoid scores; the bias decides who is chosen, never with which weight."""
    scores = linear(hidden.float(), own["mlp.gate.weight"].float()).sigmoid()
    choice = scores + own["mlp.gate.e_score_correction_bias"]
    groups = choice.unflatten(-1, (config["n_group"], -1))
    best = groups.topk(2, dim=-1).values.sum(-1).topk(config["topk_group"], dim=-1).indices
    allowed = torch.zeros(groups.shape[:-1]).scatter(1, best, 1.0).bool()
    choice = groups.masked_fill(~allowed[..., None], float("-inf")).flatten(1)
    chosen = choice.topk(config["num_experts_per_tok"], dim=-1).indices
    weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    return weights / weights.sum(-1, keepdim=True) * config["routed_scaling_factor"]


def _route_v2(own: Weights, config: Mapping[str, Any], hidden: Tensor) -> Tensor:
    """Softmax scores, greedy choice, no bias and no renormalisation."""
    scores = linear(hidden.float(), own["mlp.gate.weight"].float()).softmax(-1)
    chosen = scores.topk(config["num_experts_per_tok"], dim=-1).indices
    weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    return weights * config["routed_scaling_factor"]


_ROUTERS = {"deepseek_v3": _route_v3, "deepseek_v2": _route_v2}


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def _before(own: Weights, which: str, config: Mapping[str, Any], hidden: Tensor) -> Tensor:
    return _rms_norm(hidden, own[f"{which}_layernorm.weight"], config["rms_norm_eps"])


def _causal_softmax(scores: Tensor) -> Tensor:
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(later, float("-inf")).softmax(-1)


def _on_every_rank(stage: list[Weights], part: Callable[[int, Weights], Tensor]) -> Tensor:
    return torch.stack([part(seat, own) for seat, own in enumerate(stage)]).sum(0)


def _join(ranks: Sequence[Weights], name: str) -> Tensor:
    return torch.cat([rank[name] for rank in _owners(ranks, name)])


def _owners(ranks: Sequence[Weights], name: str) -> list[Weights]:
    return [rank for rank in ranks if name in rank]


def _below(rank: Weights, prefix: str) -> Weights:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in rank.items()
        if name.startswith(prefix)
    }
