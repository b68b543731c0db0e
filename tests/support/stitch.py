"""Puts the ranks' loaded parameters back together and gives the checkpoint's tensors.

Written from the description of the sharding, backwards and without the loader's tables. Everything
is compared as bits, so that a NaN or a negative zero counts too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.names import expert_of, layer_of

Parameters = Mapping[str, Tensor]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Group:
    """All ranks of a layout, each with its parameters; ranks count TP first."""

    ranks: Sequence[Parameters]
    config: Mapping[str, Any]
    tp_size: int = 1
    ep_size: int = 1

    def holders(self, parameter: str) -> list[Parameters]:
        """The ranks of the one pipeline stage that has the parameter."""
        found = [rank for rank in self.ranks if parameter in rank]
        assert len(found) == self.tp_size, f"{parameter} is on {len(found)} ranks"
        return found


def bits(tensor: Tensor) -> Tensor:
    """The tensor's memory as whole numbers of the same width."""
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def stitched(group: Group, name: str) -> Tensor:
    """The checkpoint tensor of this name, as bits, out of the ranks' parameters."""
    head, _, leaf = name.rpartition(".")
    module = head.rpartition(".")[2]
    if expert_of(name) is not None:
        return _expert(group, name, leaf)
    return _HOW.get(module, _replicated)(group, name)


def _replicated(group: Group, parameter: str) -> Tensor:
    copies = [bits(rank[parameter]) for rank in group.holders(parameter)]
    assert all(torch.equal(copy, copies[0]) for copy in copies), f"{parameter} differs by rank"
    return copies[0]


def _rows(group: Group, parameter: str) -> Tensor:
    return torch.cat([bits(rank[parameter]) for rank in group.holders(parameter)], dim=0)


def _columns(group: Group, parameter: str) -> Tensor:
    return torch.cat([bits(rank[parameter]) for rank in group.holders(parameter)], dim=1)


def _vocabulary(group: Group, parameter: str) -> Tensor:
    """Real rows first; what pads the vocabulary must be zero."""
    rows, size = _rows(group, parameter), group.config["vocab_size"]
    assert rows.shape[0] == padded_vocabulary(size, group.tp_size)
    assert not rows[size:].any(), f"{parameter}: padding is not zero"
    return rows[:size]


def padded_vocabulary(size: int, ranks: int) -> int:
    """Rounded up to 64, or to 64 for every rank where that would not divide."""
    rounded = -(-size // 64) * 64
    return rounded if rounded % ranks == 0 else -(-size // (64 * ranks)) * 64 * ranks


def _half(which: int) -> Callable[[Group, str], Tensor]:
    """Gate rows are the first half of every rank's gate_up_proj, up rows the second."""

    def take(group: Group, name: str) -> Tensor:
        module = ("gate_proj", "up_proj")[which]
        parameter = name.replace(module, "gate_up_proj")
        halves = [bits(rank[parameter]).chunk(2)[which] for rank in group.holders(parameter)]
        return torch.cat(halves, dim=0)

    return take


def _query_rows(group: Group, name: str) -> Tensor:
    fused = name.replace("q_a_proj", "fused_qkv_a_proj_with_mqa")
    return _replicated(group, fused)[: _query_size(group, name)]


def _key_value_rows(group: Group, name: str) -> Tensor:
    if group.config["q_lora_rank"] is None:
        return _replicated(group, name)
    fused = name.replace("kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa")
    return _replicated(group, fused)[_query_size(group, name) :]


def _query_size(group: Group, name: str) -> int:
    rank = group.config["q_lora_rank"]
    return rank // 128 if name.endswith("weight_scale_inv") else rank


def _indexer_key(group: Group, name: str) -> Tensor:
    fused = name.replace("indexer.wk.", "indexer.wk_weights_proj.")
    return _replicated(group, fused)[: group.config["index_head_dim"]]


def _indexer_weights(group: Group, name: str) -> Tensor:
    fused = name.replace("weights_proj", "wk_weights_proj")
    return _replicated(group, fused)[group.config["index_head_dim"] :]


def _expert(group: Group, name: str, leaf: str) -> Tensor:
    """One expert lies on one expert group, whose ranks cut its width like a dense layer's."""
    expert = expert_of(name)
    assert expert is not None
    prefix, projection = f"model.layers.{layer_of(name)}.mlp.experts.", name.split(".")[-2]
    stacked = prefix + ("w2_" if projection == "down_proj" else "w13_") + leaf
    ways = group.tp_size // group.ep_size
    per_group = group.config["n_routed_experts"] // group.ep_size
    owner, slot = divmod(expert, per_group)
    owners = group.holders(stacked)[owner * ways : (owner + 1) * ways]
    pieces = [bits(rank[stacked])[slot] for rank in owners]
    if projection == "down_proj":
        return torch.cat(pieces, dim=1)
    half = ("gate_proj", "up_proj").index(projection)
    return torch.cat([piece.chunk(2)[half] for piece in pieces], dim=0)


_HOW: dict[str, Callable[[Group, str], Tensor]] = {
    "embed_tokens": _vocabulary,
    "lm_head": _vocabulary,
    "q_proj": _rows,
    "q_b_proj": _rows,
    "kv_b_proj": _rows,
    "o_proj": _columns,
    "down_proj": _columns,
    "gate_proj": _half(0),
    "up_proj": _half(1),
    "q_a_proj": _query_rows,
    "kv_a_proj_with_mqa": _key_value_rows,
    "wk": _indexer_key,
    "weights_proj": _indexer_weights,
}
