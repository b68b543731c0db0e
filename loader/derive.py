"""Derived tensors after the copies: computed from whole parameters, written in place on reload."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from loadscope.kernels.dequantise_block import bytes_moved, dequantise_block
from loadscope.loader.parameters import ParameterStore
from loadscope.loader.plan import Plan
from loadscope.loader.tables import Derive, Output
from loadscope.loader.topology import layers_in


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One conversion: its name, what it worked on, bytes read and written, seconds."""

    kernel: str
    param: str
    shape: tuple[int, ...]
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Derived:
    """One layer's derived tensors, written, with the kernels that made them."""

    names: tuple[str, ...]
    nbytes: tuple[int, ...]
    kernels: tuple[KernelTime, ...]
    seconds: float


def derive_all(plan: Plan, store: ParameterStore) -> Iterator[Derived]:
    """Run every derive step of the rank's layers, in layer order."""
    held = plan.stage_masks[plan.seats[store.rank].pp]
    for derive in plan.derives:
        outputs = [_local(output, plan.layout.tp_size) for output in derive.outputs]
        for layer in layers_in(derive.layers & held):
            yield OPERATIONS[derive.op](store, _at(derive, layer), outputs)


def _local(output: Output, tp_size: int) -> Output:
    shape = list(output.shape)
    shape[output.split_dim] //= tp_size
    return replace(output, shape=tuple(shape))


def _at(derive: Derive, layer: int) -> Derive:
    number = str(layer)
    return replace(
        derive,
        module=derive.module.replace("{layer}", number),
        input=derive.input.replace("{layer}", number),
    )


def split_kv_b(store: ParameterStore, derive: Derive, outputs: list[Output]) -> Derived:
    """kv_b_proj [heads*(nope+v), kv] to w_kc [heads, nope, kv] and w_vc [heads, kv, v].

    fp8 blocks are dequantised to bf16 first; other dtypes are kept (spec 5.2, 5.3 of the
    reference loader). Values are those of the slices, bit for bit.
    """
    begun = time.perf_counter()
    weight, kernels = _kv_b_values(store, derive)
    mark = time.perf_counter()
    key, value = outputs
    per_head = weight.view(key.shape[0], -1, weight.shape[1])
    sources = (per_head[:, : key.shape[1]], per_head[:, key.shape[1] :].transpose(1, 2))
    names, sizes = [], []
    for output, source in zip(outputs, sources, strict=True):
        name = f"{derive.module}.{output.name}"
        target = store.derived_tensor(name, output, weight.dtype)
        target.copy_(source)
        names.append(name)
        sizes.append(target.numel() * target.element_size())
    done = time.perf_counter()
    moved = KernelTime(
        "split_kv_b", derive.module, tuple(weight.shape), 2 * sum(sizes), done - mark
    )
    for scalar, number in derive.scalars:
        store.scalars[f"{derive.module}.{scalar}"] = number
    for flag, is_set in derive.flags:
        store.flags[f"{derive.module}.{flag}"] = is_set
    return Derived(tuple(names), tuple(sizes), (*kernels, moved), done - begun)


def _kv_b_values(
    store: ParameterStore, derive: Derive
) -> tuple[torch.Tensor, tuple[KernelTime, ...]]:
    name = derive.input.replace("{leaf}", "weight")
    weight = store.parameters[name]
    scale = store.parameters.get(derive.input.replace("{leaf}", "weight_scale_inv"))
    if scale is None:
        return weight, ()
    begun = time.perf_counter()
    values = dequantise_block(weight, scale)
    seconds = time.perf_counter() - begun
    rows, columns = weight.shape
    nbytes = bytes_moved(rows, columns, (128, 128), values.element_size())
    return values, (KernelTime("dequantise_block", name, (rows, columns), nbytes, seconds),)


Operation = Callable[[ParameterStore, Derive, list[Output]], Derived]

OPERATIONS: dict[str, Operation] = {"split_kv_b": split_kv_b}
