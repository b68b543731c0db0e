"""The indexer of sparse attention in plain torch: which earlier positions each position may see."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from support.reference_rotary import rotate

KEY_NORM_EPS = 1e-6


def causal(length: int) -> Tensor:
    """Every position sees itself and all before it: [length, length] of booleans."""
    return torch.ones(length, length).tril().bool()


def choose(
    own: Mapping[str, Tensor], config: Mapping[str, Any], hidden: Tensor, compressed: Tensor
) -> Tensor:
    """The `index_topk` positions with the highest scores, as causal attention sees them."""
    heads, width = config["index_n_heads"], config["index_head_dim"]
    fused = linear(hidden, own["wk_weights_proj.weight"])
    keys, weights = fused.split([width, heads], dim=-1)
    keys = layer_norm(keys, (width,), own["k_norm.weight"], own["k_norm.bias"], KEY_NORM_EPS)
    queries = linear(compressed, own["wq_b.weight"]).unflatten(-1, (heads, width)).transpose(0, 1)
    products = _turned(queries, config) @ _turned(keys, config).T
    per_head = (products * width**-0.5).relu()
    scores = torch.einsum("hqk,qh->qk", per_head, weights * heads**-0.5)
    allowed = causal(len(hidden))
    best = scores.masked_fill(~allowed, float("-inf"))
    chosen = best.topk(min(config["index_topk"], len(hidden)), dim=-1).indices
    return allowed & torch.zeros_like(allowed).scatter(1, chosen, value=True)


def _turned(x: Tensor, config: Mapping[str, Any]) -> Tensor:
    """The first dims of a head carry the position."""
    rope = config["qk_rope_head_dim"]
    return torch.cat([rotate(x[..., :rope], config), x[..., rope:]], dim=-1)
