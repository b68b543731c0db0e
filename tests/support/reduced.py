"""A published checkpoint with fewer layers and experts, in which every name pattern is left.

Nothing is lost for a test that changes one tensor. A loader knows a tensor by its pattern, dtype
and shape, and each of these is there with its published sizes, in two layers of its kind and in
four experts where the original has more. Further layers and experts are copies under other
numbers; that all numbers are handled alike is what the plans of the whole checkpoints prove.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadscope.loader.checkpoint import Checkpoint, Tensor
from support.names import expert_of, layer_of

EXPERTS = 4
MOE_LAYERS = 2
ROUTER = (".mlp.gate.weight", ".mlp.gate.e_score_correction_bias")


def reduced(checkpoint: Checkpoint) -> Checkpoint:
    """All dense layers, two expert layers, the draft layer if there is one; four experts."""
    assert checkpoint.config is not None
    config = checkpoint.config
    layers, draft = config["first_k_dense_replace"] + MOE_LAYERS, config["num_hidden_layers"]
    tensors = {
        _renumbered(name, draft, layers): _with_fewer_experts(name, tensor)
        for name, tensor in checkpoint.tensors.items()
        if _stays(name, layers, draft)
    }
    return replace(checkpoint, config=_reduced_config(config, layers), tensors=tensors)


def _stays(name: str, layers: int, draft: int) -> bool:
    layer, expert = layer_of(name), expert_of(name)
    return (layer is None or layer < layers or layer == draft) and (expert or 0) < EXPERTS


def _renumbered(text: str, draft: int, layers: int) -> str:
    """The draft layer follows the last one, in names and in exclude lists."""
    return re.sub(rf"^model\.layers\.{draft}(?=\D)", f"model.layers.{layers}", text)


def _with_fewer_experts(name: str, tensor: Tensor) -> Tensor:
    """The router has a row for every expert."""
    if not name.endswith(ROUTER):
        return tensor
    row_bytes = (tensor.stop - tensor.start) // tensor.shape[0]
    shape = (EXPERTS, *tensor.shape[1:])
    return tensor._replace(shape=shape, stop=tensor.start + EXPERTS * row_bytes)


def _reduced_config(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    smaller = {**config, "num_hidden_layers": layers, "n_routed_experts": EXPERTS}
    outside = config.get("_hf_quant_config")
    excluded = outside["quantization"].get("exclude_modules") if outside is not None else None
    if excluded is not None:
        entries = [_renumbered(entry, config["num_hidden_layers"], layers) for entry in excluded]
        quantization = {**outside["quantization"], "exclude_modules": entries}
        smaller["_hf_quant_config"] = {**outside, "quantization": quantization}
    return smaller
