"""The parameters of one rank, from the published description: modules, and what a format stores.

Written without the loader's tables; test_header_packs compares the two, name by name.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from loadscope.loader.topology import Layout, Seat
from support.published import Stored
from support.stored_leaves import EXPERTS, LINEARS, Stock, grid

ITEM_BYTES = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1}
TAGS = {"bfloat16": "BF16", "float16": "F16"}
VOCAB_PAD = 64
Named = Iterator[tuple[str, Stock]]


def nbytes(stock: Stock) -> int:
    dtype, shape = stock
    return prod(shape) * ITEM_BYTES[dtype]


class Decoder:
    """One decoder layer of a model on one rank; names without the layer's prefix."""

    def __init__(
        self, config: dict[str, Any], stored: Stored, layout: Layout, *, fuses_shared: bool
    ) -> None:
        self.config = config
        self.stored = stored
        self.layout = layout
        self.fuses_shared = fuses_shared
        self.dtype = TAGS[config["torch_dtype"]]

    def layer(self, *, is_moe: bool) -> dict[str, Stock]:
        parts = (self._norms(), self._attention(), self._moe() if is_moe else self._dense())
        found = {name: stock for part in parts for name, stock in part}
        return {name: (dtype or self.dtype, shape) for name, (dtype, shape) in found.items()}

    def _norms(self) -> Named:
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.weight", ("", (self.config["hidden_size"],))

    def _attention(self) -> Named:
        c, at, hidden = self.config, "self_attn.", self.config["hidden_size"]
        heads, rank = c["num_attention_heads"] // self.layout.tp_size, c["kv_lora_rank"]
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        latent, form = c["q_lora_rank"], self.stored.attention
        if latent is None:
            yield from _linear(form, at + "q_proj", heads * (nope + rope), hidden)
            yield from _linear(form, at + "kv_a_proj_with_mqa", rank + rope, hidden)
        else:
            fused = at + "fused_qkv_a_proj_with_mqa"
            yield from _linear(form, fused, latent + rank + rope, hidden)
            yield at + "q_a_layernorm.weight", ("", (latent,))
            yield from _linear(form, at + "q_b_proj", heads * (nope + rope), latent)
        yield at + "kv_a_layernorm.weight", ("", (rank,))
        yield from _linear(form, at + "kv_b_proj", heads * (nope + value), rank)
        yield from _linear(form, at + "o_proj", hidden, heads * value)
        if self.stored.has_kv_scales:
            for name in ("attn_mqa.k", "attn_mqa.v", "attn_mha.k", "attn_mha.v"):
                yield f"{at}{name}_scale", ("F32", ())
        if c.get("index_topk") is not None:
            yield from self._indexer(at + "indexer.")

    def _indexer(self, at: str) -> Named:
        """Whole on every rank; on cuda wk and weights_proj are one matrix, never quantised."""
        c = self.config
        heads, width = c["index_n_heads"], c["index_head_dim"]
        yield from _linear(self.stored.attention, at + "wq_b", heads * width, c["q_lora_rank"])
        yield at + "wk_weights_proj.weight", ("", (width + heads, c["hidden_size"]))
        yield at + "k_norm.weight", ("F32", (width,))
        yield at + "k_norm.bias", ("F32", (width,))

    def _dense(self) -> Named:
        yield from self._mlp("mlp.", self.config["intermediate_size"])

    def _mlp(self, at: str, width: int) -> Named:
        form, hidden = self.stored.linears, self.config["hidden_size"]
        local = width // self.layout.tp_size
        yield from _linear(form, at + "gate_up_proj", 2 * local, hidden, parts=2)
        yield from _linear(form, at + "down_proj", hidden, local)

    def _moe(self) -> Named:
        c = self.config
        hidden, width = c["hidden_size"], c["moe_intermediate_size"]
        experts, extra = c["n_routed_experts"], int(self.fuses_shared)
        yield "mlp.gate.weight", ("", (experts, hidden))
        if c["topk_method"] == "noaux_tc":
            yield "mlp.gate.e_score_correction_bias", ("F32", (experts,))
        if not self.fuses_shared:
            yield from self._mlp("mlp.shared_experts.", width * c["n_shared_experts"])
        local = width // self.layout.ways("expert_tp")
        here = experts // self.layout.ep_size + extra
        leaves = EXPERTS[self.stored.experts](here, experts + extra, local, hidden)
        yield from ((f"mlp.experts.{leaf}", stock) for leaf, stock in leaves.items())


def _linear(form: str, name: str, rows: int, columns: int, *, parts: int = 1) -> Named:
    for leaf, stock in LINEARS[form](rows, columns, parts).items():
        yield f"{name}.{leaf}", stock


def vocabulary_rows(vocabulary: int, ranks: int) -> int:
    """Rows of a rank: padded to 64, or to 64 x ranks where that cannot be cut."""
    padded = grid(vocabulary, VOCAB_PAD) * VOCAB_PAD
    pad = VOCAB_PAD if padded % ranks == 0 else VOCAB_PAD * ranks
    return grid(vocabulary, pad) * pad // ranks


def target_parameters(decoder: Decoder, seat: Seat) -> dict[str, Stock]:
    """All parameters of a target's rank."""
    config, last = decoder.config, decoder.layout.pp_size - 1
    layers = decoder.layout.stage_layers(seat.pp, config["num_hidden_layers"])
    kinds = [decoder.layer(is_moe=False), decoder.layer(is_moe=True)]
    found = {
        f"model.layers.{i}.{name}": stock
        for i in layers
        for name, stock in kinds[i >= config["first_k_dense_replace"]].items()
    }
    rows = vocabulary_rows(config["vocab_size"], decoder.layout.tp_size)
    table = (decoder.dtype, (rows, config["hidden_size"]))
    if seat.pp == 0:
        found["model.embed_tokens.weight"] = table
    if seat.pp == last:
        found["lm_head.weight"] = table
        found["model.norm.weight"] = (decoder.dtype, (config["hidden_size"],))
    return found


def draft_parameters(decoder: Decoder) -> dict[str, Stock]:
    """All parameters of a draft's rank: one expert layer and what leads into and out of it."""
    hidden = decoder.config["hidden_size"]
    layer = decoder.layer(is_moe=True)
    norms = ("model.enorm.weight", "model.hnorm.weight", "model.shared_head.norm.weight")
    return {
        **{f"model.decoder.{name}": stock for name, stock in layer.items()},
        **dict.fromkeys(norms, (decoder.dtype, (hidden,))),
        "model.eh_proj.weight": (decoder.dtype, (hidden, 2 * hidden)),
    }
