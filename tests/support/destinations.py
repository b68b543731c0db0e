"""Which parameter a checkpoint tensor belongs to, and how many ranks hold each of its elements.

Written from the description of the sharding, not from the loader's tables.
"""

import math
from collections.abc import Mapping
from typing import Any

from loadscope.loader.topology import Layout
from support.names import expert_of, layer_of

CUT_MODULES = {
    "embed_tokens",
    "lm_head",
    "q_proj",
    "q_b_proj",
    "kv_b_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
}
_FUSED = {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj_with_mqa",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa",
}
_INDEXER_PARTS = ("wk", "weights_proj")


def parameter_of(name: str, config: Mapping[str, Any]) -> str:
    """The full name of the parameter that the tensor fills, or a part of it."""
    *_, module, leaf = name.split(".")
    if expert_of(name) is not None:
        stacked = "w2" if module == "down_proj" else "w13"
        return f"model.layers.{layer_of(name)}.mlp.experts.{stacked}_{leaf}"
    if module in _INDEXER_PARTS:
        return name[: -len(f"{module}.{leaf}")] + "wk_weights_proj.weight"
    if config.get("q_lora_rank") is None and module == "kv_a_proj_with_mqa":
        return name
    return name.replace(f".{module}.{leaf}", f".{_FUSED.get(module, module)}.{leaf}")


ROWS_NOT_CUT = ("o_proj", "down_proj")  # cut along their columns: a scale per row is whole


def copies_of(name: str, shape: tuple[int, ...], layout: Layout, *, keeps_all: bool) -> int:
    """How many ranks of a stage hold each element of a tensor or of its share of that shape.

    `keeps_all`: every rank has the activation scales of all experts.
    """
    *_, module, leaf = name.split(".")
    is_per_row = module in ROWS_NOT_CUT and leaf == "weight_scale" and shape[-1:] == (1,)
    is_whole = is_per_row or leaf.endswith("input_scale") or math.prod(shape) == 1
    if ".experts." in name:
        if keeps_all and leaf.endswith("input_scale"):
            return layout.tp_size
        return layout.tp_size // layout.ep_size if is_whole else 1
    return layout.tp_size if is_whole or module not in CUT_MODULES else 1


def copies_of_fused_shared_expert(
    name: str, shape: tuple[int, ...], layout: Layout, *, keeps_all: bool
) -> int:
    """The same where the shared expert is a slot of the stacked ones on every rank."""
    as_expert = name.replace("shared_experts", "experts.0")
    once = copies_of(as_expert, shape, layout, keeps_all=keeps_all)
    is_everywhere = once == layout.tp_size and keeps_all
    return once if is_everywhere else once * layout.ep_size
