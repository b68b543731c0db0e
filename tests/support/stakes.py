"""What hangs on one tensor of a published checkpoint: its parameter, and elements on all ranks.

Written from the description of the sharding, for every format and for the draft.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from loadscope.loader.topology import Layout
from support.destinations import copies_of, parameter_of
from support.expected_skips import draft_skip, target_skip
from support.names import expert_of

# a parameter needs it; it may stay at its initial value; no parameter has a use for it
Need = Literal["needed", "optional", "unused"]
KV_SCALES = {"k_proj.k_scale": "attn_mqa.k_scale", "v_proj.v_scale": "attn_mqa.v_scale"}
OUTSIDE_THE_DECODER = ("enorm", "hnorm", "eh_proj", "shared_head")
MIXTRAL = {"w1": "w13", "w2": "w2", "w3": "w13"}
# of a pair, or of a weight and its scale, the other one waits in vain
PARTNERS = {
    "q_a_proj": "kv_a_proj_with_mqa",
    "kv_a_proj_with_mqa": "q_a_proj",
    "wk.weight_scale_inv": "wk.weight",
    "wk.weight": "wk.weight_scale_inv",
}
# of an expert, the greatest of two scales fills both of their places
JOINED = {
    "gate_proj.input_scale": "up_proj.input_scale",
    "up_proj.input_scale": "gate_proj.input_scale",
    "w1.input_scale": "w3.input_scale",
    "w3.input_scale": "w1.input_scale",
}


class Asked(NamedTuple):
    """A model to be loaded: the config, how experts are stored, in which role and layout."""

    config: Mapping[str, Any]
    experts: str
    is_draft: bool
    layout: Layout


def need_of(name: str, asked: Asked) -> Need:
    skip = (draft_skip if asked.is_draft else target_skip)(name, asked.config)
    if skip is not None:
        return "unused"
    if name.endswith(tuple(KV_SCALES)):
        return "unused" if asked.is_draft else "optional"
    return "needed"


def filled_parameter(name: str, asked: Asked) -> str:
    """The full name of the parameter that the tensor fills, or a part of it."""
    for source, target in KV_SCALES.items():
        if name.endswith(source):
            return name.removesuffix(source) + target
    *head, module, leaf = name.split(".")
    if module in MIXTRAL:
        return ".".join([*head[:-1], f"{MIXTRAL[module]}_{leaf}"])
    parameter = parameter_of(name, asked.config)
    if not asked.is_draft:
        return parameter
    rest = parameter.removeprefix(f"model.layers.{asked.config['num_hidden_layers']}.")
    place = "model." if rest.startswith(OUTSIDE_THE_DECODER) else "model.decoder."
    return place + rest


def partners_of(name: str) -> set[str]:
    """The tensors that are of no use without this one."""
    known = PARTNERS if expert_of(name) is None else JOINED
    return {name.replace(half, other) for half, other in known.items() if half in name}


def elements_at_stake(name: str, shapes: Mapping[str, tuple[int, ...]], asked: Asked) -> int:
    """Parameter elements, summed over all ranks, that stay unwritten without this tensor.

    A scale that a weight is converted with fills nothing itself: without it the weight is lost.
    """
    shape = shapes[name]
    if name.endswith("indexer.wk.weight_scale_inv"):
        shape = shapes[name.removesuffix("_scale_inv")]
    places = 2 if expert_of(name) is not None and name.endswith(tuple(JOINED)) else 1
    copies = copies_of(name, shape, asked.layout, keeps_all=asked.experts == "nvfp4")
    return places * math.prod(shape) * copies
