"""Every parameter that one rank must hold, out of a model's stored tensors.

Written from the description of the parameter tree and of its sharding, module by module.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support import cutting
from support.cutting import Place
from support.expert_cutting import Held, as_experts, local_slots, small_group, stacked
from support.made_model import MadeModel, float_dtype, has_experts, has_indexer
from support.stitch import padded_vocabulary
from support.stored import Leaves, Storage, values

Parameters = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Asked:
    """Layout and options that decide what a rank holds."""

    tp: int = 1
    ep: int = 1
    pp: int = 1
    is_draft: bool = False
    fuses_indexer: bool = True
    fuses_shared: bool = False
    has_cache_scales: bool = False
    is_wna16: bool = False

    def layers(self, rank: int, count: int) -> range:
        """Layers of a rank's stage; the last stages take one more where they do not divide."""
        stage, base, longer = rank // self.tp, count // self.pp, count % self.pp
        sizes = [base + (1 if i >= self.pp - longer else 0) for i in range(self.pp)]
        return range(sum(sizes[:stage]), sum(sizes[: stage + 1]))


class ExpectedRank:
    """One rank's parameters, by name."""

    def __init__(self, made: MadeModel, asked: Asked, rank: int) -> None:
        self.made = made
        self.config = made.config
        self.asked = asked
        self.rank = rank
        self.place = Place(asked.tp, rank % asked.tp)
        self.dtype = float_dtype(made.config)
        self.found: Parameters = {}

    def parameters(self) -> Parameters:
        layers = self.config["num_hidden_layers"]
        if self.asked.is_draft:
            self._draft(f"model.layers.{layers}.")
            self._layer(layers, "model.decoder.", is_moe=True)
            return self.found
        self._outside()
        for layer in self.asked.layers(self.rank, layers):
            self._layer(layer, f"model.layers.{layer}.", has_experts(self.config, layer))
        return self.found

    def _outside(self) -> None:
        stage = self.rank // self.asked.tp
        if stage == 0:
            self._vocabulary("model.embed_tokens.weight")
        if stage == self.asked.pp - 1:
            self.found["model.norm.weight"] = self.made.plains["model.norm.weight"]
            self._vocabulary("lm_head.weight")

    def _vocabulary(self, name: str) -> None:
        """Rows padded with zeros behind the real ones, then cut."""
        table = self.made.plains[name]
        height = padded_vocabulary(table.shape[0], self.place.ways)
        padded = torch.zeros(height, table.shape[1], dtype=table.dtype)
        padded[: table.shape[0]] = table
        self.found[name] = padded.chunk(self.place.ways)[self.place.index]

    def _draft(self, prefix: str) -> None:
        for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"):
            self.found[f"model.{name}"] = self.made.plains[prefix + name]

    def _layer(self, layer: int, to: str, is_moe: bool) -> None:
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            self.found[to + norm] = self.made.plains[prefix + norm]
        self._attention(prefix + "self_attn.", to + "self_attn.")
        if has_indexer(self.config, layer):
            self._indexer(prefix + "self_attn.indexer.", to + "self_attn.indexer.")
        if is_moe:
            self._experts(prefix + "mlp.", to + "mlp.")
        else:
            self._gated(prefix + "mlp.", to + "mlp.")

    def _stored(self, module: str) -> tuple[Storage, Leaves]:
        return self.made.storages[module], self.made.linears[module]

    def _put(self, module: str, leaves: Leaves) -> None:
        self.found |= {f"{module}.{leaf}": tensor for leaf, tensor in leaves.items()}

    def _attention(self, prefix: str, to: str) -> None:
        self.found[to + "kv_a_layernorm.weight"] = self.made.plains[
            prefix + "kv_a_layernorm.weight"
        ]
        if self.config["q_lora_rank"] is None:
            self._put(to + "q_proj", cutting.columns(*self._stored(prefix + "q_proj"), self.place))
            whole = cutting.whole(*self._stored(prefix + "kv_a_proj_with_mqa"))
            self._put(to + "kv_a_proj_with_mqa", whole)
        else:
            self._latent_queries(prefix, to)
        for name, cut in (("kv_b_proj", cutting.columns), ("o_proj", cutting.rows)):
            self._put(to + name, cut(*self._stored(prefix + name), self.place))
        if self.asked.has_cache_scales:
            self._cache_scales(prefix, to)

    def _latent_queries(self, prefix: str, to: str) -> None:
        norm = "q_a_layernorm.weight"
        self.found[to + norm] = self.made.plains[prefix + norm]
        storage, first = self._stored(prefix + "q_a_proj")
        parts = [first, self.made.linears[prefix + "kv_a_proj_with_mqa"]]
        self._put(to + "fused_qkv_a_proj_with_mqa", cutting.latent(storage, parts))
        self._put(to + "q_b_proj", cutting.columns(*self._stored(prefix + "q_b_proj"), self.place))

    def _cache_scales(self, prefix: str, to: str) -> None:
        """Without a scale in the files -1.0 stays; `attn_mha` never has one."""
        unset = torch.tensor(-1.0)
        for scale, source in (("k_scale", "k_proj"), ("v_scale", "v_proj")):
            stored = self.made.plains.get(f"{prefix}{source}.{scale}", unset)
            self.found[f"{to}attn_mqa.{scale}"] = stored
            self.found[f"{to}attn_mha.{scale}"] = unset

    def _indexer(self, prefix: str, to: str) -> None:
        self._put(to + "wq_b", cutting.whole(*self._stored(prefix + "wq_b")))
        for leaf in ("weight", "bias"):
            self.found[f"{to}k_norm.{leaf}"] = self.made.plains[f"{prefix}k_norm.{leaf}"].float()
        weights = self._floats(prefix + "weights_proj")
        if self.asked.fuses_indexer:
            joined = torch.cat([self._floats(prefix + "wk"), weights])
            self.found[to + "wk_weights_proj.weight"] = joined
        else:
            self._put(to + "wk", cutting.whole(*self._stored(prefix + "wk")))
            self.found[to + "weights_proj.weight"] = weights

    def _floats(self, module: str) -> Tensor:
        return values(*self._stored(module)).to(self.dtype)

    def _gated(self, prefix: str, to: str) -> None:
        storage, gate = self._stored(prefix + "gate_proj")
        parts = [gate, self.made.linears[prefix + "up_proj"]]
        self._put(to + "gate_up_proj", cutting.merged(storage, parts, self.place))
        self._put(to + "down_proj", cutting.rows(*self._stored(prefix + "down_proj"), self.place))

    def _experts(self, prefix: str, to: str) -> None:
        gate = self.made.plains[prefix + "gate.weight"]
        self.found[to + "gate.weight"] = gate.to(self.dtype)
        bias = prefix + "gate.e_score_correction_bias"
        if bias in self.made.plains:
            self.found[to + "gate.e_score_correction_bias"] = self.made.plains[bias].float()
        storage = self.made.storages[prefix + "experts.0.gate_proj"]
        found = stacked(storage, self._held(prefix))
        self.found |= {f"{to}experts.{leaf}": tensor for leaf, tensor in found.items()}
        if self.config["n_shared_experts"] and not self.asked.fuses_shared:
            self._gated(prefix + "shared_experts.", to + "shared_experts.")

    def _held(self, prefix: str) -> Held:
        count = self.config["n_routed_experts"]
        slots, place = local_slots(self.place.index, self.asked.tp, self.asked.ep, count)
        names = [f"experts.{n}" for n in range(count)]
        shared = ["shared_experts"] if self.asked.fuses_shared else []
        linears = self.made.linears
        own = as_experts(linears, prefix, [*names[slots.start : slots.stop], *shared])
        every = as_experts(linears, prefix, [*names, *shared])
        return Held(own, every, place, self._small_group(prefix, place))

    def _small_group(self, prefix: str, place: Place) -> int | None:
        storage = self.made.storages[prefix + "experts.0.gate_proj"]
        if storage.kind != "awq" or not self.asked.is_wna16:
            return None
        width = self.config["moe_intermediate_size"] // place.ways
        return small_group(storage.group, width, self.config["hidden_size"])


def same(found: Tensor, expected: Tensor) -> bool:
    """Shape, dtype and every bit."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    whole = (t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected))
    return math.prod(found.shape) == 0 or torch.equal(*whole)


def describe(tensor: Any) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
