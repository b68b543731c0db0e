"""A small model with random values: every matrix and vector by its name in the files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from support.stored import Leaves, Random, Storage, make

Config = dict[str, Any]
Choose = Callable[[str], Storage]


@dataclass(slots=True)
class MadeModel:
    """`linears` by module, canonical shapes; `plains` by full name, as the files store them."""

    config: Config
    storages: dict[str, Storage] = field(default_factory=dict)
    linears: dict[str, Leaves] = field(default_factory=dict)
    plains: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Everything under the names of single parts."""
        own = {f"{m}.{leaf}": t for m, leaves in self.linears.items() for leaf, t in leaves.items()}
        return {**self.plains, **own}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the files hold beside the model itself."""

    choose: Choose
    seed: int = 0
    has_cache_scales: bool = False
    router_dtype: torch.dtype | None = None
    quantises_weights_proj: bool = False


def make_model(config: Config, wishes: Wishes) -> MadeModel:
    """The model's layers and its draft layer, if the config announces one."""
    made = MadeModel(config)
    _Maker(made, wishes).run()
    return made


def float_dtype(config: Config) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}[config["torch_dtype"]]


def has_experts(config: Config, layer: int) -> bool:
    return layer >= config["first_k_dense_replace"]


def has_indexer(config: Config, layer: int) -> bool:
    if config.get("index_topk") is None:
        return False
    kinds = config.get("indexer_types")
    is_draft = layer >= config["num_hidden_layers"]
    return is_draft or kinds is None or kinds[layer] == "full"


class _Maker:
    def __init__(self, made: MadeModel, wishes: Wishes) -> None:
        self.made = made
        self.wishes = wishes
        self.config = made.config
        self.random = Random(wishes.seed)
        self.dtype = float_dtype(made.config)

    def run(self) -> None:
        vocabulary = (self.config["vocab_size"], self.config["hidden_size"])
        self.vector("model.embed_tokens.weight", *vocabulary)
        self.vector("model.norm.weight", self.config["hidden_size"])
        self.vector("lm_head.weight", *vocabulary)
        layers = self.config["num_hidden_layers"]
        for layer in range(layers):
            self.layer(layer, has_experts(self.config, layer))
        if self.config["num_nextn_predict_layers"]:
            self.draft_extras(f"model.layers.{layers}.")
            self.layer(layers, True)

    def vector(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> None:
        self.made.plains[name] = self.random.floats(shape, dtype or self.dtype)

    def linear(self, name: str, rows: int, columns: int) -> None:
        storage = self.wishes.choose(name)
        self.made.storages[name] = storage
        self.made.linears[name] = make(storage, self.random, rows, columns)

    def draft_extras(self, prefix: str) -> None:
        hidden = self.config["hidden_size"]
        for name in ("enorm", "hnorm", "shared_head.norm"):
            self.vector(f"{prefix}{name}.weight", hidden)
        self.vector(f"{prefix}eh_proj.weight", hidden, 2 * hidden)
        for name in ("embed_tokens", "shared_head.head"):
            self.vector(f"{prefix}{name}.weight", self.config["vocab_size"], hidden)

    def layer(self, layer: int, is_moe: bool) -> None:
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            self.vector(f"{prefix}{norm}.weight", self.config["hidden_size"])
        for name, size in attention_vectors(self.config):
            self.vector(f"{prefix}self_attn.{name}.weight", size)
        for name, rows, columns in attention_linears(self.config):
            self.linear(f"{prefix}self_attn.{name}", rows, columns)
        if self.wishes.has_cache_scales:
            for name in ("k_proj.k_scale", "v_proj.v_scale"):
                scale = self.random.scales((), torch.float32)
                self.made.plains[f"{prefix}self_attn.{name}"] = scale
        if has_indexer(self.config, layer):
            self.indexer(f"{prefix}self_attn.indexer.")
        if is_moe:
            self.experts(f"{prefix}mlp.")
        else:
            self.gated(f"{prefix}mlp.", self.config["intermediate_size"])

    def indexer(self, prefix: str) -> None:
        config = self.config
        heads, width = config["index_n_heads"], config["index_head_dim"]
        queries = config["q_lora_rank"] or config["hidden_size"]
        self.linear(f"{prefix}wq_b", heads * width, queries)
        self.linear(f"{prefix}wk", width, config["hidden_size"])
        weights = f"{prefix}weights_proj"
        if self.wishes.quantises_weights_proj:
            self.linear(weights, heads, config["hidden_size"])
        else:
            self.made.storages[weights] = Storage(floats=self.dtype)
            plain = self.random.floats((heads, config["hidden_size"]), self.dtype)
            self.made.linears[weights] = {"weight": plain}
        for leaf in ("weight", "bias"):
            self.vector(f"{prefix}k_norm.{leaf}", width, dtype=torch.float32)

    def experts(self, prefix: str) -> None:
        config = self.config
        count, width = config["n_routed_experts"], config["moe_intermediate_size"]
        router = self.wishes.router_dtype
        self.vector(f"{prefix}gate.weight", count, config["hidden_size"], dtype=router)
        if config["topk_method"] == "noaux_tc":
            self.vector(f"{prefix}gate.e_score_correction_bias", count, dtype=torch.float32)
        for expert in range(count):
            self.gated(f"{prefix}experts.{expert}.", width)
        if config["n_shared_experts"]:
            self.gated(f"{prefix}shared_experts.", width * config["n_shared_experts"])

    def gated(self, prefix: str, width: int) -> None:
        hidden = self.config["hidden_size"]
        self.linear(f"{prefix}gate_proj", width, hidden)
        self.linear(f"{prefix}up_proj", width, hidden)
        self.linear(f"{prefix}down_proj", hidden, width)


def attention_vectors(config: Config) -> Iterator[tuple[str, int]]:
    if config["q_lora_rank"] is not None:
        yield "q_a_layernorm", config["q_lora_rank"]
    yield "kv_a_layernorm", config["kv_lora_rank"]


def attention_linears(config: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """(module, rows, columns) of one attention."""
    hidden, heads, latent = (
        config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"],
    )  # fmt: skip
    nope, rope, value = (
        config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"],
    )  # fmt: skip
    if config["q_lora_rank"] is None:
        yield "q_proj", heads * (nope + rope), hidden
    else:
        yield "q_a_proj", config["q_lora_rank"], hidden
        yield "q_b_proj", heads * (nope + rope), config["q_lora_rank"]
    yield "kv_a_proj_with_mqa", latent + rope, hidden
    yield "kv_b_proj", heads * (nope + value), latent
    yield "o_proj", hidden, heads * value
