"""The same model under other names, shapes and dtypes in the files: nothing of it may change.

Every function takes the tensors by name and gives them back dressed differently.
"""

import re
from collections.abc import Callable, Container, Mapping

import torch
from torch import Tensor

from support.cutting import WHOLE, latent, merged
from support.expert_cutting import Held, as_experts, stacked
from support.made_model import MadeModel
from support.stored import Leaves

Tensors = dict[str, Tensor]
LAYER = re.compile(r"model\.layers\.(\d+)\.")
Layers = Container[int]


def layer_number(name: str) -> int:
    found = LAYER.match(name)
    return -1 if found is None else int(found[1])


def fuse_queries(made: MadeModel, tensors: Tensors, layers: Layers) -> Tensors:
    """q_a_proj and kv_a_proj_with_mqa as the engine's one matrix."""
    fused = dict(tensors)
    for module in [m for m in made.linears if m.endswith(".q_a_proj")]:
        prefix = module.removesuffix("q_a_proj")
        if layer_number(module) not in layers:
            continue
        other = prefix + "kv_a_proj_with_mqa"
        parts = [_take(fused, made, name) for name in (module, other)]
        joined = latent(made.storages[module], parts)
        _give(fused, prefix + "fused_qkv_a_proj_with_mqa", joined)
    return fused


def fuse_gates(
    made: MadeModel, tensors: Tensors, layers: Layers, *, with_shared: bool = True
) -> Tensors:
    """gate_proj and up_proj of dense and shared MLPs as gate_up_proj."""
    fused = dict(tensors)
    for module in [m for m in made.linears if m.endswith(".gate_proj") and ".experts." not in m]:
        prefix = module.removesuffix("gate_proj")
        is_left = "shared_experts" in module and not with_shared
        if is_left or layer_number(module) not in layers:
            continue
        parts = [_take(fused, made, name) for name in (module, prefix + "up_proj")]
        _give(fused, prefix + "gate_up_proj", merged(made.storages[module], parts, WHOLE))
    return fused


def fuse_indexers(made: MadeModel, tensors: Tensors, layers: Layers) -> Tensors:
    """Plain wk and weights_proj as one matrix."""
    fused = dict(tensors)
    for module in [m for m in made.linears if m.endswith(".indexer.wk")]:
        prefix = module.removesuffix("wk")
        names = (module, prefix + "weights_proj")
        if layer_number(module) in layers and all(made.storages[n].kind == "plain" for n in names):
            parts = [_take(fused, made, name)["weight"] for name in names]
            fused[prefix + "wk_weights_proj.weight"] = torch.cat(parts)
    return fused


def stack_experts(made: MadeModel, tensors: Tensors, layers: Layers, *, as_engine: bool) -> Tensors:
    """All routed experts of a layer in one tensor per leaf: w13_weight, or gate_up_proj."""
    fused = dict(tensors)
    count = made.config["n_routed_experts"]
    first = [m for m in made.linears if m.endswith(".mlp.experts.0.gate_proj")]
    for module in [m for m in first if layer_number(m) in layers]:
        prefix = module.removesuffix("experts.0.gate_proj")
        experts = as_experts(made.linears, prefix, [f"experts.{n}" for n in range(count)])
        whole = stacked(made.storages[module], Held(experts, experts, WHOLE))
        single = made.storages[module].kind == "int4"  # has activation scales by expert only
        for leaf in made.linears[module]:
            if single and leaf == "input_scale":
                continue
            for name in _names(prefix, count, leaf):
                del fused[name]
            for which in ("w13", "w2"):
                own = f"{which}_{leaf}"
                fused[f"{prefix}experts.{own if as_engine else _as_transformers(own)}"] = whole[own]
    return fused


def _names(prefix: str, count: int, leaf: str) -> list[str]:
    parts = ("gate_proj", "up_proj", "down_proj")
    return [f"{prefix}experts.{n}.{part}.{leaf}" for n in range(count) for part in parts]


def _as_transformers(leaf: str) -> str:
    """w13_weight_scale_inv is gate_up_proj_scale_inv there."""
    which, _, rest = leaf.partition("_")
    tail = "" if rest == "weight" else "_" + rest.removeprefix("weight_")
    return ("gate_up_proj" if which == "w13" else "down_proj") + tail


def _take(tensors: Tensors, made: MadeModel, module: str) -> Leaves:
    return {leaf: tensors.pop(f"{module}.{leaf}") for leaf in made.linears[module]}


def _give(tensors: Tensors, module: str, leaves: Mapping[str, Tensor]) -> None:
    tensors |= {f"{module}.{leaf}": tensor for leaf, tensor in leaves.items()}


def reshaped(tensors: Tensors) -> Tensors:
    """Scalars as [1], scales per row as [N]: what other exporters write."""
    return {name: _flat(tensor) for name, tensor in tensors.items()}


def _flat(tensor: Tensor) -> Tensor:
    if tensor.dim() == 0:
        return tensor.reshape(1)
    is_column = tensor.dim() == 2 and tensor.shape[1] == 1 and tensor.dtype.is_floating_point
    return tensor.reshape(-1) if is_column else tensor


def mixtral_names(tensors: Tensors) -> Tensors:
    """Activation scales of int4 experts as w1, w3, w2."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    pattern = re.compile(r"(\.mlp\.experts\.\d+\.)(gate_proj|up_proj|down_proj)(\.input_scale)")
    return {
        pattern.sub(lambda m: m[1] + names[m[2]] + m[3], name): tensor
        for name, tensor in tensors.items()
    }


def renamed(tensors: Tensors, rename: Callable[[str], str]) -> Tensors:
    new = {rename(name): tensor for name, tensor in tensors.items()}
    assert len(new) == len(tensors)
    return new


def outer_wrapper(name: str) -> str:
    return "language_model." + name


def inner_wrapper(name: str) -> str:
    """The head stands beside `model` and keeps its name."""
    is_inside = name.startswith("model.")
    return "model.language_model." + name.removeprefix("model.") if is_inside else name


def adapter(name: str) -> str:
    """base_layer inside the names of matrices."""
    head, _, leaf = name.rpartition(".")
    return f"{head}.base_layer.{leaf}" if head.endswith("_proj") else name


def engine_cache_scales(name: str) -> str:
    """Under the attention that holds them."""
    for which in ("k", "v"):
        name = name.replace(f"{which}_proj.{which}_scale", f"attn_mqa.{which}_scale")
    return name
