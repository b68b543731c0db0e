"""A DeepSeek forward pass in plain torch on loaded parameters, written the slow, obvious way.

Every rank computes with its own parameters only; where an engine would all-reduce, the ranks'
parts are added up here, and where it would gather, they are joined. So a wrong slice on any rank
changes the logits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from support.reference_indexer import causal, choose
from support.reference_rotary import rotate

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
    seen = [causal(len(tokens))] * len(ranks)
    for layer in range(config["num_hidden_layers"]):
        hidden, seen = _decoder_layer(ranks, config, layout, layer, hidden, seen)
    final = _owners(ranks, "model.norm.weight")[0]["model.norm.weight"]
    head = _join(ranks, "lm_head.weight")[: config["vocab_size"]]
    return linear(_rms_norm(hidden, final, config["rms_norm_eps"]), head)


def _decoder_layer(
    ranks: Sequence[Weights],
    config: Mapping[str, Any],
    layout: Layout,
    layer: int,
    hidden: Tensor,
    seen: list[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The layer's output, and which positions each rank let every position see."""
    prefix = f"model.layers.{layer}."
    stage = [
        _below(rank, prefix) for rank in _owners(ranks, prefix + "post_attention_layernorm.weight")
    ]
    normed = [_before(own, "input", config, hidden) for own in stage]
    seen = [_choose(*rank, config) for rank in zip(stage, normed, seen, strict=False)]
    hidden = hidden + _on_every_rank(
        stage, lambda seat, own: _attention(own, config, normed[seat], seen[seat])
    )
    return hidden + _on_every_rank(
        stage,
        lambda seat, own: _feed_forward(
            own,
            config,
            _before(own, "post_attention", config, hidden),
            ExpertRank(seat * layout.ep_size // len(stage), layout.ep_size),
        ),
    ), seen


def _choose(own: Weights, hidden: Tensor, before: Tensor, config: Mapping[str, Any]) -> Tensor:
    """By the layer's own indexer; a layer without one keeps what the layer before it chose."""
    if "self_attn.indexer.wq_b.weight" not in own:
        return before
    compressed = _compressed(own, config, hidden)[0]
    return choose(_below(own, "self_attn.indexer."), config, hidden, compressed)


def _attention(own: Weights, config: Mapping[str, Any], hidden: Tensor, seen: Tensor) -> Tensor:
    """Absorbed form: scores and values are taken in the space of the compressed cache."""
    nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    queries, compressed, rotary_key = _projections(own, config, hidden)
    cache = _rms_norm(compressed, own["self_attn.kv_a_layernorm.weight"], ATTENTION_NORM_EPS)
    absorbed = queries[..., :nope].transpose(0, 1) @ own["self_attn.w_kc"]
    assert absorbed.shape[-1] == rank
    rotary_query = rotate(queries[..., nope:].transpose(0, 1), config)
    scores = absorbed @ cache.T + rotary_query @ rotate(rotary_key, config).T
    scores = scores * (nope + config["qk_rope_head_dim"]) ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
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
        normed, key_part = _compressed(own, config, hidden)
        queries = linear(normed, own["self_attn.q_b_proj.weight"])
    heads = queries.unflatten(-1, (-1, config["qk_nope_head_dim"] + rope))
    return heads, *key_part.split([rank, rope], dim=-1)


def _compressed(own: Weights, config: Mapping[str, Any], hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The normed compressed query, and the compressed cache with the shared rotary key."""
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    fused = linear(hidden, own["self_attn.fused_qkv_a_proj_with_mqa.weight"])
    compressed, key_part = fused.split([config["q_lora_rank"], width], dim=-1)
    norm = own["self_attn.q_a_layernorm.weight"]
    return _rms_norm(compressed, norm, ATTENTION_NORM_EPS), key_part


class ExpertRank(NamedTuple):
    """Which of how many groups of experts a rank holds."""

    index: int
    count: int


def _feed_forward(
    own: Weights, config: Mapping[str, Any], hidden: Tensor, group: ExpertRank
) -> Tensor:
    if "mlp.gate.weight" not in own:
        return _mlp(hidden, own["mlp.gate_up_proj.weight"], own["mlp.down_proj.weight"])
    weights = _ROUTERS[config["model_type"]](own, config, hidden)
    if "mlp.shared_experts.gate_up_proj.weight" not in own:
        return _local_experts(own, hidden, _with_shared(weights, own, group))
    shared = _mlp(
        hidden,
        own["mlp.shared_experts.gate_up_proj.weight"],
        own["mlp.shared_experts.down_proj.weight"],
    )
    return shared + _local_experts(own, hidden, _local(weights, own, group, fused=0))


def _local(weights: Tensor, own: Weights, group: ExpertRank, *, fused: int) -> Tensor:
    """The columns of the routed experts that a rank holds."""
    count = own["mlp.experts.w13_weight"].shape[0] - fused
    return weights[:, group.index * count : (group.index + 1) * count]


def _with_shared(weights: Tensor, own: Weights, group: ExpertRank) -> Tensor:
    """The shared expert is every rank's last: tokens take the groups of ranks in turn."""
    turns = torch.arange(len(weights)) % group.count == group.index
    return torch.cat([_local(weights, own, group, fused=1), turns[:, None].float()], dim=1)


def _local_experts(own: Weights, hidden: Tensor, weights: Tensor) -> Tensor:
    """The part of the experts that this rank holds; `weights` is [length, slots], mostly zero."""
    w13, w2 = own["mlp.experts.w13_weight"], own["mlp.experts.w2_weight"]
    assert weights.shape[1] == len(w13) == len(w2)
    total = torch.zeros_like(hidden)
    for slot in range(len(w13)):
        total += weights[:, slot, None] * _mlp(hidden, w13[slot], w2[slot])
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


_ROUTERS = {
    "deepseek_v2": _route_v2,
    "deepseek_v3": _route_v3,
    "kimi_k2": _route_v3,
    "glm_moe_dsa": _route_v3,
}


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def _before(own: Weights, which: str, config: Mapping[str, Any], hidden: Tensor) -> Tensor:
    return _rms_norm(hidden, own[f"{which}_layernorm.weight"], config["rms_norm_eps"])


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
